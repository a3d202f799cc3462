// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/dependencies.h"
#include "solver/moment.h"
#include "solver/problem.h"

namespace stowage::solver {

/// What no schedule with a peak limit can do without.
struct TimeBound {
  std::int64_t time_ns = 0;    ///< of all executions together
  std::int32_t op = -1;        ///< when it runs first, more lives than fits; -1: no repeats are needed, as far as known
  bool is_infeasible = false;  ///< proven: no schedule stays below the limit, whatever it repeats

  bool operator==(const TimeBound&) const = default;
};

/// Bounds for all schedules in which ops may run again: the first executions keep the dependencies, repeats are those
/// that `repeat` takes, and outputs are made once. They come from the moments at which ops run the first time.
class TimeBounds {
 public:
  /// `problem` must be well formed; both must outlive it. Takes time proportional to ops x edges / 64.
  TimeBounds(const Problem& problem, const Dependencies& dependencies);

  /// No schedule has a lower peak, in bytes: the least that lives at some moment.
  std::int64_t least_peak_bytes() const { return least_peak_bytes_; }
  /// No schedule with this peak limit takes less time: Lagrangian relaxation of the limit at some moments, those at
  /// which most lives. In whole numbers throughout, so that rounding cannot spoil the proof.
  TimeBound find(std::int64_t peak_bytes) const;
  /// The choices at an op's moment for all prices of a byte, from the least bytes to the least time: corners of the
  /// convex hull, with fewer of them than `most` all that there are.
  std::vector<Relaxed> relax(std::int32_t op, std::size_t most = 64) const;

 private:
  /// What surely lives when an op runs the first time, in bytes.
  struct Sums {
    std::int64_t needed = 0;  ///< if nothing is made again
    std::int64_t pinned = 0;  ///< of it, what cannot be made again, and what the op itself needs
  };

  void find_least_peak();
  void add_live(const ClosureBlock& block);
  Moment moment(std::int32_t op) const { return {problem_, dependencies_, makers_, op}; }
  std::vector<std::int32_t> find_moments(std::int64_t Sums::*sum, std::int64_t above_bytes) const;

  const Problem& problem_;
  const Dependencies& dependencies_;
  const Makers makers_;
  std::vector<Sums> sums_;    ///< by op; views have none
  std::int64_t time_ns_ = 0;  ///< of all ops, each once
  std::int64_t persistent_bytes_ = 0;
  std::int64_t least_peak_bytes_ = 0;
  std::int32_t least_peak_op_ = -1;
};

}  // namespace stowage::solver
