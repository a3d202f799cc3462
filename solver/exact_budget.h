// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "solver/dependencies.h"
#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage::solver {

/// What the search found out.
struct ExactBudget {
  /// As in `Budgeted`; empty without an answer.
  std::vector<std::int32_t> executions;
  std::int64_t time_ns = 0;  ///< of all executions together
  /// Optimal, infeasible, or timed out: the nodes did not suffice, or there is too much to tell states apart.
  Status status = Status::kTimedOut;
};

/// Searches all schedules in which ops may run again, in whichever order, for the one of least time with a peak of at
/// most `peak_bytes`. The first executions keep the dependencies, repeats are those that `repeat` takes, and outputs
/// are made once. What counts is which ops have run and which tensors live, not how that came about (Dijkstra 1959):
/// the less has been repeated, the earlier a state is left. Tensors are given up only where an op would not fit
/// otherwise, and no more of them than needed; a state is worth nothing if another in which the same ops have run holds
/// all that it holds. Writes in place are followed: a tensor is another one after each.
/// For small problems: at most 64 ops, and 64 tensors, counted again after each write in place. `node_limit` counts
/// states. `problem` must be well formed.
ExactBudget search_repeats(const Problem& problem, const Dependencies& dependencies, std::int64_t peak_bytes,
                           std::int64_t node_limit = 1'000'000);

/// The lowest peak of all those schedules, however long they take; nothing if the nodes do not suffice for the proof.
std::optional<std::int64_t> search_least_peak(const Problem& problem, const Dependencies& dependencies,
                                              std::int64_t node_limit = 1'000'000);

}  // namespace stowage::solver
