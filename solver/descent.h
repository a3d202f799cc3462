// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "solver/budget.h"
#include "solver/moment.h"
#include "solver/problem.h"
#include "solver/recompute.h"

namespace stowage::solver {

/// A choice and what it comes to.
struct Point {
  Dropped dropped;
  std::int64_t peak_bytes = 0;
  std::int64_t time_ns = 0;
};

/// Walks down from the peak without repeats, one limit after the other, and up again. At each, tensors are given up,
/// those first that take most off what is above the limit for the time it costs to make them again or to copy them out
/// and back, until the limit holds; then some are taken back and others tried, while that saves time. Every schedule on
/// the way is a point of the trade-off; on the way up, each limit begins with what the lower one came to.
class Descent {
 public:
  /// `problem` must be well formed; all must outlive it. `order` is where the step's own executions stay.
  Descent(const Problem& problem, const std::vector<std::int32_t>& order, const BudgetLimits& limits);

  /// The op that runs when most is live, without repeats.
  std::int32_t peak_op() const { return peak_op_; }
  /// Enters what is best where one moment counts alone, if it holds for the whole step.
  void try_relaxed(const Relaxed& relaxed);
  /// The trade-off: peaks fall, times rise. The first is without repeats.
  std::vector<Point> run();

 private:
  /// Something that may be done with a tensor, or not.
  struct Choice {
    std::int32_t tensor = 0;
    char value = kDropped;  ///< in `Dropped`
  };
  struct Score {
    double gain = 0;          ///< bytes above the limit taken off, summed over executions, for each nanosecond
    std::int32_t choice = 0;  ///< of `choices_`
    std::int64_t epoch = -1;  ///< of the state that it was measured in

    bool operator<(const Score& other) const { return gain != other.gain ? gain < other.gain : choice > other.choice; }
  };

  bool is_over() const;
  bool measure(Point& point);
  bool descend(std::int64_t limit_bytes);
  void take(Point& point);
  void improve(std::int64_t limit_bytes, std::int64_t node_limit);
  void go_to(std::int64_t limit_bytes);
  static void turn(Dropped& dropped, const Choice& choice);
  bool try_flip(const Choice& choice, std::int64_t limit_bytes);
  void perturb(std::int64_t limit_bytes);
  void record();

  const BudgetLimits& limits_;
  const std::int64_t node_limit_;  ///< ops that may be placed
  Recomputation recomputation_;
  std::vector<Choice> choices_;  ///< those that give a tensor up before a use of its order first
  std::int32_t giving_up_ = 0;   ///< how many of them do
  Recomputed built_;
  Point now_;
  std::vector<std::int64_t> peaks_;  ///< by execution of `now_`
  std::vector<Point> frontier_;      ///< peaks fall, times rise
  std::vector<double> gain_of_;      ///< by choice: as measured last
  std::int32_t peak_op_ = -1;
  std::int64_t epoch_ = 0;
  std::int64_t placed_ = 0;
  std::mt19937 random_;  // NOLINT(cert-msc51-cpp): the same input gives the same plan
};

}  // namespace stowage::solver
