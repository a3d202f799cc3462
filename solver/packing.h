// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solver/layout.h"

namespace stowage::solver {

/// Buffers placed one after the other, never moved. Only what is live at the same steps is looked at: a tree over the
/// steps keeps for each of its nodes which bytes are taken.
class Packing {
 public:
  /// Nothing is placed. `buffers` must outlive the packing.
  explicit Packing(const std::vector<Buffer>& buffers);

  /// At its fixed offset. Returns whether the bytes were free.
  bool place_fixed(std::int32_t id);

  /// Into the lowest gap that holds it, or into the tightest.
  void place(std::int32_t id, bool tightest);

  /// Takes everything out.
  void clear();

  std::int64_t end_bytes(std::int32_t id) const { return offset_bytes_[id] + buffers_[id].size_bytes; }
  const std::vector<std::int64_t>& offset_bytes() const { return offset_bytes_; }

 private:
  /// Bytes `[start, end)`.
  struct Range {
    std::int64_t start;
    std::int64_t end;
  };
  using Ranges = std::vector<Range>;  // ascending, apart
  struct Node {
    Ranges covering;  ///< taken at all steps of the node
    Ranges touching;  ///< taken at some step of the node, by buffers that do not cover its parent
  };

  struct Gap {
    std::int64_t start_bytes;
    std::int64_t end_bytes;
  };
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

  /// The next one of at least that size out of what `find_taken` found; `from_bytes` may only grow from call to call.
  Gap find_gap(std::int64_t from_bytes, std::int64_t size_bytes);
  static void add(Ranges& ranges, Range range);
  void insert(std::int32_t id, std::int64_t offset_bytes);
  void insert(std::int32_t node, std::int32_t node_first, std::int32_t node_end, std::int32_t id, Range range);
  void find_taken(std::int32_t id);
  void find_taken(std::int32_t node, std::int32_t node_first, std::int32_t node_end, std::int32_t id);

  const std::vector<Buffer>& buffers_;
  std::vector<std::int32_t> first_leaf_;  ///< by buffer
  std::vector<std::int32_t> end_leaf_;    ///< by buffer
  std::int32_t leaf_count_ = 1;
  std::vector<Node> nodes_;         ///< from 1; the children of a node are at twice its index and after that
  std::vector<std::int32_t> used_;  ///< nodes that are not as at first
  std::vector<std::int64_t> offset_bytes_;
  std::vector<std::span<const Range>> taken_;  ///< of `find_taken`: lists that together hold what is taken
};

}  // namespace stowage::solver
