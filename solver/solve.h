// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage::solver {

struct SolveOptions {
  /// Wall-clock limit for order and layout together.
  std::int64_t deadline_ms = 10'000;
  /// Limit on search steps, so that the same input gives the same plan on any machine.
  std::int64_t node_limit = 1'000'000;
  /// Memory that is there anyway. A layout that needs more is cut there, so that only what lies above it is needed
  /// besides. 0: none.
  std::int64_t spare_bytes = 0;
};

/// The moment `deadline_ms` from now; the end of time if that is too far away to tell.
std::chrono::steady_clock::time_point deadline_after(std::int64_t deadline_ms);

/// Plans a step: the best order found, then a layout for it. Program order is always a candidate, so the peak is
/// never above `program_peak_bytes`. Deterministic unless the deadline cuts the search short.
/// Throws `std::invalid_argument` for a problem that `check` refuses.
Plan solve(const Problem& problem, const SolveOptions& options = {});

}  // namespace stowage::solver
