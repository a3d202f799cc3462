// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/problem.h"

namespace stowage::solver {

/// A tensor that leaves for host memory behind one use and is back before the next. What counts executions counts from
/// 0; at one place tensors are given up first, then copies out begin, then memory is allocated, then copies back end,
/// each in the order in which copies are listed.
struct Copy {
  std::int32_t tensor = 0;
  std::int32_t offload_after = 0;    ///< the execution behind which the copy out may begin
  std::int32_t offloaded_after = 0;  ///< behind which it has ended, and the memory is given up
  std::int32_t fetch_before = 0;     ///< before which memory is allocated again, and the copy back may begin
  std::int32_t arrive_before = 0;    ///< before which the copy back has ended

  bool operator==(const Copy&) const = default;
};

/// The link to host memory: a queue of copies each way, first come first served, beside the ops.
class Link {
 public:
  /// `problem` must outlive it; `bytes_per_s` is above 0.
  Link(const Problem& problem, std::int64_t bytes_per_s) : problem_(problem), bytes_per_s_(bytes_per_s) {}

  /// How long a tensor is on its way, in ns.
  std::int64_t copy_ns(std::int32_t tensor) const;

  /// Fills in where the memory of copies is given up and allocated again, the latter as late as there is no wait for
  /// the copy back, or as soon as it was given up. `copies` say where they are asked for and needed, sorted by the
  /// latter. Sets `time_ns` to what the step takes with all waits. Returns a copy whose tensor cannot be gone for a
  /// single execution; -1: none. Takes linear time, but for sorting the copies.
  std::int32_t schedule(const std::vector<std::int32_t>& executions, std::vector<Copy>& copies, std::int64_t& time_ns);

 private:
  void plan_fetches(const std::vector<std::int32_t>& executions, std::vector<Copy>& copies);

  const Problem& problem_;
  const std::int64_t bytes_per_s_;

  // Recycled from one call to the next.
  std::vector<std::int64_t> start_ns_;  ///< by execution: without waits
  std::vector<std::int32_t> leaving_;   ///< copies in the order in which they are asked for
  std::vector<std::int64_t> end_ns_;    ///< by copy: first of that out, then of that back
};

}  // namespace stowage::solver
