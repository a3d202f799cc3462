// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/dependencies.h"
#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage::solver {

/// A peak that no order can avoid.
struct OrderBound {
  std::int64_t bytes = 0;
  /// The op during which it is met; -1 if the persistent tensors alone make it, or a search found it.
  std::int32_t op = -1;
  /// The tensors that must live at that moment, in tensor order, persistent ones left out.
  std::vector<std::int32_t> tensors;
  Proof proof = Proof::kMustLive;
};

/// Must-live bound: while op v runs, a tensor surely lives if v uses it, or if its allocating op must run before v and
/// some use must run after v (an output: if its allocating op must run before v). v's own events come on top, one after
/// the other, but not an output that may reuse an input. The largest such sum over all v is a lower bound of the peak
/// of every order. Takes time proportional to ops x edges / 64, in linear memory.
OrderBound find_order_bound(const Problem& problem, const Dependencies& dependencies);

/// Raises the bound by contradiction. `order` has peak U, met at op v. Suppose some order stays below
/// U. A tensor is dead at v in it only if all its users run before v or its allocating op after v; where the must-live
/// sum of an op concerned then reaches U, this is impossible, and the tensor lives at v, or an op must run before or
/// after v. What v needs with all this known is a bound, or U itself if that is reached. Probes only the largest
/// tensors.
OrderBound sharpen_order_bound(const Problem& problem, const Dependencies& dependencies,
                               const std::vector<std::int32_t>& order, const OrderBound& known);

}  // namespace stowage::solver
