// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "solver/cyclic.h"
#include "solver/layout.h"

namespace stowage::solver {

/// Whether it is freed after the next step has allocated its own.
bool is_live_twice(const CyclicBuffer& buffer);

/// What takes bytes once in each round of the ring: a buffer of one turn, or an obstacle.
struct Slot {
  std::string id;
  std::int32_t turn = 0;
  std::int32_t buffer = -1;  ///< -1: an obstacle
  std::int64_t begin_event = 0;
  std::int64_t end_event = 0;   ///< at most a round after the begin
  std::int64_t size_bytes = 0;  ///< a multiple of the alignment
  std::int64_t alignment_bytes = 1;
  std::optional<std::int64_t> fixed_offset_bytes;
};

/// The events of all turns, one after the other, and from the last on to the first.
class Ring {
 public:
  /// All must be well formed; obstacles must not share bytes. With one turn, what is live twice is left out.
  Ring(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count, const std::vector<Obstacle>& obstacles,
       std::int32_t turns);

  /// None is empty.
  const std::vector<Slot>& slots() const { return slots_; }

  /// As in `CyclicLayout`.
  std::int64_t find_bound() const;

  /// The first event over which the fewest bytes that may lie anywhere live on.
  std::int64_t find_cut() const;

  /// The ring cut open before an event: offsets by slot, and their height. The bound is not told.
  Layout lay_out_from(std::int64_t cut, const LayoutLimits& limits) const;

 private:
  /// Of events, counted from a cut on.
  struct Interval {
    std::int64_t lower;
    std::int64_t upper;
  };
  using Changes = std::map<std::int64_t, std::int64_t>;  // bytes by event

  /// One interval, or two if the slot lives on over the cut.
  std::vector<Interval> cut_open(const Slot& slot, std::int64_t cut) const;
  void add(Changes& changes, std::int64_t begin_event, std::int64_t end_event, std::int64_t bytes) const;

  /// By slot: the offset of what is fixed, and of what lives on over the cut: those as low as they can be, so that
  /// what is left to `lay_out` is one range of bytes.
  std::vector<std::optional<std::int64_t>> stack(std::int64_t cut) const;

  std::int64_t length_;
  std::vector<Slot> slots_;
};

}  // namespace stowage::solver
