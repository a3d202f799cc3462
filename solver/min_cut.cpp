// SPDX-License-Identifier: Apache-2.0
#include "solver/min_cut.h"

#include <algorithm>

namespace stowage::solver {

std::int32_t FlowNetwork::add_node() {
  edges_of_.emplace_back();
  return static_cast<std::int32_t>(edges_of_.size()) - 1;
}

std::int32_t FlowNetwork::add_edge(std::int32_t from, std::int32_t to, std::int64_t capacity) {
  const auto edge = static_cast<std::int32_t>(capacities_.size());
  capacities_.push_back(capacity);
  edges_of_[from].push_back(2 * edge);
  edges_of_[to].push_back(2 * edge + 1);
  arcs_.push_back({.to = to});
  arcs_.push_back({.to = from});
  return edge;
}

std::int64_t FlowNetwork::cut() {
  for (std::size_t edge = 0; edge < capacities_.size(); ++edge) {
    arcs_[2 * edge].residual = capacities_[edge];
    arcs_[2 * edge + 1].residual = 0;
  }
  std::int64_t flow = 0;
  for (find_levels(); level_[kSink] >= 0 && flow < kUncuttable; find_levels()) flow += push_paths();
  return flow;
}

void FlowNetwork::find_levels() {
  level_.assign(edges_of_.size(), -1);
  level_[kSource] = 0;
  std::vector<std::int32_t> queue{kSource};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    const std::int32_t node = queue[head];
    for (const std::int32_t id : edges_of_[node]) {
      const Arc& arc = arcs_[id];
      if (arc.residual == 0 || level_[arc.to] >= 0) continue;
      level_[arc.to] = level_[node] + 1;
      queue.push_back(arc.to);
    }
  }
}

/// Along shortest paths, until none is left.
std::int64_t FlowNetwork::push_paths() {
  next_.assign(edges_of_.size(), 0);
  path_.clear();
  std::int64_t flow = 0;
  std::int32_t node = kSource;
  while (true) {
    if (node == kSink) {
      std::int64_t least = kUncuttable;
      for (const std::int32_t id : path_) least = std::min(least, arcs_[id].residual);
      flow += least;
      std::size_t saturated = path_.size();
      for (std::size_t position = path_.size(); position-- > 0;) {
        const std::int32_t id = path_[position];
        arcs_[id].residual -= least;
        arcs_[id ^ 1].residual += least;
        if (arcs_[id].residual == 0) saturated = position;
      }
      if (flow >= kUncuttable) return flow;
      node = arcs_[path_[saturated] ^ 1].to;
      path_.resize(saturated);
    } else if (advance(node)) {
      node = arcs_[path_.back()].to;
    } else if (node == kSource) {
      return flow;
    } else {
      node = arcs_[path_.back() ^ 1].to;
      path_.pop_back();
      ++next_[node];
    }
  }
}

bool FlowNetwork::advance(std::int32_t node) {
  const std::vector<std::int32_t>& ids = edges_of_[node];
  for (std::size_t& next = next_[node]; next < ids.size(); ++next) {
    const Arc& arc = arcs_[ids[next]];
    if (arc.residual == 0 || level_[arc.to] != level_[node] + 1) continue;
    path_.push_back(ids[next]);
    return true;
  }
  return false;
}

}  // namespace stowage::solver
