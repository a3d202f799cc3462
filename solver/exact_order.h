// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/dependencies.h"
#include "solver/order.h"
#include "solver/problem.h"

namespace stowage::solver {

/// What the search found out.
struct ExactOrder {
  std::vector<std::int32_t> ops;  ///< the best order found below the peak asked for; empty if there is none
  bool is_proven = false;         ///< no order has a lower peak than that of `ops` or, if empty, the one asked for
};

/// Searches all orders with a peak below `below_bytes`, and ever lower ones, until it reaches `bound_bytes`, has ruled
/// out the rest, or meets a limit. What counts is which ops have run, not in which order: a set that failed is never
/// entered again (Held and Karp 1962). An op that fits and does not grow memory runs at once: sums of live sizes are
/// submodular, so it would never run better later. Where one op must run between all others, the search has failed as
/// soon as what comes behind it has.
/// `limits.node_limit` counts ops looked at; the sets take at most 64 MiB.
ExactOrder search_orders(const Problem& problem, const Dependencies& dependencies, std::int64_t below_bytes,
                         std::int64_t bound_bytes, const OrderLimits& limits);

}  // namespace stowage::solver
