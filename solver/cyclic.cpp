// SPDX-License-Identifier: Apache-2.0
#include "solver/cyclic.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "solver/cyclic_ring.h"
#include "solver/text.h"

namespace stowage::solver {
namespace {

/// Of bytes, and of events. A buffer may be four of a linear layout, whose limit is 2^62.
constexpr std::int64_t kLimit = std::int64_t{1} << 60;

void check_buffers(const std::vector<CyclicBuffer>& buffers, std::int64_t event_count) {
  if (event_count < 0 || event_count >= kLimit) {
    throw std::invalid_argument(fmt::format("cannot lay out a step of {} events", event_count));
  }
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
    if (buffer.size_bytes >= kLimit || buffer.alignment_bytes >= kLimit ||
        buffer.size_bytes + 2 * buffer.alignment_bytes >= kLimit - sum_bytes) {
      refuse("the sizes up to it sum to 2^60 B or more");
    }
    sum_bytes += buffer.size_bytes + 2 * buffer.alignment_bytes;
    if (!buffer.fixed_offset_bytes) continue;
    const std::int64_t offset_bytes = *buffer.fixed_offset_bytes;
    if (offset_bytes < 0) refuse(fmt::format("offset {} is negative", offset_bytes));
    if (offset_bytes >= kLimit) refuse(fmt::format("offset {} is above 2^60 B", offset_bytes));
    if (offset_bytes % buffer.alignment_bytes != 0) {
      refuse(fmt::format("offset {} is not a multiple of its alignment {}", offset_bytes, buffer.alignment_bytes));
    }
    if (is_live_twice(buffer)) refuse("its offset is fixed, but it is live twice at once");
  }
}

void check_obstacles(const std::vector<Obstacle>& obstacles, std::int64_t event_count) {
  for (const Obstacle& obstacle : obstacles) {
    const auto is_outside = [](std::int64_t bytes) { return bytes < 0 || bytes >= kLimit; };
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
