// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plugin/planned_allocator.h"
#include "tests/plugin/fake_upstream.h"

namespace stowage {

class Planned : public testing::Test {
 protected:
  ~Planned() override { allocator.release_arena(); }

  FakeUpstream upstream;
  PlannedAllocator allocator{upstream};
  // Op 0 makes two tensors side by side, op 1 one over the first of them, op 2 one that escapes.
  SlotTable table{.slots = {{0, 64}, {64, 128}, {0, 64}, {0, 0}}, .first_slot = {0, 2, 3, 4}, .arena_bytes = 192};
};

/// A plan that needs nothing but so much memory.
inline SlotTable arena_of(std::int64_t size_bytes) {
  return {.slots = {}, .first_slot = {}, .arena_bytes = size_bytes};
}

/// The plan of a step: by lane, (size, offset) of its allocations.
inline std::shared_ptr<StepTable> table_of(
    const std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>& lanes) {
  auto table = std::make_shared<StepTable>();
  for (const auto& lane : lanes) {
    auto& entries = table->lanes.emplace_back();
    StepDigest digest = 0;
    for (const auto& [size_bytes, offset_bytes] : lane) {
      digest = extend(digest, size_bytes);
      entries.push_back({size_bytes, size_bytes, {offset_bytes}, digest});
      table->arena_bytes = std::max(table->arena_bytes, offset_bytes + size_bytes);
    }
  }
  return table;
}

inline Count count(std::int64_t allocations, std::int64_t bytes) { return {allocations, bytes}; }

inline Count misses(const Counters& counters, Miss reason) { return counters.misses[static_cast<std::size_t>(reason)]; }

}  // namespace stowage
