// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/dependencies.h"
#include "solver/lifetimes.h"
#include "solver/problem.h"

namespace stowage::solver {

/// From which end an order is built. Backwards, a tensor is born at its last use and dies at its allocation, so
/// what is cheap to put off becomes visible.
enum class Direction : std::uint8_t { kForward, kBackward };

/// Which of the ready ops runs next. Ties go to the reference order.
enum class Rule : std::uint8_t {
  kReleaseFirst,    ///< the op that shrinks memory most; if none shrinks it, the reference order decides
  kAnyRelease,      ///< any op that does not grow memory, else any other: the reference order decides among equals
  kSmallestGrowth,  ///< the op after which least is live
};

/// Builds orders by taking one ready op after the other.
class ListScheduler {
 public:
  /// `dependencies` must outlive it.
  ListScheduler(const Problem& problem, const Dependencies& dependencies);

  /// An order that keeps the dependencies. An op whose own peak is above `limit_bytes` waits as long as others fit.
  /// `reference` is a permutation of the ops. Takes time n log n in ops and uses.
  std::vector<std::int32_t> schedule(Direction direction, Rule rule, const std::vector<std::int32_t>& reference,
                                     std::int64_t limit_bytes) const;

 private:
  friend class ScheduleState;

  const Dependencies& dependencies_;
  std::vector<std::int64_t> size_bytes_;             ///< by tensor
  std::vector<std::vector<std::int32_t>> uses_;      ///< by op: `find_uses`
  std::vector<std::vector<std::int32_t>> users_;     ///< by tensor: ops that have it among their uses
  std::vector<std::vector<std::int32_t>> reusable_;  ///< by op: inputs whose memory its output may take
  std::vector<InnerSums> inner_sums_;                ///< by op
  std::int64_t persistent_bytes_ = 0;
  std::int64_t output_bytes_ = 0;
};

}  // namespace stowage::solver
