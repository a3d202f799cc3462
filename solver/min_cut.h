// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace stowage::solver {

/// A network whose least cut between `kSource` and `kSink` is looked for, again and again with other capacities.
class FlowNetwork {
 public:
  static constexpr std::int32_t kSource = 0;
  static constexpr std::int32_t kSink = 1;
  /// Of an edge that no cut may take. The other capacities must have a sum below it.
  static constexpr std::int64_t kUncuttable = std::int64_t{1} << 61;

  FlowNetwork() : edges_of_(2) {}

  std::int32_t add_node();
  /// Returns the edge's id, counted from 0.
  std::int32_t add_edge(std::int32_t from, std::int32_t to, std::int64_t capacity);
  void set_capacity(std::int32_t edge, std::int64_t capacity) { capacities_[edge] = capacity; }

  /// The least sum of capacities that parts the source from the sink (Dinic 1970): `kUncuttable` or more if there is
  /// none.
  std::int64_t cut();
  /// Of the least cut found last: of all least cuts, the one with the fewest nodes on the source's side.
  bool is_on_source_side(std::int32_t node) const { return level_[node] >= 0; }

 private:
  /// Half an edge: 2 x id forwards, 2 x id + 1 backwards.
  struct Arc {
    std::int32_t to = 0;
    std::int64_t residual = 0;
  };

  void find_levels();
  std::int64_t push_paths();
  bool advance(std::int32_t node);

  std::vector<Arc> arcs_;
  std::vector<std::int64_t> capacities_;             ///< by edge
  std::vector<std::vector<std::int32_t>> edges_of_;  ///< by node: arcs that leave it
  std::vector<std::int32_t> level_;                  ///< by node: arcs from the source, -1 if it cannot be reached
  std::vector<std::size_t> next_;                    ///< by node: which of its arcs to try next
  std::vector<std::int32_t> path_;                   ///< arcs from the source on
};

}  // namespace stowage::solver
