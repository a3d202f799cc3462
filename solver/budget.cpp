// SPDX-License-Identifier: Apache-2.0
#include "solver/budget.h"

#include <algorithm>
#include <numeric>
#include <optional>
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

constexpr std::int64_t kMostStates = 100'000;

/// Less than the inputs and results of an op will not do, wherever all else may be.
std::int64_t find_least_with_copies(const Problem& problem) {
  const Makers makers(problem);
  std::int64_t persistent_bytes = 0;
  for (const Tensor& tensor : problem.tensors) persistent_bytes += tensor.persistent ? tensor.size_bytes : 0;
  const std::vector<InnerSums> inner_sums = find_inner_sums(problem);
  std::int64_t least_bytes = persistent_bytes;
  for (std::size_t op = 0; op < problem.ops.size(); ++op) {
    if (makers.is_view[op] != 0) continue;
    std::int64_t bytes = persistent_bytes + inner_sums[op].reusing_peak_bytes;
    for (const std::int32_t tensor : makers.inputs[op]) bytes += problem.tensors[tensor].size_bytes;
    least_bytes = std::max(least_bytes, bytes);
  }
  return least_bytes;
}

/// Bounds, and the search of all schedules where there are few.
class Proofs {
 public:
  Proofs(const Problem& problem, bool has_copies)
      : problem_(problem),
        has_copies_(has_copies),
        dependencies_(find_dependencies(problem)),
        bounds_(problem, dependencies_),
        bound_peak_bytes_(has_copies ? find_least_with_copies(problem) : bounds_.least_peak_bytes()) {}

  const TimeBounds& bounds() const { return bounds_; }

  /// Fills in what is proven about a schedule under this peak limit.
  void prove(Budgeted& budgeted, std::int64_t peak_limit_bytes) const {
    const bool is_met = budgeted.peak_bytes <= peak_limit_bytes;
    const std::int64_t reached_bytes = is_met ? peak_limit_bytes : budgeted.peak_bytes;
    budgeted.bound_peak_bytes = bound_peak_bytes_;
    budgeted.bound_time_ns = bounds_.find(has_copies_ ? kNoLimit : reached_bytes).time_ns;
    if (is_met) {
      budgeted.status = budgeted.time_ns == budgeted.bound_time_ns ? Status::kOptimal : Status::kFeasible;
    } else {
      budgeted.status = budgeted.bound_peak_bytes > peak_limit_bytes ? Status::kInfeasible : Status::kTimedOut;
    }
  }

  /// The schedule of least time; where the limit is proven too low, the one of least time with the least peak. Nothing
  /// where there are too many schedules, or copies, which it does not know.
  std::optional<Budgeted> search(std::int64_t peak_limit_bytes) const {
    if (has_copies_) return std::nullopt;
    ExactBudget exact = search_repeats(problem_, dependencies_, peak_limit_bytes, kMostStates);
    if (exact.status == Status::kTimedOut) return std::nullopt;
    const auto least_bytes = search_least_peak(problem_, dependencies_, kMostStates);
    if (!least_bytes) return std::nullopt;
    const bool is_met = exact.status == Status::kOptimal;
    if (!is_met) exact = search_repeats(problem_, dependencies_, *least_bytes, kMostStates);
    if (exact.status != Status::kOptimal) return std::nullopt;
    const Repeated repeated = repeat(problem_, exact.executions);
    std::vector<std::int32_t> order(repeated.op_of.size());
    std::iota(order.begin(), order.end(), 0);
    return Budgeted{.executions = repeated.op_of,
                    .copies = {},
                    .peak_bytes = play(repeated.problem, order).peak_bytes,
                    .time_ns = exact.time_ns,
                    .bound_time_ns = exact.time_ns,
                    .least_peak_bytes = *least_bytes,
                    .bound_peak_bytes = *least_bytes,
                    .status = is_met ? Status::kOptimal : Status::kInfeasible};
  }

 private:
  const Problem& problem_;
  const bool has_copies_;
  const Dependencies dependencies_;
  const TimeBounds bounds_;
  const std::int64_t bound_peak_bytes_;
};

/// All answers about a large problem come from one walk, so that they agree with one another: a smaller budget never
/// takes less time, nor has it a higher peak.
class TradeOff {
 public:
  TradeOff(const Problem& problem, const Proofs& proofs, const BudgetLimits& limits)
      : problem_(problem),
        proofs_(proofs),
        limits_(limits),
        order_(find_order(problem, {.deadline = limits.deadline}).ops) {
    Descent descent(problem, order_, limits);
    for (const Relaxed& relaxed : proofs.bounds().relax(descent.peak_op())) descent.try_relaxed(relaxed);
    points_ = descent.run();
  }

  /// Peaks fall, times rise.
  const std::vector<Point>& points() const { return points_; }

  /// What a point comes to when its executions are put into the best order, if it has no copies.
  Budgeted finish(const Point& point, std::int64_t peak_limit_bytes) const {
    Recomputation recomputation(problem_, order_, limits_);
    Recomputed built;
    recomputation.build(point.dropped, built);
    Budgeted budgeted;
    if (built.copies.empty()) {
      const Repeated repeated = repeat(problem_, built.executions);
      const Order best = find_order(repeated.problem, {.deadline = limits_.deadline, .node_limit = 100'000});
      for (const std::int32_t execution : best.ops) {
        budgeted.executions.push_back(repeated.op_of[execution]);
        budgeted.time_ns += problem_.ops[repeated.op_of[execution]].duration_ns;
      }
      budgeted.peak_bytes = best.peak_bytes;
    } else {
      Repeated repeated = repeat(problem_, built.executions, built.copies);
      budgeted.copies = std::move(repeated.copies);
      std::erase(repeated.op_of, kCopyPoint);
      budgeted.executions = std::move(repeated.op_of);
      // Copies are timed without views, which take next to no time; all the same, what they take is part of the step.
      budgeted.time_ns = built.time_ns;
      for (const std::int32_t op : budgeted.executions) budgeted.time_ns += problem_.ops[op].duration_ns;
      for (const std::int32_t op : built.executions) budgeted.time_ns -= problem_.ops[op].duration_ns;
      budgeted.peak_bytes = built.largest_bytes;
    }
    budgeted.least_peak_bytes = std::min(budgeted.peak_bytes, points_.back().peak_bytes);
    proofs_.prove(budgeted, peak_limit_bytes);
    return budgeted;
  }

 private:
  const Problem& problem_;
  const Proofs& proofs_;
  const BudgetLimits& limits_;
  const std::vector<std::int32_t> order_;
  std::vector<Point> points_;
};

}  // namespace

Budgeted fit(const Problem& problem, const BudgetLimits& limits) {
  check(problem);
  const Proofs proofs(problem, limits.copy_bytes_per_s > 0);
  const bool has_peak_limit = limits.peak_bytes != kNoLimit;
  if (has_peak_limit) {
    if (auto exact = proofs.search(limits.peak_bytes)) return *std::move(exact);
  }
  const TradeOff trade_off(problem, proofs, limits);
  const std::vector<Point>& points = trade_off.points();
  auto chosen = points.begin();
  if (has_peak_limit) {
    while (chosen + 1 != points.end() && chosen->peak_bytes > limits.peak_bytes) ++chosen;
    return trade_off.finish(*chosen, limits.peak_bytes);
  }
  while (chosen + 1 != points.end() && (chosen + 1)->time_ns <= limits.time_ns) ++chosen;
  Budgeted budgeted = trade_off.finish(*chosen, chosen->peak_bytes);
  // Views that are made again take a moment, too.
  while (budgeted.time_ns > limits.time_ns && chosen != points.begin()) {
    --chosen;
    budgeted = trade_off.finish(*chosen, chosen->peak_bytes);
  }
  return budgeted;
}

std::vector<Budgeted> find_trade_off(const Problem& problem, int points, const BudgetLimits& limits) {
  check(problem);
  const Proofs proofs(problem, limits.copy_bytes_per_s > 0);
  const TradeOff trade_off(problem, proofs, limits);
  const std::vector<Point>& all = trade_off.points();
  const std::int64_t most_bytes = all.front().peak_bytes;
  const std::int64_t range_bytes = most_bytes - all.back().peak_bytes;
  std::vector<Budgeted> rows;
  auto chosen = all.begin();
  for (int point = 0; point < points; ++point) {
    const std::int64_t limit_bytes = most_bytes - range_bytes / std::max(points - 1, 1) * point;
    while (chosen + 1 != all.end() && chosen->peak_bytes > limit_bytes) ++chosen;
    Budgeted row = trade_off.finish(*chosen, chosen->peak_bytes);
    // The order of one with copies is not improved, that of one before it may have been.
    const bool is_worse = !row.copies.empty() && !rows.empty() && row.peak_bytes > rows.back().peak_bytes;
    rows.push_back(is_worse ? rows.back() : std::move(row));
  }
  return rows;
}

}  // namespace stowage::solver
