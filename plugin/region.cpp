// SPDX-License-Identifier: Apache-2.0
#include "plugin/region.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include <ATen/Version.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plugin/bridge.h"
#include "plugin/captures.h"
#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/phase.h"
#include "plugin/plan_memory.h"
#include "plugin/registry.h"
#include "plugin/reuse.h"
#include "plugin/rewrite.h"
#include "plugin/steady_state.h"
#include "solver/solve.h"
#include "solver/validate.h"

namespace stowage {
namespace {

using profiler::PlanRecord;
using profiler::Run;
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

/// Whether the thread is in a training step: then tensors of other regions and of autograd's own ops are live in every
/// run, and an arena that is held meanwhile costs more than it saves. The plan's order and its frees hold without one.
bool is_training() { return at::GradMode::is_enabled() || torch::autograd::get_current_node() != nullptr; }

}  // namespace

Region::Region(std::shared_ptr<Graph> graph, std::string name, std::vector<OuterUse> outer_uses)
    : name_(std::move(name)),
      facts_(read_facts(std::move(graph))),
      outer_uses_(std::move(outer_uses)),
      hash_(graph_digest(facts_.graph)),
      code_(facts_.graph, name_) {
  for (const std::string& kind : facts_.not_understood) {
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
  const auto first_input = stack.end() - static_cast<std::ptrdiff_t>(facts_.graph->inputs().size());
  Stack values(std::make_move_iterator(first_input), std::make_move_iterator(stack.end()));
  stack.erase(first_input, stack.end());

  // Where autograd records, the backward depends on the order in which ops ran, so nothing may move. Within another
  // region's run, our allocations are part of that region's op.
  const bool may_plan = g_planning.load(std::memory_order_relaxed) && options().plan && Session::current() == nullptr &&
                        !is_verifying() &&
                        !((at::GradMode::is_enabled() || facts_.sets_grad_mode) && may_record(values));
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

std::shared_ptr<Phase> Region::phase_for(const Stack& inputs) {
  std::lock_guard lock(mutex_);
  inputs_.read(inputs);
  const auto found =
      std::find_if(phases_.begin(), phases_.end(), [&](const auto& phase) { return phase->signature == inputs_; });
  if (found != phases_.end()) {
    phases_.splice(phases_.begin(), phases_, found);
    return phases_.front();
  }
  auto phase = std::make_shared<Phase>();
  phase->signature = inputs_;
  phase->device = inputs_.device();
  phase->why_unplanned =
      inputs_.has_several_devices() ? "its tensors are on several CUDA devices" : why_unplanned(phase->device);
  phase->key = {hash_, inputs_.digest(), describe(phase->device), TORCH_VERSION, plan_rules()};
  if (!phase->why_unplanned.empty()) {
    note(fmt::format("'{}' is not planned: {}", name_, phase->why_unplanned));
  } else if (auto remembered = recall(phase->key)) {
    phase->planned = make_planned(*phase, remembered->run, std::move(remembered->plan), /*recalled=*/true);
    if (phase->planned != nullptr) ++plans_recalled_;
  }
  phases_.push_front(phase);
  if (phases_.size() > static_cast<std::size_t>(options().max_plans)) phases_.pop_back();
  return phase;
}

void Region::run_profiled(Stack& stack, Phase& phase) {
  struct Done {
    Region& region;
    ~Done() {
      std::lock_guard lock(region.mutex_);
      region.profiling_ = false;
    }
  } done{*this};
  if (profiler_ == nullptr) profiler_ = std::make_unique<Profiler>(facts_);
  std::string why_not;
  const Run* previous = phase.previous ? &*phase.previous : nullptr;
  Run run = profiler_->run(stack, phase.device, previous, why_not);
  run.key = phase.key;
  run.name = name_;
  run.graph_text = facts_.graph->toString(/*print_source_locations=*/false);
  {
    std::lock_guard lock(mutex_);
    run.execution = static_cast<std::int32_t>(executions_);
    ++runs_profiled_;
    phase.why_unplanned = why_not;
  }
  if (why_not.empty()) compare_runs(phase, std::move(run));
}

/// The first run is not the steady state: plans are made from the second of two runs that were alike, if nothing that
/// was measured of it is in doubt.
void Region::compare_runs(Phase& phase, Run run) {
  ++phase.profiled_runs;
  const std::string doubt = why_in_doubt(run);
  if (!doubt.empty()) {
    note(fmt::format("a run of '{}' is not planned from: {}", name_, doubt));
    remember(run);
  }
  if (!doubt.empty() || !phase.previous || !are_alike(*phase.previous, run)) {
    if (phase.profiled_runs >= options().max_profile_runs) {
      std::lock_guard lock(mutex_);
      phase.why_unplanned = doubt.empty() ? fmt::format("no two of {} runs in a row were alike: {}",
                                                        phase.profiled_runs, difference(*phase.previous, run))
                                          : doubt;
      note(fmt::format("'{}' is not planned: {}", name_, phase.why_unplanned));
    }
    phase.previous = std::move(run);
    return;
  }
  std::erase_if(run.reuses, [&](const profiler::ReuseRecord& reuse) {
    const auto& before = phase.previous->reuses;
    return std::find(before.begin(), before.end(), reuse) == before.end();
  });
  phase.previous.reset();

  const auto begin = std::chrono::steady_clock::now();
  solver::SolveOptions limits;
  limits.deadline_ms = options().deadline_ms;
  std::shared_ptr<Planned> planned;
  try {
    limits.spare_bytes = allocator_of(phase.device).spare_bytes();
    planned = make_planned(phase, run, to_record(run, solver::solve(to_problem(run), limits)), /*recalled=*/false);
  } catch (const std::exception& failure) {
    note(fmt::format("cannot plan '{}': {}; it goes on unplanned", name_, first_line(failure.what())));
  }
  if (planned != nullptr) {
    planned->plan.planning_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
    remember(run, planned->plan);
  }
  std::lock_guard lock(mutex_);
  phase.planned = std::move(planned);
  if (phase.planned == nullptr) {
    phase.why_unplanned = "it could not be planned";
  } else {
    ++plans_made_;
  }
}

/// A plan ready to run, or null with a note: a plan that breaks a rule never touches a graph, and without an arena
/// there is nothing to place in.
std::shared_ptr<Planned> Region::make_planned(const Phase& phase, const Run& run, PlanRecord plan,
                                              bool recalled) const {
  auto planned = std::make_shared<Planned>();
  planned->allocator = &allocator_of(phase.device);
  try {
    if (run.ops.size() != facts_.ops.size()) {
      throw std::invalid_argument(fmt::format("the run has {} ops, the graph {}", run.ops.size(), facts_.ops.size()));
    }
    if (const auto broken = solver::validate(to_problem(run), to_plan(run, plan))) throw std::invalid_argument(*broken);
    planned->table = to_slot_table(run, plan);
    planned->table_without_slots = without_slots(planned->table);
    std::vector<bool> may_end;
    for (const OuterUse& use : outer_uses_) {
      may_end.push_back(use.ends_here && (use.in_register || running_backward() != nullptr));
      planned->empties |= may_end.back();
    }
    const std::shared_ptr<Graph> copy = planned_copy(facts_, run, plan, may_end);
    plan.graph_text = copy->toString(/*print_source_locations=*/false);
    planned->code = torch::jit::Code(copy, name_);
    if (!is_training() && !planned->allocator->is_in_step()) planned->allocator->reserve_arena(planned->table);
  } catch (const std::exception& failure) {
    note(fmt::format("cannot use the plan of '{}': {}; it goes on unplanned", name_, first_line(failure.what())));
    return nullptr;
  }
  for (const profiler::TensorRecord& tensor : run.tensors) {
    if (tensor.kind == profiler::TensorKind::kInput || tensor.kind == profiler::TensorKind::kConstant) {
      planned->outside_bytes += tensor.size_bytes;
    }
  }
  planned->run = run;
  planned->plan = std::move(plan);
  planned->recalled = recalled;
  return planned;
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
      planned.verifier = std::make_unique<Verifier>(facts_, planned.run, planned.plan);
    }
  }
  const Verdict verdict = planned.verifier->run(
      stack, [&](Stack& inputs, const torch::jit::Code& code) { return run_planned(inputs, planned, code); });
  std::lock_guard lock(mutex_);
  verified_.add(verdict, name_);
}

std::string Region::text() const {
  std::lock_guard lock(mutex_);
  std::string text = fmt::format("# {}: the program\n{}", name_, facts_.graph->toString(false));
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
                      {"ops", facts_.ops.size()},
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
