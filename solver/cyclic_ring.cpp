// SPDX-License-Identifier: Apache-2.0
#include "solver/cyclic_ring.h"

#include <algorithm>

#include <fmt/format.h>

namespace stowage::solver {
namespace {

std::int64_t round_up(std::int64_t bytes, std::int64_t alignment_bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

}  // namespace

bool is_live_twice(const CyclicBuffer& buffer) { return buffer.carried && buffer.free_event > buffer.allocate_event; }

Ring::Ring(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count, const std::vector<Obstacle>& obstacles,
           std::int32_t turns)
    : length_(turns * event_count) {
  for (std::int32_t turn = 0; turn < turns; ++turn) {
    const std::int64_t first_event = turn * event_count;
    for (const Obstacle& obstacle : obstacles) {
      slots_.push_back({.id = fmt::format("obstacle at {}", obstacle.offset_bytes),
                        .turn = turn,
                        .begin_event = first_event,
                        .end_event = first_event + obstacle.end_event,
                        .size_bytes = obstacle.size_bytes,
                        .fixed_offset_bytes = obstacle.offset_bytes});
    }
    for (std::int32_t id = 0; id < std::ssize(buffers); ++id) {
      const CyclicBuffer& buffer = buffers[id];
      if (buffer.size_bytes == 0 || (turns == 1 && is_live_twice(buffer))) continue;
      slots_.push_back({.id = buffer.id,
                        .turn = turn,
                        .buffer = id,
                        .begin_event = first_event + buffer.allocate_event,
                        .end_event = first_event + buffer.free_event + (buffer.carried ? event_count : 0),
                        .size_bytes = round_up(buffer.size_bytes, buffer.alignment_bytes),
                        .alignment_bytes = buffer.alignment_bytes,
                        .fixed_offset_bytes = buffer.fixed_offset_bytes});
    }
  }
}

std::int64_t Ring::find_bound() const {
  Changes changes;
  std::int64_t bound_bytes = 0;
  for (const Slot& slot : slots_) {
    add(changes, slot.begin_event, slot.end_event, slot.size_bytes);
    bound_bytes = std::max(bound_bytes, slot.fixed_offset_bytes ? *slot.fixed_offset_bytes + slot.size_bytes : 0);
  }
  std::int64_t live_bytes = 0;
  for (const auto& [event, bytes] : changes) bound_bytes = std::max(bound_bytes, live_bytes += bytes);
  return bound_bytes;
}

std::int64_t Ring::find_cut() const {
  Changes changes = {{0, 0}};
  for (const Slot& slot : slots_) {
    if (slot.fixed_offset_bytes || slot.end_event - slot.begin_event == 1) continue;
    add(changes, slot.begin_event + 1, slot.end_event, slot.size_bytes);
  }
  std::int64_t cut = 0;
  std::int64_t live_bytes = 0;
  std::int64_t fewest_bytes = changes.at(0);
  for (const auto& [event, bytes] : changes) {
    live_bytes += bytes;
    if (live_bytes >= fewest_bytes) continue;
    fewest_bytes = live_bytes;
    cut = event;
  }
  return cut;
}

Layout Ring::lay_out_from(std::int64_t cut, const LayoutLimits& limits) const {
  const std::vector<std::optional<std::int64_t>> fixed = stack(cut);
  std::vector<Buffer> pieces;
  std::vector<std::size_t> first_piece;
  for (std::size_t id = 0; id < slots_.size(); ++id) {
    first_piece.push_back(pieces.size());
    for (const auto& [lower, upper] : cut_open(slots_[id], cut)) {
      pieces.push_back({.id = slots_[id].id,
                        .lower = lower,
                        .upper = upper,
                        .size_bytes = slots_[id].size_bytes,
                        .alignment_bytes = slots_[id].alignment_bytes,
                        .fixed_offset_bytes = fixed[id]});
    }
  }
  const Layout linear = lay_out(pieces, limits);
  Layout layout{.offset_bytes = {}, .height_bytes = linear.height_bytes};
  for (const std::size_t piece : first_piece) layout.offset_bytes.push_back(linear.offset_bytes[piece]);
  return layout;
}

std::vector<Ring::Interval> Ring::cut_open(const Slot& slot, std::int64_t cut) const {
  const std::int64_t lower = (slot.begin_event - cut + length_) % length_;
  const std::int64_t upper = lower + slot.end_event - slot.begin_event;
  if (upper <= length_) return {{lower, upper}};
  return {{0, upper - length_}, {lower, length_}};
}

void Ring::add(Changes& changes, std::int64_t begin_event, std::int64_t end_event, std::int64_t bytes) const {
  const std::int64_t lower = begin_event % length_;
  const std::int64_t upper = lower + end_event - begin_event;
  if (upper > length_) changes[0] += bytes;
  changes[lower] += bytes;
  if (upper != length_) changes[upper % length_] -= bytes;
}

std::vector<std::optional<std::int64_t>> Ring::stack(std::int64_t cut) const {
  struct Taken {
    std::int64_t lower, upper, start_bytes, end_bytes;
  };
  const auto is_lower = [](const Taken& left, const Taken& right) { return left.start_bytes < right.start_bytes; };
  std::vector<std::optional<std::int64_t>> offset_bytes;
  std::vector<Taken> taken;
  const auto take = [&](const Slot& slot, std::int64_t start_bytes) {
    for (const auto& [lower, upper] : cut_open(slot, cut)) {
      const Taken next{lower, upper, start_bytes, start_bytes + slot.size_bytes};
      taken.insert(std::upper_bound(taken.begin(), taken.end(), next, is_lower), next);
    }
  };
  std::vector<std::size_t> crossing;
  for (std::size_t id = 0; id < slots_.size(); ++id) {
    offset_bytes.push_back(slots_[id].fixed_offset_bytes);
    if (offset_bytes[id]) {
      take(slots_[id], *offset_bytes[id]);
    } else if (cut_open(slots_[id], cut).size() > 1) {
      crossing.push_back(id);
    }
  }
  // Without padding between them, and the first to come back lowest: what they leave free until then is above.
  std::stable_sort(crossing.begin(), crossing.end(), [&](std::size_t left, std::size_t right) {
    const auto key = [&](const Slot& slot) {
      return std::pair(-slot.alignment_bytes, (slot.begin_event - cut + length_) % length_);
    };
    return key(slots_[left]) < key(slots_[right]);
  });
  for (const std::size_t id : crossing) {
    const auto intervals = cut_open(slots_[id], cut);
    std::int64_t start_bytes = 0;
    for (const Taken& other : taken) {
      if (other.start_bytes >= start_bytes + slots_[id].size_bytes) break;
      const bool share_step = std::any_of(intervals.begin(), intervals.end(), [&other](const Interval& interval) {
        return interval.lower < other.upper && other.lower < interval.upper;
      });
      if (share_step) start_bytes = std::max(start_bytes, round_up(other.end_bytes, slots_[id].alignment_bytes));
    }
    offset_bytes[id] = start_bytes;
    take(slots_[id], start_bytes);
  }
  return offset_bytes;
}

}  // namespace stowage::solver
