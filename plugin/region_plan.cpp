// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include <ATen/Version.h>
#include <fmt/format.h>

#include "plugin/bridge.h"
#include "plugin/captures.h"
#include "plugin/devices.h"
#include "plugin/fitting.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/phase.h"
#include "plugin/plan_memory.h"
#include "plugin/region.h"
#include "plugin/reuse.h"
#include "plugin/rewrite.h"
#include "plugin/steady_state.h"
#include "plugin/timing.h"
#include "solver/solve.h"
#include "solver/validate.h"

namespace stowage {

using profiler::PlannedRun;
using profiler::PlanRecord;
using profiler::Run;
using torch::jit::Graph;
using torch::jit::Stack;

bool is_training() { return at::GradMode::is_enabled() || torch::autograd::get_current_node() != nullptr; }

namespace {

std::int64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::shared_ptr<Phase> Region::phase_for(const Stack& inputs) {
  std::lock_guard lock(mutex_);
  inputs_.read(inputs);
  const std::string budget = budget_text();
  const auto found =
      std::find_if(phases_.begin(), phases_.end(), [&](const auto& phase) { return phase->signature == inputs_; });
  if (found != phases_.end() && (*found)->budget_text == budget) {
    phases_.splice(phases_.begin(), phases_, found);
    return phases_.front();
  }
  if (found != phases_.end()) {
    // Another budget, another plan; and the arena is as large as the largest plan so far.
    allocator_of((*found)->device).release_arena();
    phases_.erase(found);
  }
  auto phase = std::make_shared<Phase>();
  phase->signature = inputs_;
  phase->device = inputs_.device();
  phase->why_unplanned =
      inputs_.has_several_devices() ? "its tensors are on several CUDA devices" : why_unplanned(phase->device);
  phase->key = {hash_, inputs_.digest(), describe(phase->device), TORCH_VERSION, plan_rules()};
  phase->budget_text = budget;
  if (is_training() || allocator_of(phase->device).is_in_step()) {
    note_unbudgeted();
  } else if (!budget.empty()) {
    phase->budget = budget_in_force();
    phase->key.rules += ", " + budget;
  }
  if (!phase->why_unplanned.empty()) {
    note(fmt::format("'{}' is not planned: {}", name_, phase->why_unplanned));
  } else if (auto remembered = recall(phase->key)) {
    phase->planned = make_planned(*phase, {nullptr, std::move(*remembered)}, /*recalled=*/true);
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
  if (phase.timing != nullptr) return run_timed(stack, phase);
  if (profiler_ == nullptr) profiler_ = std::make_unique<Profiler>(*facts_);
  Profiler& profiler = phase.fitting == nullptr ? *profiler_ : phase.fitting->profiler();
  std::string why_not;
  const Run* previous = phase.previous ? &*phase.previous : nullptr;
  Run run = profiler.run(stack, phase.device, previous, why_not);
  run.key = phase.key;
  run.name = name_;
  run.graph_text = facts_->graph->toString(/*print_source_locations=*/false);
  if (phase.fitting != nullptr) phase.fitting->label(run);
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
    if (phase.profiled_runs >= options().max_profile_runs && phase.fitting != nullptr) {
      phase.previous.reset();
      return adopt(phase, phase.fitting->best());
    }
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
  for (std::size_t op = 0; op < run.ops.size(); ++op) {  // what else ran meanwhile only makes an op slower
    run.ops[op].duration_ns = std::min(run.ops[op].duration_ns, phase.previous->ops[op].duration_ns);
  }
  phase.previous.reset();
  plan(phase, std::move(run));
}

/// Plans from a run that is like the one before; or, for a budget, has another graph profiled first.
void Region::plan(Phase& phase, Run run) {
  const auto begin = std::chrono::steady_clock::now();
  solver::SolveOptions limits;
  limits.deadline_ms = options().deadline_ms;
  std::optional<Candidate> made;
  try {
    limits.spare_bytes = allocator_of(phase.device).spare_bytes();
    PlanRecord plan = to_record(run, solver::solve(to_problem(run), limits));
    made = Candidate{facts_, {std::move(run), std::move(plan)}};
    phase.planning_ns += nanoseconds_since(begin);
  } catch (const std::exception& failure) {
    note(fmt::format("cannot plan '{}': {}; it goes on unplanned", name_, first_line(failure.what())));
    made.reset();
  }
  if (!made || !phase.budget.is_any()) return adopt(phase, std::move(made));
  if (phase.fitting == nullptr) {
    phase.unplanned_ns = ops_ns(made->made.run);
    if (begin_timing(phase, *made)) return;
  }
  plan_for_budget(phase, *std::move(made));
}

/// Goes on with the best plan for the budget, or has another graph profiled first.
void Region::plan_for_budget(Phase& phase, Candidate made) {
  const auto begin = std::chrono::steady_clock::now();
  const bool runs_another = propose(phase, std::move(made));
  phase.planning_ns += nanoseconds_since(begin);
  if (!runs_another) adopt(phase, phase.fitting->best());
}

/// Whether the program's ops are timed first: on the CPU, and only if there is a choice to make.
bool Region::begin_timing(Phase& phase, const Candidate& program) const {
  const auto& [run, plan] = program.made;
  const bool has_choice = needs_less(to_record(phase.budget, plan.program_peak_bytes, phase.unplanned_ns), run, plan);
  if (!phase.device.is_cpu() || !has_choice) return false;
  phase.timed = make_planned(phase, program, /*recalled=*/false);
  if (phase.timed == nullptr) return false;
  phase.timing = std::make_unique<Timing>(*facts_, phase.timed->run, phase.timed->plan);
  return true;
}

void Region::run_timed(Stack& stack, Phase& phase) {
  Timing& timing = *phase.timing;
  bool has_run = true;
  {
    const Timing::Current current(timing);
    if (timing.follows_plan()) {
      has_run = run_planned(stack, *phase.timed, timing.code());
    } else {
      torch::jit::InterpreterState(timing.code()).run(stack);
    }
  }
  if (has_run && !timing.is_done()) return;
  Candidate program{facts_, {phase.timed->run, phase.timed->plan}};
  for (std::size_t op = 0; has_run && op < program.made.run.ops.size(); ++op) {
    program.made.run.ops[op].duration_ns = timing.planned_durations_ns()[op];
  }
  if (has_run) phase.unplanned_ns = timing.unplanned_ns();
  phase.timing.reset();
  phase.timed.reset();
  allocator_of(phase.device).release_arena();  // as large as the program's plan needs
  if (!has_run) run_as_is(stack);
  plan_for_budget(phase, std::move(program));
}

/// Whether the next runs profile a graph that takes less: one in which ops run again.
bool Region::propose(Phase& phase, Candidate made) {
  const bool is_program = phase.fitting == nullptr;
  if (is_program) {
    phase.fitting =
        std::make_unique<Fitting>(phase.budget, std::move(made), phase.unplanned_ns, offload_bytes_per_s(phase.device));
  } else {
    phase.fitting->consider(std::move(made.made));
  }
  try {
    if (!phase.fitting->propose()) return false;
  } catch (const std::exception& failure) {
    note(fmt::format("cannot fit '{}' into its budget: {}; it goes on without", name_, first_line(failure.what())));
    return false;
  }
  if (is_program) {
    PlannedRun program = phase.fitting->best().made;
    program.run.key.rules = plan_rules();
    program.plan.budget.reset();
    program.plan.planning_ns = phase.planning_ns;
    program.plan.graph_text =
        planned_copy(*facts_, program.run, program.plan)->toString(/*print_source_locations=*/false);
    remember(program.run, program.plan);
  }
  phase.profiled_runs = 0;
  return true;
}

void Region::adopt(Phase& phase, std::optional<Candidate> made) {
  const auto begin = std::chrono::steady_clock::now();
  std::shared_ptr<Planned> planned = made ? make_planned(phase, std::move(*made), /*recalled=*/false) : nullptr;
  phase.fitting.reset();
  if (planned != nullptr) {
    planned->plan.planning_ns = phase.planning_ns + nanoseconds_since(begin);
    // Which values are copied, a stored run does not say.
    if (copied_bytes(planned->run) == 0) remember(planned->run, planned->plan);
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
std::shared_ptr<Planned> Region::make_planned(const Phase& phase, Candidate made, bool recalled) const {
  auto planned = std::make_shared<Planned>();
  planned->allocator = &allocator_of(phase.device);
  planned->run = std::move(made.made.run);
  planned->plan = std::move(made.made.plan);
  planned->recalled = recalled;
  const Run& run = planned->run;
  PlanRecord& plan = planned->plan;
  try {
    planned->facts = made.facts == nullptr ? facts_of(facts_, run) : std::move(made.facts);
    const std::size_t ops = planned->facts->ops.size();
    if (run.ops.size() != ops) {
      throw std::invalid_argument(fmt::format("the run has {} ops, the graph {}", run.ops.size(), ops));
    }
    if (const auto broken = solver::validate(to_problem(run), to_plan(run, plan))) throw std::invalid_argument(*broken);
    planned->table = to_slot_table(run, plan);
    planned->table_without_slots = without_slots(planned->table);
    std::vector<bool> may_end;
    for (const OuterUse& use : outer_uses_) {
      may_end.push_back(use.ends_here && (use.in_register || running_backward() != nullptr));
      planned->empties |= may_end.back();
    }
    const std::shared_ptr<Graph> copy = planned_copy(*planned->facts, run, plan, may_end);
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
  if (!is_met(run, plan)) {
    planned->over_budget = over_budget_text(run, plan);
    if (!stops_over_budget()) note(planned->over_budget + "; it goes on with that");
  }
  return planned;
}

}  // namespace stowage
