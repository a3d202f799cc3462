// SPDX-License-Identifier: Apache-2.0
#include "profiler/match_sizes.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "profiler/check.h"

namespace stowage::profiler {
namespace {

using Kind = DeviceMemoryRecord::Kind;

DeviceMemoryRecord allocate(std::int32_t op, std::uint64_t address, std::int64_t size_bytes) {
  return {.op = op, .kind = Kind::kAllocate, .address = address, .size_bytes = size_bytes};
}

DeviceMemoryRecord release(std::int32_t op, std::uint64_t address) {
  return {.op = op, .kind = Kind::kFree, .address = address};
}

/// A run of two ops whose allocations have these ops and sizes.
profiler::Run run_of(const std::vector<std::pair<std::int32_t, std::int64_t>>& allocations) {
  profiler::Run run;
  run.ops.resize(2);
  run.tensors.resize(allocations.size());
  for (const auto& [op, bytes] : allocations) {
    const auto id = static_cast<std::int32_t>(run.allocations.size());
    run.allocations.push_back({.tensor = id,
                               .op = op,
                               .index = id,
                               .requested_bytes = bytes,
                               .rounded_bytes = bytes + 12,
                               .allocate_event = id});
  }
  return run;
}

std::vector<std::int32_t> matched(const profiler::Run& run) {
  std::vector<std::int32_t> allocations;
  for (const DeviceMemoryRecord& change : run.device_memory) allocations.push_back(change.allocation);
  return allocations;
}

std::vector<bool> confirmed(const profiler::Run& run) {
  std::vector<bool> sources;
  for (const AllocationRecord& record : run.allocations) sources.push_back(record.source == AllocationSource::kCupti);
  return sources;
}

TEST(MatchSizes, ConfirmsWhatTheDriverMadeAtThatAddressInThatOp) {
  profiler::Run run = run_of({{0, 100}, {1, 200}});
  run.device_memory = {allocate(0, 0x1000, 100), allocate(1, 0x2000, 200), release(1, 0x1000), release(kNone, 0x2000)};
  match_sizes(run, {0x1000, 0x2000});
  EXPECT_EQ(matched(run), (std::vector<std::int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(confirmed(run), (std::vector<bool>{true, true}));
  EXPECT_EQ(run.size_mismatches, 0);
  EXPECT_EQ(find_contradiction(run), std::nullopt);
}

TEST(MatchSizes, CountsUnlikeSizes) {
  profiler::Run run = run_of({{0, 100}, {0, 200}, {1, 300}});
  run.device_memory = {allocate(0, 0x1000, 512), allocate(0, 0x2000, 200), allocate(1, 0x3000, 299)};
  match_sizes(run, {0x1000, 0x2000, 0x3000});
  EXPECT_EQ(matched(run), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(confirmed(run), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(run.size_mismatches, 2);
  EXPECT_EQ(find_contradiction(run), std::nullopt);
}

TEST(MatchSizes, LeavesWhatTheCacheServedToTheAllocator) {
  profiler::Run run = run_of({{0, 100}, {0, 100}, {1, 100}});
  // The 2nd is not the driver's; at the 3rd's address another op's allocation was made; one is of no op.
  run.device_memory = {allocate(0, 0x1000, 100), allocate(0, 0x3000, 100), allocate(kNone, 0x3000, 100)};
  match_sizes(run, {0x1000, 0x2000, 0x3000});
  EXPECT_EQ(matched(run), (std::vector<std::int32_t>{0, kNone, kNone}));
  EXPECT_EQ(confirmed(run), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(run.size_mismatches, 0);
}

TEST(MatchSizes, PairsAnAddressUsedAgainWithinAnOpInOrder) {
  profiler::Run run = run_of({{0, 100}, {0, 300}});
  run.device_memory = {allocate(0, 0x1000, 100), release(0, 0x1000), allocate(0, 0x1000, 300), release(0, 0x1000)};
  match_sizes(run, {0x1000, 0x1000});
  EXPECT_EQ(matched(run), (std::vector<std::int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(confirmed(run), (std::vector<bool>{true, true}));
}

TEST(MatchSizes, FreesOfUnknownMemoryAreNotOurs) {
  profiler::Run run = run_of({{0, 100}});
  // Made before the run; ours; ours once only; not ours although it was at our address.
  run.device_memory = {release(0, 0x1000), allocate(0, 0x1000, 100), release(0, 0x1000),
                       release(0, 0x1000), allocate(1, 0x1000, 100), release(1, 0x1000)};
  match_sizes(run, {0x1000});
  EXPECT_EQ(matched(run), (std::vector<std::int32_t>{kNone, 0, 0, kNone, kNone, kNone}));
}

TEST(MatchSizes, ForgetsAnEarlierComparison) {
  profiler::Run run = run_of({{0, 100}});
  run.device_memory = {allocate(0, 0x1000, 100)};
  match_sizes(run, {0x1000});
  match_sizes(run, {0x2000});
  EXPECT_EQ(matched(run), std::vector<std::int32_t>{kNone});
  EXPECT_EQ(confirmed(run), std::vector<bool>{false});
}

TEST(MatchSizes, WantsAnAddressForEachAllocation) {
  profiler::Run run = run_of({{0, 100}});
  EXPECT_THROW(match_sizes(run, {}), std::invalid_argument);
}

}  // namespace
}  // namespace stowage::profiler
