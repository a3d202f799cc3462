// SPDX-License-Identifier: Apache-2.0
#include "plugin/fitting.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "plugin/bridge.h"
#include "plugin/options.h"
#include "plugin/repeat.h"
#include "solver/budget.h"
#include "solver/repeat.h"
#include "solver/solve.h"

namespace stowage {
namespace {

/// A layout may need more than its order's peak: so often the peak is lowered by the difference.
constexpr int kMostProposals = 3;

solver::Budgeted fit_both(const solver::Problem& problem, solver::BudgetLimits limits) {
  solver::Budgeted fitted = solver::fit(problem, limits);
  if (fitted.time_ns <= limits.time_ns) return fitted;
  limits.peak_bytes = solver::kNoLimit;
  return solver::fit(problem, limits);
}

}  // namespace

std::shared_ptr<const GraphFacts> facts_of(const std::shared_ptr<const GraphFacts>& program, const profiler::Run& run) {
  std::vector<std::int32_t> executions;
  for (const profiler::OpRecord& op : run.ops) executions.push_back(op.program_op);
  if (std::all_of(executions.begin(), executions.end(), [](std::int32_t op) { return op == profiler::kNone; })) {
    return program;
  }
  for (const std::int32_t op : executions) {
    if (op < 0 || std::cmp_greater_equal(op, program->ops.size())) {
      throw std::invalid_argument("its ops are not those of the program");
    }
  }
  return std::make_shared<const GraphFacts>(read_facts(repeated_graph(*program, executions)));
}

Fitting::Fitting(const Budget& budget, Candidate program, std::int64_t unplanned_ns, std::int64_t link_bytes_per_s)
    : problem_(to_problem(program.made.run)),
      program_(program.facts),
      budget_(to_record(budget, program.made.plan.program_peak_bytes, unplanned_ns)),
      best_(std::move(program)),
      peak_limit_bytes_(budget_.limit_bytes),
      copyable_(copyable_values(*program_, best_.made.run)),
      link_bytes_per_s_(link_bytes_per_s) {
  budget_.predicted_ns = budget_.bound_ns = ops_ns(best_.made.run);
  budget_.status = solver::to_string(solver::Status::kOptimal);
  best_.made.plan.budget = budget_;
}

bool Fitting::needs_less() const {
  const bool has_what_time_allows = budget_.limit_bytes == 0 && proposals_ > 0;
  return !has_what_time_allows && stowage::needs_less(budget_, best_.made.run, best_.made.plan);
}

std::vector<Execution> Fitting::executions_of(const solver::Budgeted& fitted) const {
  const solver::Repeated repeated = solver::repeat(problem_, fitted.executions, fitted.copies);
  std::vector<Execution> executions;
  for (std::size_t op = 0; op < repeated.op_of.size(); ++op) {
    if (repeated.op_of[op] != solver::kCopyPoint) {
      executions.push_back({.op = repeated.op_of[op]});
      continue;
    }
    const solver::Op& point = repeated.problem.ops[op];
    const std::int32_t copied = point.reads.empty() ? point.events.front().tensor : point.reads.front();
    const std::int32_t tensor = repeated.tensor_of[static_cast<std::size_t>(copied)];
    const OpOutput& value = copyable_[static_cast<std::size_t>(tensor)].value();
    executions.push_back({.op = value.op, .point = point.kind, .output = value.output});
  }
  return executions;
}

bool Fitting::propose() {
  if (!needs_less() || proposals_ == kMostProposals) return false;
  const profiler::PlanRecord& plan = best_.made.plan;
  if (budget_.limit_bytes > 0 && plan.peak_bytes <= peak_limit_bytes_) {
    peak_limit_bytes_ -= needed_bytes(best_.made.run, plan) - budget_.limit_bytes;
  } else if (proposals_ > 0) {
    return false;  // not for its layout
  }
  solver::BudgetLimits limits;
  if (budget_.limit_bytes > 0) limits.peak_bytes = std::max<std::int64_t>(peak_limit_bytes_, 1);
  if (budget_.limit_ns > 0) limits.time_ns = budget_.limit_ns;
  limits.deadline = solver::deadline_after(options().deadline_ms);
  limits.copy_bytes_per_s = link_bytes_per_s_;
  for (std::int32_t tensor = 0; tensor < std::ssize(copyable_); ++tensor) {
    if (!copyable_[static_cast<std::size_t>(tensor)]) limits.uncopyable.push_back(tensor);
  }
  const solver::Budgeted fitted = fit_both(problem_, limits);
  budget_.predicted_ns = fitted.time_ns;
  if (proposals_++ == 0) {
    budget_.bound_ns = fitted.bound_time_ns;
    budget_.bound_peak_bytes = fitted.bound_peak_bytes;
  }
  budget_.status = solver::to_string(fitted.status);
  profiler::BudgetRecord& kept = *best_.made.plan.budget;
  kept.bound_ns = std::min(budget_.bound_ns, kept.predicted_ns);
  kept.bound_peak_bytes = budget_.bound_peak_bytes;
  kept.status = budget_.status;

  std::vector<Execution> executions = executions_of(fitted);
  if (executions.size() == problem_.ops.size() || executions == executions_) return false;
  executions_ = std::move(executions);
  facts_ = std::make_shared<const GraphFacts>(read_facts(repeated_graph_with_copies(*program_, executions_)));
  profiler_ = std::make_unique<Profiler>(*facts_);
  return true;
}

void Fitting::label(profiler::Run& run) const {
  for (std::size_t op = 0; op < run.ops.size(); ++op) {
    if (executions_[op].point.empty()) run.ops[op].program_op = executions_[op].op;
  }
  run.graph_text = facts_->graph->toString(/*print_source_locations=*/false);
}

void Fitting::consider(profiler::PlannedRun made) {
  made.plan.budget = budget_;
  const auto rank = [](const profiler::PlannedRun& of) {
    return std::pair(!is_met(of.run, of.plan), needed_bytes(of.run, of.plan));
  };
  if (rank(made) < rank(best_.made)) best_ = {facts_, std::move(made)};
}

}  // namespace stowage
