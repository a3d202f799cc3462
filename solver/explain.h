// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/bound.h"
#include "solver/dependencies.h"
#include "solver/problem.h"

namespace stowage::solver {

/// Why a tensor lives while the op runs at which a bound is met.
struct Reason {
  std::int32_t tensor = 0;
  /// The op that allocates it and must run before; the op of the bound itself if it makes the tensor.
  std::int32_t made_by = 0;
  /// An op that uses it and must run after, or the op of the bound itself; -1 for an output of the step.
  std::int32_t used_by = -1;

  bool operator==(const Reason&) const = default;
};

/// The facts that prove `bound`, which `find_order_bound` found, largest tensors first; persistent tensors live anyhow.
std::vector<Reason> explain_bound(const Problem& problem, const Dependencies& dependencies, const OrderBound& bound);

}  // namespace stowage::solver
