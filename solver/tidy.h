// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/dependencies.h"
#include "solver/lifetimes.h"
#include "solver/problem.h"

namespace stowage::solver {

/// The same order, made easy to read where memory does not care: an op that nothing waits for (a weight update) runs
/// as soon as what it needs is there, with its chain; any other op that neither keeps nor frees memory (a view, a size)
/// runs right before the first op that needs it. Ops that keep or free memory stay in their order. The result keeps the
/// dependencies; its peak may be higher, which is for the caller to see. `timeline` is what `play` says of `order`.
std::vector<std::int32_t> tidy(const Problem& problem, const Dependencies& dependencies,
                               const std::vector<std::int32_t>& order, const Timeline& timeline);

}  // namespace stowage::solver
