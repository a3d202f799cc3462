// SPDX-License-Identifier: Apache-2.0
#include "solver/layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace stowage::solver {
namespace {

bool overlap_in_time(const Buffer& left, const Buffer& right) {
  return left.lower < right.upper && right.lower < left.upper;
}

std::int64_t round_up(std::int64_t bytes, std::int64_t alignment_bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

void check_buffers(const std::vector<Buffer>& buffers) {
  constexpr std::int64_t kLimitBytes = std::int64_t{1} << 62;
  std::int64_t sum_bytes = 0;
  for (const Buffer& buffer : buffers) {
    const auto refuse = [&buffer](const std::string& reason) {
      throw std::invalid_argument(fmt::format("cannot lay out buffer '{}': {}", buffer.id, reason));
    };
    if (buffer.lower >= buffer.upper) {
      refuse(fmt::format("lower {} is not below upper {}; upper is exclusive", buffer.lower, buffer.upper));
    }
    if (buffer.size_bytes < 0) refuse(fmt::format("size {} is negative", buffer.size_bytes));
    if (buffer.alignment_bytes <= 0) refuse(fmt::format("alignment {} is not positive", buffer.alignment_bytes));
    // Worst case of a packing: each buffer above the last one, with padding in front.
    if (buffer.size_bytes >= kLimitBytes || buffer.alignment_bytes >= kLimitBytes ||
        buffer.size_bytes + (buffer.alignment_bytes - 1) >= kLimitBytes - sum_bytes) {
      refuse("the sizes up to it sum to 2^62 B or more");
    }
    sum_bytes += buffer.size_bytes + (buffer.alignment_bytes - 1);
    if (!buffer.fixed_offset_bytes) continue;
    if (*buffer.fixed_offset_bytes < 0) refuse(fmt::format("offset {} is negative", *buffer.fixed_offset_bytes));
    if (*buffer.fixed_offset_bytes % buffer.alignment_bytes != 0) {
      refuse(fmt::format("offset {} is not a multiple of its alignment {}", *buffer.fixed_offset_bytes,
                         buffer.alignment_bytes));
    }
    if (*buffer.fixed_offset_bytes >= kLimitBytes)
      refuse(fmt::format("offset {} is above 2^62 B", *buffer.fixed_offset_bytes));
  }
}

/// Buffers placed so far, lowest first.
class Packing {
 public:
  explicit Packing(const std::vector<Buffer>& buffers) : buffers_(buffers), offset_bytes_(buffers.size()) {}

  /// Returns a buffer that is in the way, or nothing once `id` is placed.
  std::optional<std::int32_t> place_fixed(std::int32_t id) {
    const Buffer& buffer = buffers_[id];
    const std::int64_t offset_bytes = *buffer.fixed_offset_bytes;
    for (const std::int32_t other : placed_) {
      const bool apart = offset_bytes + buffer.size_bytes <= offset_bytes_[other] || end_bytes(other) <= offset_bytes;
      if (!apart && overlap_in_time(buffer, buffers_[other])) return other;
    }
    insert(id, offset_bytes);
    return std::nullopt;
  }

  /// Into the lowest gap that holds it, or into the tightest.
  void place(std::int32_t id, bool tightest) {
    const Buffer& buffer = buffers_[id];
    std::int64_t gap_start_bytes = 0;
    std::int64_t best_offset_bytes = -1;
    std::int64_t best_slack_bytes = std::numeric_limits<std::int64_t>::max();
    for (const std::int32_t other : placed_) {
      if (!overlap_in_time(buffer, buffers_[other])) continue;
      const std::int64_t offset_bytes = round_up(gap_start_bytes, buffer.alignment_bytes);
      const std::int64_t slack_bytes = offset_bytes_[other] - offset_bytes - buffer.size_bytes;
      if (slack_bytes >= 0 && slack_bytes < best_slack_bytes) {
        best_offset_bytes = offset_bytes;
        best_slack_bytes = slack_bytes;
        if (!tightest || slack_bytes == 0) break;
      }
      gap_start_bytes = std::max(gap_start_bytes, end_bytes(other));
    }
    if (best_offset_bytes < 0) best_offset_bytes = round_up(gap_start_bytes, buffer.alignment_bytes);
    insert(id, best_offset_bytes);
  }

  std::int64_t end_bytes(std::int32_t id) const { return offset_bytes_[id] + buffers_[id].size_bytes; }
  std::int64_t height_bytes() const { return height_bytes_; }
  const std::vector<std::int64_t>& offset_bytes() const { return offset_bytes_; }

 private:
  void insert(std::int32_t id, std::int64_t offset_bytes) {
    offset_bytes_[id] = offset_bytes;
    if (buffers_[id].size_bytes == 0) return;  // in nobody's way
    height_bytes_ = std::max(height_bytes_, end_bytes(id));
    const auto above =
        std::upper_bound(placed_.begin(), placed_.end(), offset_bytes,
                         [this](std::int64_t bytes, std::int32_t other) { return bytes < offset_bytes_[other]; });
    placed_.insert(above, id);
  }

  const std::vector<Buffer>& buffers_;
  std::vector<std::int64_t> offset_bytes_;
  std::vector<std::int32_t> placed_;
  std::int64_t height_bytes_ = 0;
};

class LayoutSearch {
 public:
  LayoutSearch(const std::vector<Buffer>& buffers, const LayoutLimits& limits)
      : buffers_(buffers), limits_(limits), fixed_(buffers) {
    best_.bound_bytes = find_layout_bound(buffers);
    for (std::int32_t id = 0; id < std::ssize(buffers); ++id) {
      if (!buffers[id].fixed_offset_bytes) {
        movable_.push_back(id);
      } else if (const auto other = fixed_.place_fixed(id)) {
        throw std::invalid_argument(fmt::format("cannot lay out buffer '{}': its fixed offset overlaps that of '{}'",
                                                buffers[id].id, buffers[*other].id));
      }
    }
  }

  Layout find() {
    if (limits_.capacity_bytes && best_.bound_bytes > *limits_.capacity_bytes) {
      best_.status = Status::kInfeasible;
      return best_;
    }
    run_portfolio();
    improve();
    if (limits_.capacity_bytes && best_.height_bytes > *limits_.capacity_bytes) {
      best_.offset_bytes.clear();
      best_.status = Status::kTimedOut;
    } else {
      best_.status = best_.height_bytes == best_.bound_bytes ? Status::kOptimal : Status::kFeasible;
    }
    return best_;
  }

 private:
  using Ids = std::vector<std::int32_t>;
  using Sequence = std::pair<Ids, bool>;  // what to place in which order, and whether into the tightest gap

  std::int64_t target_bytes() const {
    return limits_.capacity_bytes ? std::max(*limits_.capacity_bytes, best_.bound_bytes) : best_.bound_bytes;
  }

  bool is_done() const {
    return tried_ && (best_.height_bytes <= target_bytes() || nodes_ >= limits_.node_limit ||
                      std::chrono::steady_clock::now() >= limits_.deadline);
  }

  Packing pack(const Sequence& sequence) {
    Packing packing = fixed_;
    for (const std::int32_t id : sequence.first) packing.place(id, sequence.second);
    nodes_ += std::ssize(sequence.first);
    if (!tried_ || packing.height_bytes() < best_.height_bytes) {
      best_.height_bytes = packing.height_bytes();
      best_.offset_bytes = packing.offset_bytes();
      best_sequence_ = sequence;
      tried_ = true;
    }
    return packing;
  }

  void run_portfolio() {
    const auto length = [this](std::int32_t id) { return buffers_[id].upper - buffers_[id].lower; };
    const auto area = [&](std::int32_t id) {
      return static_cast<double>(buffers_[id].size_bytes) * static_cast<double>(length(id));
    };
    using Less = std::function<bool(std::int32_t, std::int32_t)>;
    const std::vector<Less> keys = {
        [&](auto left, auto right) { return buffers_[left].size_bytes > buffers_[right].size_bytes; },
        [&](auto left, auto right) { return area(left) > area(right); },
        [&](auto left, auto right) { return length(left) > length(right); },
        [&](auto left, auto right) { return buffers_[left].lower < buffers_[right].lower; },
        [&](auto left, auto right) { return buffers_[left].upper > buffers_[right].upper; },
    };
    for (const Less& key : keys) {
      Ids ids = movable_;
      std::stable_sort(ids.begin(), ids.end(), key);
      for (const bool tightest : {false, true}) {
        if (is_done()) return;
        pack({ids, tightest});
      }
    }
  }

  /// Again and again, whatever makes a packing as high as the best one moves far to the front of the sequence.
  void improve() {
    Sequence sequence = best_sequence_;
    while (!is_done()) {
      const Packing packing = pack(sequence);
      Ids& ids = sequence.first;
      for (std::int32_t position = 0; position < std::ssize(ids); ++position) {
        if (packing.end_bytes(ids[position]) < best_.height_bytes) continue;
        std::rotate(ids.begin() + position / 8, ids.begin() + position, ids.begin() + position + 1);
      }
    }
  }

  const std::vector<Buffer>& buffers_;
  const LayoutLimits limits_;
  Packing fixed_;  ///< the buffers with fixed offsets alone
  Ids movable_;
  std::int64_t nodes_ = 0;
  bool tried_ = false;
  Sequence best_sequence_;
  Layout best_;
};

}  // namespace

std::int64_t find_layout_bound(const std::vector<Buffer>& buffers) {
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;  // step, bytes; ends sort before starts
  std::int64_t bound_bytes = 0;
  for (const Buffer& buffer : buffers) {
    changes.emplace_back(buffer.lower, buffer.size_bytes);
    changes.emplace_back(buffer.upper, -buffer.size_bytes);
    if (buffer.fixed_offset_bytes && buffer.size_bytes > 0) {
      bound_bytes = std::max(bound_bytes, *buffer.fixed_offset_bytes + buffer.size_bytes);
    }
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t live_bytes = 0;
  for (const auto& [step, bytes] : changes) {
    live_bytes += bytes;
    bound_bytes = std::max(bound_bytes, live_bytes);
  }
  return bound_bytes;
}

Layout lay_out(const std::vector<Buffer>& buffers, const LayoutLimits& limits) {
  check_buffers(buffers);
  return LayoutSearch(buffers, limits).find();
}

}  // namespace stowage::solver
