// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "solver/bound.h"
#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage::solver {

/// An op order with the proof of how good it is.
struct Order {
  std::vector<std::int32_t> ops;  ///< op ids in execution order
  std::int64_t peak_bytes = 0;
  std::int64_t program_peak_bytes = 0;
  OrderBound bound;
  Status status = Status::kFeasible;  ///< optimal or feasible
};

struct OrderLimits {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// How many ops the improvement may place, all tries together, and how many the exact search may look at.
  std::int64_t node_limit = 1'000'000;
};

/// The best of the program order, a portfolio of list schedules, what improvement makes of them, and what an exact
/// search finds below that. Stops as soon as the peak is proven lowest. `problem` must be well formed.
Order find_order(const Problem& problem, const OrderLimits& limits = {});

}  // namespace stowage::solver
