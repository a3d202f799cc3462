// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "solver/budget.h"
#include "solver/copies.h"
#include "solver/lifetimes.h"
#include "solver/problem.h"

namespace stowage::solver {

/// Which tensors are given up between two of their uses, to be made again when they are needed, or copied out and back.
/// By tensor; of tensors that the order does not use again, whether they are given up after their last use, as they are
/// without repeats.
using Dropped = std::vector<char>;

// What `Dropped` says of a tensor.
inline constexpr char kKept = 0;
inline constexpr char kDropped = 1;
inline constexpr char kCopied = 2;

/// What a choice of tensors makes of a step.
struct Recomputed {
  std::vector<std::int32_t> executions;  ///< op ids, an id again where its op runs again; views are left out
  std::vector<std::int64_t> peak_bytes;  ///< by execution: the largest live sum while it runs
  std::int64_t largest_bytes = 0;        ///< of those
  std::int64_t time_ns = 0;              ///< of all executions together, and of waits for copies
  std::vector<Copy> copies;              ///< in the order in which they are needed
  /// A tensor that would have to be made again after something that its ops take was written, or that is needed before
  /// it is copied; -1: none, all is well.
  std::int32_t conflict = -1;
};

/// Builds the schedules of a step in which ops run again: in a given order, each repeat just before the first op that
/// needs what it makes, which then stays until its last use. What has been copied out comes back for the first op that
/// needs it, and stays too.
class Recomputation {
 public:
  /// `problem` must be well formed and outlive it, `order` be a permutation of its ops that keeps the dependencies.
  /// Of `limits`, what they say of copies counts.
  Recomputation(const Problem& problem, const std::vector<std::int32_t>& order, const BudgetLimits& limits);

  /// Nothing given up that is used again.
  const Dropped& nothing_dropped() const { return nothing_dropped_; }
  /// Tensors that may be given up although they are used again.
  const std::vector<std::int32_t>& droppable() const { return droppable_; }
  /// Tensors that may be copied out although they are used again: none where there are no copies.
  const std::vector<std::int32_t>& copyable() const { return copyable_; }
  /// Tensors that may be kept although the order does not use them again: repeats may.
  const std::vector<std::int32_t>& keepable() const { return keepable_; }
  /// The durations of the ops that make a tensor.
  std::int64_t making_ns(std::int32_t tensor) const { return making_ns_[tensor]; }
  /// How many ops run between the two uses between which a tensor may be given up.
  std::int32_t gap(std::int32_t tensor) const { return gap_[tensor]; }

  /// Takes time linear in the ops and their uses. Recycles the memory of `built`.
  void build(const Dropped& dropped, Recomputed& built);

 private:
  bool demand(std::int32_t tensor, std::int32_t place, Recomputed& built);
  void execute(std::int32_t op, Recomputed& built);
  void come_back(std::int32_t tensor);
  void schedule_copies(Recomputed& built);
  void measure(Recomputed& built);

  const Problem& problem_;
  std::vector<InnerSums> inner_sums_;              ///< by op
  std::vector<std::int32_t> order_;                ///< without views
  std::vector<std::vector<std::int32_t>> needs_;   ///< by op: what must be there, neither persistent nor its own
  std::vector<std::vector<std::int32_t>> makes_;   ///< by op: what it allocates and leaves
  std::vector<std::vector<std::int32_t>> makers_;  ///< by tensor: its allocating op and all that write it later
  std::vector<std::vector<std::int32_t>> ends_;    ///< by place in the order: tensors that are given up there
  std::vector<std::int32_t> makeable_until_;       ///< by tensor: place from which it cannot be made again
  std::vector<std::int64_t> making_ns_;            ///< by tensor
  std::vector<std::int32_t> gap_;                  ///< by tensor
  std::vector<std::int32_t> droppable_;
  std::vector<std::int32_t> keepable_;
  std::vector<std::int32_t> copyable_;
  std::optional<Link> link_;
  Dropped nothing_dropped_;
  std::int64_t persistent_bytes_ = 0;

  // Of the build that is going on.
  std::vector<char> is_there_;             ///< by tensor
  std::vector<std::int32_t> instance_;     ///< by tensor: the latest that was made
  std::vector<std::int32_t> tensor_of_;    ///< by instance
  std::vector<std::int32_t> last_use_;     ///< by instance: an execution; -1: none
  std::vector<std::int32_t> left_;         ///< by tensor: the instance that is copied out; -1: none
  std::vector<std::int32_t> came_;         ///< by tensor: the instance that came back and is the latest; -1: none
  std::vector<std::int32_t> used_;         ///< instances that executions need, one after the other
  std::vector<std::size_t> used_end_;      ///< by execution: where its part of them ends
  std::vector<std::int32_t> dying_next_;   ///< by instance: the next that has the same last use
  std::vector<std::int32_t> dying_first_;  ///< by execution
};

}  // namespace stowage::solver
