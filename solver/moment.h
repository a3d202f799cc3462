// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/dependencies.h"
#include "solver/min_cut.h"
#include "solver/problem.h"

namespace stowage::solver {

/// Who makes and who takes what, as far as running again is concerned.
struct Makers {
  explicit Makers(const Problem& problem);

  std::vector<std::int32_t> allocator;             ///< by tensor: -1 if persistent
  std::vector<std::vector<std::int32_t>> writers;  ///< by tensor, not persistent: ops that write it later
  std::vector<std::vector<std::int32_t>> users;    ///< by tensor: ops other than the allocating one, views left out
  std::vector<std::vector<std::int32_t>> inputs;   ///< by op: what it takes of what others allocate
  /// By op: once one of these has run, it cannot run again, since it has lost a persistent input.
  std::vector<std::vector<std::int32_t>> overwriters;
  /// By op: neither it nor a maker of what it writes makes an output of the step, and all of them may run again.
  std::vector<char> may_repeat;
  std::vector<char> is_view;  ///< by op: makes views and nothing else
};

/// What to keep and what to make again, at the moment at which an op runs the first time.
struct Relaxed {
  std::vector<std::int32_t> dropped;  ///< tensors made before and needed after, but not live then
  std::vector<std::int32_t> kept;     ///< tensors that only repeats take, and that live until then
  std::vector<std::int32_t> repeats;  ///< ops that run again for it
  std::int64_t bytes = 0;             ///< live while the op runs
  std::int64_t time_ns = 0;           ///< of the repeats

  bool operator==(const Relaxed&) const = default;
};

/// What a byte costs, in ns: a fraction, so that sums are exact.
struct Price {
  std::int64_t ns = 0;
  std::int64_t bytes = 1;
};

/// The moment at which an op runs the first time. All its predecessors have run, its successors have not. Of what the
/// former made and the latter take, each tensor lives, or all predecessors that make it run again after the moment.
/// Those take tensors too, each of which lives at the moment or is allocated again after it. The choice is a closure
/// problem, and with a price for each byte a least cut.
class Moment {
 public:
  /// `problem` must be well formed and outlive it.
  Moment(const Problem& problem, const Dependencies& dependencies, const Makers& makers, std::int32_t op);

  /// Lives at the moment whatever is made again.
  std::int64_t fixed_bytes() const { return fixed_bytes_; }
  /// The price, or one near it, with which sums of costs do not overflow.
  Price fit(Price price) const;
  /// Of all choices, the least of price.ns x (bytes - fixed bytes) + price.bytes x time. `price` must fit.
  std::int64_t cut(Price price);
  /// The choice of the last cut.
  Relaxed choice() const;

 private:
  struct Edge {
    std::int64_t bytes = 0;
    std::int64_t duration_ns = 0;
    bool is_uncuttable = false;
  };
  /// A tensor that a choice may leave out.
  struct Optional {
    std::int32_t tensor = 0;
    std::int32_t node = 0;  ///< of a droppable one: on the source's side if it is dropped; of another: if it is taken
    std::int32_t made_node = -1;  ///< of what only repeats take: on the source's side if it is made again
  };
  enum class Fate : std::uint8_t { kUnneeded, kFixed, kDroppable };

  void sort_tensors();
  std::int64_t inner_peak_bytes() const;
  bool is_needed(std::int32_t tensor) const;
  bool may_repeat(std::int32_t op) const;
  bool may_drop(std::int32_t tensor) const;
  void add_edge(std::int32_t from, std::int32_t to, Edge edge);
  void add_uncuttable_edge(std::int32_t from, std::int32_t to);
  std::int32_t repeat_node(std::int32_t op);
  std::int32_t taken_node(std::int32_t tensor);
  void add_droppable(std::int32_t tensor);

  const Problem& problem_;
  const Makers& makers_;
  const std::int32_t op_;
  const std::vector<char> before_;  ///< by op
  const std::vector<char> after_;   ///< by op
  std::vector<Fate> fates_;         ///< by tensor
  std::int64_t fixed_bytes_ = 0;
  FlowNetwork network_;
  std::vector<Edge> edges_;                 ///< by edge of the network
  Edge sums_;                               ///< over `edges_`
  std::vector<std::int32_t> repeat_nodes_;  ///< by op: on the source's side if it runs again; -1 if it has none yet
  std::vector<std::int32_t>
      taken_nodes_;                       ///< by tensor: on the source's side if a repeat takes it; -1 if none does yet
  std::vector<std::int32_t> repeatable_;  ///< ops with a node
  std::vector<Optional> droppable_;
  std::vector<Optional> taken_;
};

}  // namespace stowage::solver
