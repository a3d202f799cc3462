// SPDX-License-Identifier: Apache-2.0
#include "solver/cyclic.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "solver/text.h"

namespace stowage::solver {
namespace {

bool is_live_twice(const CyclicBuffer& buffer) { return buffer.carried && buffer.free_event > buffer.allocate_event; }

std::int64_t round_up(std::int64_t bytes, std::int64_t alignment_bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

/// A buffer may be four of a linear layout, whose limit is 2^62.
constexpr std::int64_t kLimitBytes = std::int64_t{1} << 60;

void check_buffers(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count) {
  std::int64_t sum_bytes = 0;
  for (const CyclicBuffer& buffer : buffers) {
    const auto refuse = [&buffer](const std::string& reason) {
      throw std::invalid_argument(fmt::format("cannot lay out buffer {}: {}", quote(buffer.id), reason));
    };
    const auto [allocate_event, free_event] = std::pair(buffer.allocate_event, buffer.free_event);
    if (allocate_event < 0 || allocate_event >= event_count) {
      refuse(fmt::format("allocated at event {}, a step has {}", allocate_event, event_count));
    }
    if (free_event < 0 || free_event > event_count) {
      refuse(fmt::format("freed at event {}, a step has {}", free_event, event_count));
    }
    if (!buffer.carried && free_event <= allocate_event) {
      refuse(fmt::format("freed at event {}, which is not after its allocation at {}", free_event, allocate_event));
    }
    if (buffer.size_bytes < 0) refuse(fmt::format("size {} is negative", buffer.size_bytes));
    if (buffer.alignment_bytes <= 0) refuse(fmt::format("alignment {} is not positive", buffer.alignment_bytes));
    if (buffer.size_bytes >= kLimitBytes || buffer.alignment_bytes >= kLimitBytes ||
        buffer.size_bytes + 2 * buffer.alignment_bytes >= kLimitBytes - sum_bytes) {
      refuse("the sizes up to it sum to 2^60 B or more");
    }
    sum_bytes += buffer.size_bytes + 2 * buffer.alignment_bytes;
    if (!buffer.fixed_offset_bytes) continue;
    const std::int64_t offset_bytes = *buffer.fixed_offset_bytes;
    if (offset_bytes < 0) refuse(fmt::format("offset {} is negative", offset_bytes));
    if (offset_bytes >= kLimitBytes) refuse(fmt::format("offset {} is above 2^60 B", offset_bytes));
    if (offset_bytes % buffer.alignment_bytes != 0) {
      refuse(fmt::format("offset {} is not a multiple of its alignment {}", offset_bytes, buffer.alignment_bytes));
    }
    if (is_live_twice(buffer)) refuse("its offset is fixed, but it is live twice at once");
  }
}

void check_obstacles(const std::vector<Obstacle>& obstacles, std::int64_t event_count) {
  for (const Obstacle& obstacle : obstacles) {
    const auto is_outside = [](std::int64_t bytes) { return bytes < 0 || bytes >= kLimitBytes; };
    if (is_outside(obstacle.offset_bytes) || is_outside(obstacle.size_bytes) || obstacle.end_event < 0 ||
        obstacle.end_event > event_count) {
      throw std::invalid_argument(
          fmt::format("cannot lay out around an obstacle: {} B at {} until event {}, a step has {}",
                      obstacle.size_bytes, obstacle.offset_bytes, obstacle.end_event, event_count));
    }
  }
}

/// The same bytes, taken until the same events, by obstacles that share none.
std::vector<Obstacle> split_apart(const std::vector<Obstacle>& obstacles) {
  struct Change {
    std::vector<std::int64_t> begun;  // end events
    std::vector<std::int64_t> ended;
  };
  std::map<std::int64_t, Change> changes;
  for (const Obstacle& obstacle : obstacles) {
    if (obstacle.size_bytes == 0 || obstacle.end_event == 0) continue;
    changes[obstacle.offset_bytes].begun.push_back(obstacle.end_event);
    changes[obstacle.offset_bytes + obstacle.size_bytes].ended.push_back(obstacle.end_event);
  }
  std::vector<Obstacle> apart;
  std::multiset<std::int64_t> end_events;
  for (auto change = changes.begin(); change != changes.end(); ++change) {
    const auto& [begun, ended] = change->second;
    for (const std::int64_t event : ended) end_events.erase(end_events.find(event));
    end_events.insert(begun.begin(), begun.end());
    if (end_events.empty()) continue;
    const std::int64_t size_bytes = std::next(change)->first - change->first;
    apart.push_back({.offset_bytes = change->first, .size_bytes = size_bytes, .end_event = *end_events.rbegin()});
  }
  return apart;
}

/// What takes bytes once in each round of the ring: a buffer of one turn, or an obstacle.
struct Slot {
  std::string id;
  std::int32_t turn = 0;
  std::int32_t buffer = -1;  ///< -1: an obstacle
  std::int64_t begin_event = 0;
  std::int64_t end_event = 0;  ///< at most a round after the begin
  std::int64_t size_bytes = 0;
  std::int64_t alignment_bytes = 1;
  std::optional<std::int64_t> fixed_offset_bytes;
};

/// The events of all turns, one after the other, and from the last on to the first.
class Ring {
 public:
  Ring(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count, const std::vector<Obstacle>& obstacles,
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

  const std::vector<Slot>& slots() const { return slots_; }

  std::int64_t find_bound() const {
    std::map<std::int64_t, std::int64_t> changes;
    std::int64_t bound_bytes = 0;
    for (const Slot& slot : slots_) {
      add(changes, slot.begin_event, slot.end_event, slot.size_bytes);
      bound_bytes = std::max(bound_bytes, slot.fixed_offset_bytes ? *slot.fixed_offset_bytes + slot.size_bytes : 0);
    }
    std::int64_t live_bytes = 0;
    for (const auto& [event, bytes] : changes) bound_bytes = std::max(bound_bytes, live_bytes += bytes);
    return bound_bytes;
  }

  /// The first event over which the fewest bytes that may lie anywhere live on.
  std::int64_t find_cut() const {
    std::map<std::int64_t, std::int64_t> changes = {{0, 0}};
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

  /// By slot; the height is that of the fixed ones too.
  Layout lay_out_from(std::int64_t cut, const LayoutLimits& limits) const {
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

 private:
  /// Steps of the ring from its cut on: one interval, or two if the cut is inside.
  std::vector<std::pair<std::int64_t, std::int64_t>> cut_open(const Slot& slot, std::int64_t cut) const {
    const std::int64_t lower = (slot.begin_event - cut + length_) % length_;
    const std::int64_t upper = lower + slot.end_event - slot.begin_event;
    if (upper <= length_) return {{lower, upper}};
    return {{0, upper - length_}, {lower, length_}};
  }

  void add(std::map<std::int64_t, std::int64_t>& changes, std::int64_t begin_event, std::int64_t end_event,
           std::int64_t bytes) const {
    const std::int64_t lower = begin_event % length_;
    const std::int64_t upper = lower + end_event - begin_event;
    if (upper > length_) changes[0] += bytes;
    changes[lower] += bytes;
    if (upper != length_) changes[upper % length_] -= bytes;
  }

  /// By slot: the offset of what is fixed, and of what lives on over the cut: those as low as they can be, so that
  /// what is left to `lay_out` is one range of bytes.
  std::vector<std::optional<std::int64_t>> stack(std::int64_t cut) const {
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
        const bool share_step = std::any_of(intervals.begin(), intervals.end(), [&other](const auto& interval) {
          return interval.first < other.upper && other.lower < interval.second;
        });
        if (share_step) start_bytes = std::max(start_bytes, round_up(other.end_bytes, slots_[id].alignment_bytes));
      }
      offset_bytes[id] = start_bytes;
      take(slots_[id], start_bytes);
    }
    return offset_bytes;
  }

  std::int64_t length_;
  std::vector<Slot> slots_;
};

}  // namespace

CyclicLayout lay_out_cyclic(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count,
                            const std::vector<Obstacle>& obstacles, const CyclicLimits& limits) {
  check_buffers(buffers, event_count);
  check_obstacles(obstacles, event_count);
  const std::vector<Obstacle> apart = split_apart(obstacles);
  std::int64_t twice_bytes = 0;
  for (const CyclicBuffer& buffer : buffers) twice_bytes += is_live_twice(buffer) ? buffer.size_bytes : 0;

  CyclicLayout layout;
  Ring ring(buffers, event_count, apart, layout.turns);
  layout.bound_bytes = ring.find_bound();
  if (limits.may_alternate &&
      static_cast<double>(twice_bytes) > limits.worth * static_cast<double>(layout.bound_bytes)) {
    layout.turns = 2;
    ring = Ring(buffers, event_count, apart, layout.turns);
    layout.bound_bytes = ring.find_bound();
  }

  LayoutLimits linear_limits = limits.layout;
  linear_limits.capacity_bytes.reset();
  const std::int64_t cut = ring.find_cut();
  Layout best = ring.lay_out_from(cut, linear_limits);
  if (cut != 0 && best.height_bytes > layout.bound_bytes) {
    Layout other = ring.lay_out_from(0, linear_limits);
    if (other.height_bytes < best.height_bytes) best = std::move(other);
  }

  layout.offset_bytes.resize(layout.turns);
  for (std::vector<std::int64_t>& of_turn : layout.offset_bytes) {
    for (const CyclicBuffer& buffer : buffers) of_turn.push_back(buffer.size_bytes == 0 ? 0 : kNoSlot);
  }
  for (std::size_t id = 0; id < ring.slots().size(); ++id) {
    const Slot& slot = ring.slots()[id];
    if (slot.buffer >= 0) layout.offset_bytes[slot.turn][slot.buffer] = best.offset_bytes[id];
  }
  layout.arena_bytes = best.height_bytes;
  layout.status = layout.arena_bytes == layout.bound_bytes ? Status::kOptimal : Status::kFeasible;
  return layout;
}

}  // namespace stowage::solver
