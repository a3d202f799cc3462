// SPDX-License-Identifier: Apache-2.0
#include "solver/explain.h"

#include <algorithm>

#include "solver/lifetimes.h"

namespace stowage::solver {

std::vector<Reason> explain_bound(const Problem& problem, const Dependencies& dependencies, const OrderBound& bound) {
  std::vector<Reason> reasons;
  if (bound.op < 0) return reasons;
  ClosureBlock block;
  find_closure(dependencies, bound.op, block);
  std::vector<Reason> reason_of(problem.tensors.size());
  const auto uses = find_uses(problem);
  for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
    for (const Event& event : problem.ops[op].events) {
      if (event.kind == Event::Kind::kAllocate) reason_of[event.tensor] = {.tensor = event.tensor, .made_by = op};
    }
    const bool runs_after = (block.after[op] & 1) != 0;
    for (const std::int32_t tensor : uses[op]) {
      std::int32_t& used_by = reason_of[tensor].used_by;
      if (op == bound.op || (runs_after && used_by == -1)) used_by = op;
    }
  }
  for (const std::int32_t tensor : bound.tensors) reasons.push_back(reason_of[tensor]);
  std::stable_sort(reasons.begin(), reasons.end(), [&](const Reason& left, const Reason& right) {
    return problem.tensors[left.tensor].size_bytes > problem.tensors[right.tensor].size_bytes;
  });
  return reasons;
}

}  // namespace stowage::solver
