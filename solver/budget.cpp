// SPDX-License-Identifier: Apache-2.0
#include "solver/budget.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "solver/dependencies.h"
#include "solver/descent.h"
#include "solver/exact_budget.h"
#include "solver/lifetimes.h"
#include "solver/order.h"
#include "solver/repeat.h"
#include "solver/time_bound.h"

namespace stowage::solver {
namespace {

/// All answers about a problem come from one walk, so that they agree with one another: a smaller budget never takes
/// less time, nor has it a higher peak.
class TradeOff {
 public:
  TradeOff(const Problem& problem, const BudgetLimits& limits)
      : problem_(problem),
        limits_(limits),
        dependencies_(find_dependencies(problem)),
        bounds_(problem, dependencies_),
        order_(find_order(problem, {.deadline = limits.deadline}).ops) {
    Descent descent(problem, order_, limits);
    for (const Relaxed& relaxed : bounds_.relax(descent.peak_op())) descent.try_relaxed(relaxed);
    points_ = descent.run();
  }

  /// Peaks fall, times rise.
  const std::vector<Point>& points() const { return points_; }

  /// Looks at all schedules, where there are few: the one of least time within the limit, or the proof that there is
  /// none.
  void search(Budgeted& budgeted, std::int64_t peak_limit_bytes) const {
    const ExactBudget exact = search_repeats(problem_, dependencies_, peak_limit_bytes, kMostStates);
    if (exact.status == Status::kTimedOut) return;
    if (exact.status == Status::kInfeasible) {
      const auto least_bytes = search_least_peak(problem_, dependencies_, kMostStates);
      budgeted.bound_peak_bytes = std::max(budgeted.bound_peak_bytes, least_bytes.value_or(peak_limit_bytes + 1));
      const std::int64_t reached_bytes = budgeted.bound_peak_bytes;
      const ExactBudget least = search_repeats(problem_, dependencies_, reached_bytes, kMostStates);
      if (least.status == Status::kOptimal && reached_bytes < budgeted.peak_bytes) take(budgeted, least);
      budgeted.least_peak_bytes = std::min(budgeted.least_peak_bytes, budgeted.peak_bytes);
      budgeted.status = Status::kInfeasible;
      return;
    }
    if (exact.time_ns < budgeted.time_ns || budgeted.peak_bytes > peak_limit_bytes) take(budgeted, exact);
    budgeted.bound_time_ns = exact.time_ns;
    budgeted.status = Status::kOptimal;
  }

  /// What a point comes to when its executions are put into the best order.
  Budgeted finish(const Point& point, std::int64_t peak_limit_bytes) const {
    Recomputation recomputation(problem_, order_);
    Recomputed built;
    recomputation.build(point.dropped, built);
    const Repeated repeated = repeat(problem_, built.executions);
    const Order best = find_order(repeated.problem, {.deadline = limits_.deadline, .node_limit = 100'000});
    Budgeted budgeted;
    for (const std::int32_t execution : best.ops) {
      budgeted.executions.push_back(repeated.op_of[execution]);
      budgeted.time_ns += problem_.ops[repeated.op_of[execution]].duration_ns;
    }
    budgeted.peak_bytes = best.peak_bytes;
    budgeted.least_peak_bytes = std::min(best.peak_bytes, points_.back().peak_bytes);
    budgeted.bound_peak_bytes = bounds_.least_peak_bytes();
    const bool is_met = budgeted.peak_bytes <= peak_limit_bytes;
    const TimeBound bound = bounds_.find(is_met ? peak_limit_bytes : budgeted.peak_bytes);
    budgeted.bound_time_ns = bound.time_ns;
    if (is_met) {
      budgeted.status = budgeted.time_ns == bound.time_ns ? Status::kOptimal : Status::kFeasible;
    } else {
      budgeted.status = budgeted.bound_peak_bytes > peak_limit_bytes ? Status::kInfeasible : Status::kTimedOut;
    }
    return budgeted;
  }

 private:
  static constexpr std::int64_t kMostStates = 100'000;

  void take(Budgeted& budgeted, const ExactBudget& exact) const {
    const Repeated repeated = repeat(problem_, exact.executions);
    std::vector<std::int32_t> order(repeated.op_of.size());
    std::iota(order.begin(), order.end(), 0);
    budgeted.executions = repeated.op_of;
    budgeted.time_ns = exact.time_ns;
    budgeted.peak_bytes = play(repeated.problem, order).peak_bytes;
  }

  const Problem& problem_;
  const BudgetLimits& limits_;
  const Dependencies dependencies_;
  const TimeBounds bounds_;
  const std::vector<std::int32_t> order_;
  std::vector<Point> points_;
};

}  // namespace

Budgeted fit(const Problem& problem, const BudgetLimits& limits) {
  check(problem);
  const TradeOff trade_off(problem, limits);
  const std::vector<Point>& points = trade_off.points();
  auto chosen = points.begin();
  if (limits.peak_bytes != kNoLimit) {
    while (chosen + 1 != points.end() && chosen->peak_bytes > limits.peak_bytes) ++chosen;
    Budgeted budgeted = trade_off.finish(*chosen, limits.peak_bytes);
    if (budgeted.status != Status::kOptimal) trade_off.search(budgeted, limits.peak_bytes);
    return budgeted;
  }
  while (chosen + 1 != points.end() && (chosen + 1)->time_ns <= limits.time_ns) ++chosen;
  return trade_off.finish(*chosen, chosen->peak_bytes);
}

std::vector<Budgeted> find_trade_off(const Problem& problem, int points, const BudgetLimits& limits) {
  check(problem);
  const TradeOff trade_off(problem, limits);
  const std::vector<Point>& all = trade_off.points();
  const std::int64_t most_bytes = all.front().peak_bytes;
  const std::int64_t range_bytes = most_bytes - all.back().peak_bytes;
  std::vector<Budgeted> rows;
  auto chosen = all.begin();
  for (int point = 0; point < points; ++point) {
    const std::int64_t limit_bytes = most_bytes - range_bytes / std::max(points - 1, 1) * point;
    while (chosen + 1 != all.end() && chosen->peak_bytes > limit_bytes) ++chosen;
    rows.push_back(trade_off.finish(*chosen, chosen->peak_bytes));
  }
  return rows;
}

}  // namespace stowage::solver
