// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "solver/layout.h"
#include "solver/plan.h"

namespace stowage::solver {

/// A storage that every step of a loop allocates anew. Events count a step's allocations and frees, from 0.
struct CyclicBuffer {
  std::string id;
  std::int64_t allocate_event = 0;
  /// Of the same step, or of the next if `carried`. From there on the bytes are free, as at an `upper` of `Buffer`.
  std::int64_t free_event = 0;
  /// Lives on into the next step. Freed there after the event at which the next one is allocated, it is live twice at
  /// once, as is a loop variable until it is assigned again.
  bool carried = false;
  std::int64_t size_bytes = 0;
  /// The offset is a multiple of it, and so is what is kept free for it. Any positive number.
  std::int64_t alignment_bytes = 1;
  /// Where it must lie, in every step; any place if absent.
  std::optional<std::int64_t> fixed_offset_bytes;

  bool operator==(const CyclicBuffer&) const = default;
};

/// Bytes that are taken in every step, from its begin until `end_event`, by what came from elsewhere, as from a step of
/// another kind. Obstacles may share bytes.
struct Obstacle {
  std::int64_t offset_bytes = 0;
  std::int64_t size_bytes = 0;
  std::int64_t end_event = 0;

  bool operator==(const Obstacle&) const = default;
};

struct CyclicLimits {
  /// Of each linear layout tried, of which there are at most two. The capacity is not looked at. As many nodes as the
  /// ten greedy packings of 10,000 buffers take: what more search finds is seldom worth that a training loop waits for
  /// it.
  LayoutLimits layout = {.node_limit = 100'000};
  /// Whether steps may take turns.
  bool may_alternate = true;
  /// They do where what is live twice at once is a larger part of all that is live at the fullest event.
  double worth = 0.001;
};

/// Offsets for a step that repeats.
struct CyclicLayout {
  /// 1: all steps have the same offsets. 2: steps take turns, each with offsets of its own.
  std::int32_t turns = 1;
  /// By turn and buffer; 0 for an empty buffer, `kNoSlot` for one that is live twice at once while all steps have the
  /// same offsets.
  std::vector<std::vector<std::int64_t>> offset_bytes;
  /// Highest end of a slot or obstacle.
  std::int64_t arena_bytes = 0;
  /// Largest sum of aligned sizes of slots and obstacles live at one event, or the highest end of what is fixed.
  std::int64_t bound_bytes = 0;
  /// Optimal if the arena equals the bound, else feasible.
  Status status = Status::kFeasible;

  bool operator==(const CyclicLayout&) const = default;
};

/// Gives each buffer an offset so that no two that are live at once overlap, in however many steps one after the other.
/// The ring of events is cut open where the fewest bytes live on, those are stacked from offset 0, and `lay_out` places
/// the others; the same from the step's own begin, unless the first is at the bound; the lower one is the answer.
/// Deterministic unless the deadline cuts it short.
/// Throws `std::invalid_argument` naming the buffer for one that is not well formed (events not in order or outside
/// `[0, event_count]`, negative numbers, sizes that sum to 2^60 or more) and for fixed offsets that overlap each other
/// or an obstacle, are not aligned, or belong to a buffer that is live twice at once.
CyclicLayout lay_out_cyclic(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count,
                            const std::vector<Obstacle>& obstacles = {}, const CyclicLimits& limits = {});

/// Why a layout is wrong, or nothing: replays three steps in a row, the turn changing. Shares no code with the search.
/// Buffers and obstacles must be such as `lay_out_cyclic` takes.
std::optional<std::string> find_overlap(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count,
                                        const std::vector<Obstacle>& obstacles, const CyclicLayout& layout);

}  // namespace stowage::solver
