// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "solver/layout_search.h"

namespace stowage::solver {

/// Exact searches of one model that differ in their rankings, each with its own share of nodes, on several threads. The
/// first in the list that has an answer gives it, whoever is done first: the answer does not depend on the threads.
class LayoutRace {
 public:
  /// `model` must outlive the race.
  LayoutRace(const LayoutModel& model, int thread_count);

  /// How many searches share the nodes.
  static int search_count();

  /// `capacity` in units of the model; each search may place `nodes_each` items. Some searches depend on `seed`, not 0.
  FitResult run(std::int64_t capacity, std::int64_t nodes_each, std::uint32_t seed,
                std::chrono::steady_clock::time_point deadline);

  /// By item, in units, after a run that found a layout.
  const std::vector<std::int64_t>& offsets() const { return searches_[winner_]->offsets(); }
  /// Of the last run, not counting what came after the answer.
  std::int64_t node_count() const { return node_count_; }

 private:
  int thread_count_;
  std::vector<std::unique_ptr<FitSearch>> searches_;
  int winner_ = 0;
  std::int64_t node_count_ = 0;
};

}  // namespace stowage::solver
