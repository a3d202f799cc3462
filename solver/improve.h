// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/dependencies.h"
#include "solver/lifetimes.h"
#include "solver/problem.h"

namespace stowage::solver {

/// Orders that relieve the peak of `order`, each by one move: for a tensor that lives through the peak without the peak
/// op needing it, its late users (and what they need) run before the peak, or its allocating op (and what needs it)
/// runs after. At most `max_moves`, largest tensors first. `timeline` is what `play` says of `order`.
std::vector<std::vector<std::int32_t>> find_relieving_orders(const Problem& problem, const Dependencies& dependencies,
                                                             const std::vector<std::int32_t>& order,
                                                             const Timeline& timeline, std::size_t max_moves);

}  // namespace stowage::solver
