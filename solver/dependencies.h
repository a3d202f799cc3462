// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/problem.h"

namespace stowage::solver {

/// What must run before what. An edge stands for read after write, write after read, write after write (an
/// allocation writes) or `after`; edges that others imply may be left out. Lists are sorted and hold no doubles.
struct Dependencies {
  std::vector<std::vector<std::int32_t>> predecessors;  ///< by op: earlier ops in program order
  std::vector<std::vector<std::int32_t>> successors;    ///< by op: later ops in program order
};

/// `problem` must be well formed.
Dependencies find_dependencies(const Problem& problem);

/// The part of the transitive closure that concerns 64 neighbouring ops: what a bit set per pair of ops would hold,
/// but in memory linear in the ops.
struct ClosureBlock {
  std::int32_t first_op = 0;
  /// By op: bit k is set if op `first_op + k` must run after it.
  std::vector<std::uint64_t> before;
  /// By op: bit k is set if op `first_op + k` must run before it.
  std::vector<std::uint64_t> after;
};

/// Takes time linear in the edges. Recycles the memory of `block`.
void find_closure(const Dependencies& dependencies, std::int32_t first_op, ClosureBlock& block);

}  // namespace stowage::solver
