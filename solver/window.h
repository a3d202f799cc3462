// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/problem.h"

namespace stowage::solver {

/// The stretch `[begin, end)` of an order as a problem of its own: what lives through it is persistent, what it leaves
/// behind is an output, and op 0, named "before", makes what it takes from earlier ops and uses up. Its other ops are
/// those of the stretch, in their present order. An order of the whole problem with this stretch replaced by a
/// better one keeps the dependencies and is nowhere worse.
Problem cut_window(const Problem& problem, const std::vector<std::int32_t>& order, std::int32_t begin,
                   std::int32_t end);

/// `order` with the stretch from `begin` on as `window_order`, an order of its problem, has it.
std::vector<std::int32_t> paste_window(const std::vector<std::int32_t>& order, std::int32_t begin,
                                       const std::vector<std::int32_t>& window_order);

}  // namespace stowage::solver
