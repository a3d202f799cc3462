// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "solver/copies.h"
#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage::solver {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// What a step must fit in, and what that may cost.
struct BudgetLimits {
  /// The peak must not be above this.
  std::int64_t peak_bytes = kNoLimit;
  /// The ops' durations and the waits for copies together must not be above this.
  std::int64_t time_ns = kNoLimit;
  /// What a link to host memory carries each way, beside the ops; 0: no copies, ops run again only.
  std::int64_t copy_bytes_per_s = 0;
  /// Tensors that are not copied.
  std::vector<std::int32_t> uncopyable;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// How many ops the search may place, all schedules that it looks at together.
  std::int64_t node_limit = 400'000'000;
};

/// A step in which ops run again instead of keeping what they made, or tensors are copied to host memory and back.
struct Budgeted {
  /// Op ids in the order in which they run, an id again where its op runs again: what `repeat` takes.
  std::vector<std::int32_t> executions;
  /// In the order in which they are needed; with `executions` also what `repeat` takes. The executions then stay in
  /// their order: copies are timed for it.
  std::vector<Copy> copies;
  std::int64_t peak_bytes = 0;  ///< largest live sum, persistent and external tensors included
  std::int64_t time_ns = 0;     ///< of all executions together, and of waits for copies
  /// No schedule with this peak limit, in whichever order, takes less time. Where there may be copies, this is the time
  /// of all ops, each once, since copies may take none.
  std::int64_t bound_time_ns = 0;
  /// The least peak of all schedules that were found, however long they take.
  std::int64_t least_peak_bytes = 0;
  /// No schedule has a lower peak, whatever it repeats or copies.
  std::int64_t bound_peak_bytes = 0;
  /// Of the time at this peak limit: optimal if it equals its bound. Infeasible or timed out where the limit is not
  /// met, proven or not; the schedule is then the one with the least peak that was found.
  Status status = Status::kFeasible;
};

/// The schedule of least time within `limits.peak_bytes`; where that is no limit, the one of least peak within
/// `limits.time_ns`. Ops run again as late as they can. `problem` must be well formed. Deterministic unless the
/// deadline cuts it short.
Budgeted fit(const Problem& problem, const BudgetLimits& limits);

/// The trade-off: a schedule for each of `points` peak limits, evenly from the peak without repeats to the least that
/// was found, in this order: peaks never rise, times never fall.
std::vector<Budgeted> find_trade_off(const Problem& problem, int points, const BudgetLimits& limits);

}  // namespace stowage::solver
