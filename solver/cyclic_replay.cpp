// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "solver/cyclic.h"
#include "solver/text.h"

namespace stowage::solver {
namespace {

using Fault = std::optional<std::string>;

/// Three steps in a row: the first with nothing carried into it, then one of each turn.
class Replay {
 public:
  Replay(const std::vector<CyclicBuffer>& buffers, const std::vector<Obstacle>& obstacles, const CyclicLayout& layout)
      : buffers_(buffers), obstacles_(obstacles), layout_(layout) {}

  Fault run() {
    if (layout_.turns != 1 && layout_.turns != 2) return fmt::format("{} turns: there are one or two", layout_.turns);
    if (std::ssize(layout_.offset_bytes) != layout_.turns) {
      return fmt::format("offsets for {} turns, there are {}", layout_.offset_bytes.size(), layout_.turns);
    }
    for (std::int32_t turn = 0; turn < layout_.turns; ++turn) {
      if (layout_.offset_bytes[turn].size() != buffers_.size()) {
        return fmt::format("{} offsets in turn {}, there are {} buffers", layout_.offset_bytes[turn].size(), turn,
                           buffers_.size());
      }
      for (std::size_t id = 0; id < buffers_.size(); ++id) {
        if (Fault fault = check_slot(turn, id)) return fault;
      }
    }
    for (const Obstacle& obstacle : obstacles_) {
      if (obstacle.size_bytes == 0 || obstacle.end_event == 0) continue;
      const std::int64_t end_bytes = obstacle.offset_bytes + obstacle.size_bytes;
      if (end_bytes > layout_.arena_bytes) {
        return fmt::format("an obstacle ends at {}, above the arena's {}", end_bytes, layout_.arena_bytes);
      }
    }
    if (Fault fault = replay_steps()) return fault;
    if (peak_bytes_ > layout_.bound_bytes) {
      return fmt::format("the bound is {}, but {} B are live at once", layout_.bound_bytes, peak_bytes_);
    }
    if (layout_.arena_bytes < layout_.bound_bytes) {
      return fmt::format("the arena of {} B is below the bound of {}", layout_.arena_bytes, layout_.bound_bytes);
    }
    if ((layout_.status == Status::kOptimal) != (layout_.arena_bytes == layout_.bound_bytes)) {
      return fmt::format("status {}, arena {}, bound {}", to_string(layout_.status), layout_.arena_bytes,
                         layout_.bound_bytes);
    }
    return std::nullopt;
  }

 private:
  struct Live {
    std::size_t buffer;
    int step;
    std::int64_t start_bytes;
    std::int64_t end_bytes;
  };

  std::string text(std::size_t id) const { return fmt::format("buffer {}", quote(buffers_[id].id)); }
  std::string text(const Live& live) const {
    return fmt::format("{} of step {} at {}", text(live.buffer), live.step, live.start_bytes);
  }

  std::int64_t slot_bytes(std::size_t id) const {
    const std::int64_t rest_bytes = buffers_[id].size_bytes % buffers_[id].alignment_bytes;
    return buffers_[id].size_bytes + (rest_bytes == 0 ? 0 : buffers_[id].alignment_bytes - rest_bytes);
  }

  Fault check_slot(std::int32_t turn, std::size_t id) const {
    const CyclicBuffer& buffer = buffers_[id];
    const std::int64_t offset_bytes = layout_.offset_bytes[turn][id];
    if (buffer.size_bytes == 0) {
      if (offset_bytes == 0) return std::nullopt;
      return fmt::format("{} is empty, but lies at {}", text(id), offset_bytes);
    }
    if (offset_bytes == kNoSlot) {
      if (layout_.turns == 1 && buffer.carried && buffer.free_event > buffer.allocate_event) return std::nullopt;
      return fmt::format("{} has no slot in turn {}", text(id), turn);
    }
    if (offset_bytes < 0 || offset_bytes % buffer.alignment_bytes != 0) {
      return fmt::format("{} lies at {}, its alignment is {}", text(id), offset_bytes, buffer.alignment_bytes);
    }
    if (buffer.fixed_offset_bytes && offset_bytes != *buffer.fixed_offset_bytes) {
      return fmt::format("{} lies at {}, but is fixed at {}", text(id), offset_bytes, *buffer.fixed_offset_bytes);
    }
    if (offset_bytes + slot_bytes(id) > layout_.arena_bytes) {
      return fmt::format("{} ends at {}, above the arena's {}", text(id), offset_bytes + slot_bytes(id),
                         layout_.arena_bytes);
    }
    return std::nullopt;
  }

  bool has_slot(std::size_t id) const { return layout_.offset_bytes[0][id] != kNoSlot && buffers_[id].size_bytes > 0; }

  std::int64_t start_bytes(std::size_t id, int step) const { return layout_.offset_bytes[step % layout_.turns][id]; }

  Fault replay_steps() {
    struct Moment {
      std::vector<std::size_t> frees;
      std::vector<std::size_t> allocations;
    };
    std::map<std::int64_t, Moment> moments;
    for (std::size_t id = 0; id < buffers_.size(); ++id) {
      if (!has_slot(id)) continue;
      moments[buffers_[id].free_event].frees.push_back(id);
      moments[buffers_[id].allocate_event].allocations.push_back(id);
    }
    for (int step = 0; step < 3; ++step) {
      Moment& begin = moments[0];
      for (const std::size_t id : begin.frees) free(id, step);
      for (const auto& [start, live] : live_) {
        if (Fault fault = meet_obstacles(live, 0)) return fault;
      }
      for (const auto& [event, moment] : moments) {
        for (const std::size_t id : moment.frees) {
          if (event > 0) free(id, step);
        }
        for (const std::size_t id : moment.allocations) {
          if (Fault fault = allocate(id, step, event)) return fault;
        }
      }
    }
    return std::nullopt;
  }

  void free(std::size_t id, int step) {
    const int allocated_step = buffers_[id].carried ? step - 1 : step;
    if (allocated_step < 0) return;
    live_.erase(start_bytes(id, allocated_step));
    live_bytes_ -= slot_bytes(id);
  }

  Fault allocate(std::size_t id, int step, std::int64_t event) {
    const Live next{id, step, start_bytes(id, step), start_bytes(id, step) + slot_bytes(id)};
    const auto above = live_.lower_bound(next.start_bytes);
    if (above != live_.end() && above->second.start_bytes < next.end_bytes) {
      return fmt::format("{} overlaps {} at event {}", text(next), text(above->second), event);
    }
    if (above != live_.begin() && std::prev(above)->second.end_bytes > next.start_bytes) {
      return fmt::format("{} overlaps {} at event {}", text(next), text(std::prev(above)->second), event);
    }
    live_.emplace(next.start_bytes, next);
    live_bytes_ += slot_bytes(id);
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    return meet_obstacles(next, event);
  }

  Fault meet_obstacles(const Live& live, std::int64_t event) const {
    for (const Obstacle& obstacle : obstacles_) {
      const bool share_bytes =
          obstacle.offset_bytes < live.end_bytes && live.start_bytes < obstacle.offset_bytes + obstacle.size_bytes;
      if (!share_bytes || obstacle.size_bytes == 0 || obstacle.end_event <= event) continue;
      return fmt::format("{} overlaps the obstacle at {} at event {}", text(live), obstacle.offset_bytes, event);
    }
    return std::nullopt;
  }

  const std::vector<CyclicBuffer>& buffers_;
  const std::vector<Obstacle>& obstacles_;
  const CyclicLayout& layout_;
  std::map<std::int64_t, Live> live_;  ///< by start; none overlap
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace

std::optional<std::string> find_overlap(const std::vector<CyclicBuffer>& buffers, std::int64_t /*event_count*/,
                                        const std::vector<Obstacle>& obstacles, const CyclicLayout& layout) {
  return Replay(buffers, obstacles, layout).run();
}

}  // namespace stowage::solver
