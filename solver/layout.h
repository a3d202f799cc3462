// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "solver/plan.h"

namespace stowage::solver {

/// A range of bytes that is needed during steps `[lower, upper)`.
struct Buffer {
  std::string id;
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::int64_t size_bytes = 0;
  /// The offset is a multiple of it. Any positive number.
  std::int64_t alignment_bytes = 1;
  /// Where the buffer must lie; any place if absent.
  std::optional<std::int64_t> fixed_offset_bytes;

  bool operator==(const Buffer&) const = default;
};

struct LayoutLimits {
  /// The search stops at the first layout that is no higher; without it, at the bound.
  std::optional<std::int64_t> capacity_bytes = std::nullopt;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// How many buffers may be placed, all tries together; the first packing is always finished.
  std::int64_t node_limit = 1'000'000;
  /// Threads to search on, at least 1. The layout does not depend on it.
  int thread_count = 2;
};

struct Layout {
  /// By buffer. Empty if no layout within the capacity was found.
  std::vector<std::int64_t> offset_bytes;
  /// Of the lowest layout found, whether within the capacity or not; 0 if none was tried.
  std::int64_t height_bytes = 0;
  /// No layout is lower.
  std::int64_t bound_bytes = 0;
  /// Optimal: height equals bound. Infeasible: the bound is above the capacity.
  Status status = Status::kFeasible;
};

/// Largest sum of sizes at one step, or the highest end of a fixed buffer.
std::int64_t find_layout_bound(const std::vector<Buffer>& buffers);

/// Gives each buffer an offset so that no two that share a step overlap: a portfolio of greedy packings, then, for
/// buffers connected in time that are not proven lowest, repacking with what sticks out moved to the front and exact
/// search (Moffitt, "MiniMalloc", ASPLOS 2023) in turn. Deterministic unless the deadline cuts it short.
/// Throws `std::invalid_argument` naming the buffer for one that is not well formed (`lower` not below `upper`,
/// negative numbers, sizes that sum to 2^62 or more) and for fixed offsets that overlap or are not aligned.
Layout lay_out(const std::vector<Buffer>& buffers, const LayoutLimits& limits = {});

}  // namespace stowage::solver
