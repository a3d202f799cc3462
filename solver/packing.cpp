// SPDX-License-Identifier: Apache-2.0
#include "solver/packing.h"

#include <algorithm>
#include <limits>

namespace stowage::solver {
namespace {

std::int64_t round_up(std::int64_t bytes, std::int64_t alignment_bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

}  // namespace

Packing::Packing(const std::vector<Buffer>& buffers) : buffers_(buffers), offset_bytes_(buffers.size()) {
  // Two buffers share a step if and only if they share the start of one of them: the starts are the leaves.
  std::vector<std::int64_t> starts;
  starts.reserve(buffers.size());
  for (const Buffer& buffer : buffers) starts.push_back(buffer.lower);
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  for (const Buffer& buffer : buffers) {
    const auto leaf_at = [&starts](std::int64_t step) {
      return static_cast<std::int32_t>(std::lower_bound(starts.begin(), starts.end(), step) - starts.begin());
    };
    first_leaf_.push_back(leaf_at(buffer.lower));
    end_leaf_.push_back(leaf_at(buffer.upper));
  }
  while (leaf_count_ < std::ssize(starts)) leaf_count_ *= 2;
  nodes_.resize(2 * static_cast<std::size_t>(leaf_count_));
}

bool Packing::place_fixed(std::int32_t id) {
  const std::int64_t offset_bytes = *buffers_[id].fixed_offset_bytes;
  const std::int64_t size_bytes = buffers_[id].size_bytes;
  find_taken(id);
  if (size_bytes > 0 && find_gap(offset_bytes, size_bytes).start_bytes > offset_bytes) return false;
  insert(id, offset_bytes);
  return true;
}

void Packing::place(std::int32_t id, bool tightest) {
  const Buffer& buffer = buffers_[id];
  std::int64_t best_offset_bytes = 0;
  std::int64_t best_slack_bytes = kEndless;
  find_taken(id);
  for (Gap gap{0, 0}; gap.end_bytes < kEndless;) {
    gap = find_gap(gap.end_bytes, buffer.size_bytes);
    const std::int64_t offset_bytes = round_up(gap.start_bytes, buffer.alignment_bytes);
    const std::int64_t slack_bytes = gap.end_bytes - offset_bytes - buffer.size_bytes;
    if (slack_bytes < 0 || slack_bytes >= best_slack_bytes) continue;
    best_offset_bytes = offset_bytes;
    best_slack_bytes = slack_bytes;
    if (!tightest || slack_bytes == 0) break;
  }
  insert(id, best_offset_bytes);
}

Packing::Gap Packing::find_gap(std::int64_t from_bytes, std::int64_t size_bytes) {
  Gap gap{from_bytes, kEndless};
  bool moved = true;
  while (moved) {
    moved = false;
    gap.end_bytes = kEndless;
    for (std::size_t index = 0; index < taken_.size();) {
      std::span<const Range>& ranges = taken_[index];
      // Steps that double: most often the next range will do.
      std::size_t passed = 0;
      for (std::size_t step = 1; passed < ranges.size() && ranges[passed].end <= gap.start_bytes;) {
        const bool is_far = passed + step < ranges.size() && ranges[passed + step].end <= gap.start_bytes;
        passed += is_far ? step : 1;
        step = is_far ? 2 * step : 1;
      }
      ranges = ranges.subspan(passed);
      if (ranges.empty()) {
        ranges = taken_.back();
        taken_.pop_back();
        continue;
      }
      if (ranges.front().start < gap.start_bytes + size_bytes) {
        gap.start_bytes = ranges.front().end;
        moved = true;
      } else {
        gap.end_bytes = std::min(gap.end_bytes, ranges.front().start);
        ++index;
      }
    }
  }
  return gap;
}

void Packing::clear() {
  for (const std::int32_t node : used_) {
    nodes_[node].covering.clear();
    nodes_[node].touching.clear();
  }
  used_.clear();
}

void Packing::add(Ranges& ranges, Range range) {
  const auto first = std::lower_bound(ranges.begin(), ranges.end(), range.start,
                                      [](const Range& left, std::int64_t bytes) { return left.end < bytes; });
  auto last = first;
  while (last != ranges.end() && last->start <= range.end) {
    range.start = std::min(range.start, last->start);
    range.end = std::max(range.end, last->end);
    ++last;
  }
  if (first == last) {
    ranges.insert(first, range);
  } else {
    *first = range;
    ranges.erase(first + 1, last);
  }
}

void Packing::insert(std::int32_t id, std::int64_t offset_bytes) {
  offset_bytes_[id] = offset_bytes;
  if (buffers_[id].size_bytes == 0) return;  // in nobody's way
  insert(1, 0, leaf_count_, id, {offset_bytes, offset_bytes + buffers_[id].size_bytes});
}

void Packing::insert(std::int32_t node, std::int32_t node_first, std::int32_t node_end, std::int32_t id, Range range) {
  if (end_leaf_[id] <= node_first || node_end <= first_leaf_[id]) return;
  if (nodes_[node].touching.empty()) used_.push_back(node);
  add(nodes_[node].touching, range);
  if (first_leaf_[id] <= node_first && node_end <= end_leaf_[id]) {
    add(nodes_[node].covering, range);
    return;
  }
  const std::int32_t middle = node_first + (node_end - node_first) / 2;
  insert(2 * node, node_first, middle, id, range);
  insert(2 * node + 1, middle, node_end, id, range);
}

void Packing::find_taken(std::int32_t id) {
  taken_.clear();
  find_taken(1, 0, leaf_count_, id);
}

void Packing::find_taken(std::int32_t node, std::int32_t node_first, std::int32_t node_end, std::int32_t id) {
  if (end_leaf_[id] <= node_first || node_end <= first_leaf_[id]) return;
  const bool is_inside = first_leaf_[id] <= node_first && node_end <= end_leaf_[id];
  const Ranges& ranges = is_inside ? nodes_[node].touching : nodes_[node].covering;
  if (!ranges.empty()) taken_.emplace_back(ranges);
  if (is_inside) return;
  const std::int32_t middle = node_first + (node_end - node_first) / 2;
  find_taken(2 * node, node_first, middle, id);
  find_taken(2 * node + 1, middle, node_end, id);
}

}  // namespace stowage::solver
