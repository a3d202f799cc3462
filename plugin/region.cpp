// SPDX-License-Identifier: Apache-2.0
#include "plugin/region.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plugin/budget.h"
#include "plugin/captures.h"
#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/phase.h"
#include "plugin/registry.h"

namespace stowage {
namespace {

using profiler::PlanRecord;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;

std::atomic<bool> g_planning{false};

/// Whether autograd may record ops on these inputs while grad mode is on.
bool may_record(c10::ArrayRef<c10::IValue> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
    if (input.isTensor()) return input.toTensor().requires_grad();
    if (input.isList()) return may_record(input.toListRef());
    if (input.isTuple()) return may_record(input.toTupleRef().elements());
    return input.isObject() || input.isGenericDict();  // not looked into
  });
}

}  // namespace

Region::Region(std::shared_ptr<Graph> graph, std::string name, std::vector<OuterUse> outer_uses)
    : name_(std::move(name)),
      facts_(std::make_shared<const GraphFacts>(read_facts(std::move(graph)))),
      outer_uses_(std::move(outer_uses)),
      hash_(graph_digest(facts_->graph)),
      code_(facts_->graph, name_) {
  for (const std::string& kind : facts_->not_understood) {
    note(
        fmt::format("nothing moves across '{}' in '{}': it has no alias annotation; declare it with a schema to have "
                    "it planned",
                    kind, name_));
  }
  enter_region(*this);
}

Region::~Region() {
  // The arena is as large as the largest plan needs; the plans that are left take one of their own size.
  for (PlannedAllocator* allocator : all_allocators()) allocator->release_arena();
  leave_region(*this);
}

void Region::run(Stack& stack) {
  const auto first_input = stack.end() - static_cast<std::ptrdiff_t>(facts_->graph->inputs().size());
  Stack values(std::make_move_iterator(first_input), std::make_move_iterator(stack.end()));
  stack.erase(first_input, stack.end());

  // Where autograd records, the backward depends on the order in which ops ran, so nothing may move. Within another
  // region's run, our allocations are part of that region's op.
  const bool may_plan = g_planning.load(std::memory_order_relaxed) && options().plan && Session::current() == nullptr &&
                        !is_verifying() &&
                        !((at::GradMode::is_enabled() || facts_->sets_grad_mode) && may_record(values));
  const std::shared_ptr<Phase> phase = may_plan ? phase_for(values) : nullptr;
  const bool device_may_plan = phase != nullptr && allocator_of(phase->device).may_plan();
  std::shared_ptr<Planned> planned;
  bool profile = false;
  {
    std::lock_guard lock(mutex_);
    ++executions_;
    if (device_may_plan) {
      planned = phase->planned;
      profile = planned == nullptr && phase->why_unplanned.empty() && !profiling_;
      if (profile) profiling_ = true;
    } else if (phase != nullptr && phase->why_unplanned.empty()) {
      note(fmt::format("'{}' runs unplanned while a CUDA graph is captured, a memory pool is in use or caching is off",
                       name_));
    }
  }
  if (planned != nullptr && !planned->over_budget.empty() && stops_over_budget()) {
    TORCH_CHECK(false, planned->over_budget, "; give it more, or set over_budget to 'continue'");
  }
  if (planned != nullptr && options().verify) {
    run_verified(values, *planned);
  } else if (planned != nullptr) {
    if (!run_planned(values, *planned, planned->code)) run_as_is(values);
  } else if (profile) {
    run_profiled(values, *phase);
  } else {
    run_as_is(values);
  }
  if (planned != nullptr) drop_plan_without_arena(*phase, *planned);
  remember_outputs(values);
  stack.insert(stack.end(), std::make_move_iterator(values.begin()), std::make_move_iterator(values.end()));
}

void Region::run_as_is(Stack& stack) {
  {
    std::lock_guard lock(mutex_);
    ++runs_as_is_;
  }
  torch::jit::InterpreterState(code_).run(stack);
}

bool Region::run_planned(Stack& stack, Planned& planned, const torch::jit::Code& code) {
  PlannedAllocator& allocator = *planned.allocator;
  if (allocator.is_in_step()) {  // which has a place for what is allocated here: only the order is the region's
    follow(stack, planned, code);
    std::lock_guard lock(planned.mutex);
    ++planned.runs;
    return true;
  }
  const SlotTable& table = is_training() ? planned.table_without_slots : planned.table;
  if (!allocator.has_arena_for(table)) {
    try {
      allocator.reserve_arena(table);
    } catch (const std::exception& failure) {
      std::lock_guard lock(planned.mutex);
      planned.why_no_arena =
          fmt::format("cannot have the arena of {} B: {}", planned.table.arena_bytes, first_line(failure.what()));
      return false;
    }
  }
  bool is_first = false;
  {
    PlannedSession session(allocator, table);
    if (!session.owns_arena() && table.arena_bytes > 0) return false;
    follow(stack, planned, code);

    std::lock_guard lock(planned.mutex);
    planned.last = session.counters();
    planned.total.add(planned.last);
    planned.last_peak_bytes = planned.outside_bytes + table.arena_bytes + session.upstream_peak_bytes();
    is_first = ++planned.runs == 1;
  }
  if (is_first) allocator.trim();
  return true;
}

/// Runs the planned code: its order and its frees, whoever allocates.
void Region::follow(Stack& stack, Planned& planned, const torch::jit::Code& code) const {
  if (!planned.empties) return torch::jit::InterpreterState(code).run(stack);
  Emptying emptying(outer_uses_, stack);
  torch::jit::InterpreterState(code).run(stack);
  std::lock_guard lock(planned.mutex);
  planned.last_emptied_bytes = emptying.emptied_bytes();
}

/// A plan that memory does not allow is given up: asking for it again at each run would cost more than it saves.
void Region::drop_plan_without_arena(Phase& phase, Planned& planned) {
  std::string why;
  {
    std::lock_guard lock(planned.mutex);
    why = planned.why_no_arena;
  }
  if (why.empty()) return;
  note(fmt::format("the plan of '{}' is given up: {}; it goes on unplanned", name_, why));
  std::lock_guard lock(mutex_);
  phase.why_unplanned = std::move(why);
  phase.planned.reset();
}

void Region::run_verified(Stack& stack, Planned& planned) {
  {
    std::lock_guard lock(planned.mutex);
    if (planned.verifier == nullptr) {
      planned.verifier = std::make_unique<Verifier>(*facts_, *planned.facts, planned.run, planned.plan);
    }
  }
  const Verdict verdict = planned.verifier->run(
      stack, [&](Stack& inputs, const torch::jit::Code& code) { return run_planned(inputs, planned, code); });
  std::lock_guard lock(mutex_);
  verified_.add(verdict, name_);
}

std::string Region::text() const {
  std::lock_guard lock(mutex_);
  std::string text = fmt::format("# {}: the program\n{}", name_, facts_->graph->toString(false));
  const auto newest = std::find_if(phases_.begin(), phases_.end(), [](const auto& p) { return p->planned != nullptr; });
  if (newest == phases_.end()) return text + fmt::format("\n# {}: no plan yet\n", name_);
  const PlanRecord& plan = (*newest)->planned->plan;
  return text + fmt::format("\n# {}: the plan; peak {} B (program {} B, bound {} B), arena {} B\n{}", name_,
                            plan.peak_bytes, plan.program_peak_bytes, plan.bound_bytes, plan.arena_bytes,
                            plan.graph_text);
}

nlohmann::json Region::status() const {
  std::lock_guard lock(mutex_);
  nlohmann::json json{{"name", name_},
                      {"graph_hash", hash_},
                      {"ops", facts_->ops.size()},
                      {"executions", executions_},
                      {"runs_as_is", runs_as_is_},
                      {"runs_profiled", runs_profiled_},
                      {"plans_made", plans_made_},
                      {"plans_recalled", plans_recalled_},
                      {"phases", nlohmann::json::array()}};
  json.update(verified_.status());
  for (const auto& phase : phases_) json["phases"].push_back(phase->status());
  return json;
}

void set_planning(bool on) { g_planning.store(on, std::memory_order_relaxed); }

bool is_planning() { return g_planning.load(std::memory_order_relaxed); }

torch::jit::RegisterOperators register_region_operator() {
  auto make_region = [](const Node* node) -> torch::jit::Operation {
    auto region = std::make_shared<Region>(node->g(torch::jit::attr::Subgraph)->copy(), node->s(torch::jit::attr::name),
                                           outer_uses(*node));
    return [region](Stack& stack) { region->run(stack); };
  };
  return torch::jit::RegisterOperators({torch::jit::Operator(Symbol::fromQualString("stowage::region"), make_region,
                                                             c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
