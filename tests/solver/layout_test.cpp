// SPDX-License-Identifier: Apache-2.0
#include "solver/layout.h"

#include <random>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "solver/formats.h"

namespace stowage::solver {
namespace {

using Offsets = std::vector<std::int64_t>;

Buffer buffer(std::int64_t lower, std::int64_t upper, std::int64_t size_bytes) {
  return {.id = "b", .lower = lower, .upper = upper, .size_bytes = size_bytes, .fixed_offset_bytes = std::nullopt};
}

Buffer fixed(Buffer buffer, std::int64_t offset_bytes) {
  buffer.fixed_offset_bytes = offset_bytes;
  return buffer;
}

/// Every pair, slowly.
void expect_valid(const std::vector<Buffer>& buffers, const Layout& layout) {
  ASSERT_EQ(layout.offset_bytes.size(), buffers.size());
  std::int64_t height_bytes = 0;
  for (std::size_t left = 0; left < buffers.size(); ++left) {
    const std::int64_t left_end = layout.offset_bytes[left] + buffers[left].size_bytes;
    EXPECT_GE(layout.offset_bytes[left], 0);
    EXPECT_EQ(layout.offset_bytes[left] % buffers[left].alignment_bytes, 0) << left;
    EXPECT_EQ(buffers[left].fixed_offset_bytes.value_or(layout.offset_bytes[left]), layout.offset_bytes[left]) << left;
    if (buffers[left].size_bytes == 0) continue;
    height_bytes = std::max(height_bytes, left_end);
    for (std::size_t right = 0; right < left; ++right) {
      const std::int64_t right_end = layout.offset_bytes[right] + buffers[right].size_bytes;
      const bool share_step = buffers[left].lower < buffers[right].upper && buffers[right].lower < buffers[left].upper;
      const bool share_bytes = layout.offset_bytes[left] < right_end && layout.offset_bytes[right] < left_end;
      EXPECT_FALSE(share_step && share_bytes && buffers[right].size_bytes > 0) << left << " and " << right;
    }
  }
  EXPECT_EQ(layout.height_bytes, height_bytes);
  EXPECT_GE(layout.height_bytes, layout.bound_bytes);
  EXPECT_EQ(layout.status == Status::kOptimal, layout.height_bytes == layout.bound_bytes);
}

TEST(Layout, ReusesSpaceFromTheStepOfTheFree) {
  const Layout layout = lay_out({buffer(0, 2, 10), buffer(2, 4, 10), buffer(1, 3, 5)});
  EXPECT_EQ(layout.offset_bytes, (Offsets{0, 0, 10}));  // the second starts as the first ends; the third meets both
  EXPECT_EQ(layout.height_bytes, 15);
  EXPECT_EQ(layout.bound_bytes, 15);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Layout, HonoursAlignment) {
  std::vector<Buffer> buffers = {buffer(0, 1, 5), buffer(0, 1, 3)};
  buffers[1].alignment_bytes = 4;
  const Layout layout = lay_out(buffers);
  // The larger one first would put the other at 8 and end at 11; the aligned one beneath wastes nothing.
  EXPECT_EQ(layout.offset_bytes, (Offsets{3, 0}));
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Layout, HonoursFixedOffsets) {
  const std::vector<Buffer> buffers = {fixed(buffer(0, 4, 10), 8), buffer(0, 2, 8), buffer(2, 4, 9)};
  const Layout layout = lay_out(buffers);
  EXPECT_EQ(layout.offset_bytes, (Offsets{8, 0, 18}));  // 8 fit beneath the fixed one, 9 do not
  EXPECT_EQ(layout.height_bytes, 27);
}

TEST(Layout, CountsTheEndOfFixedBuffersInTheBound) {
  const Layout layout = lay_out({fixed(buffer(0, 1, 4), 100)});
  EXPECT_EQ(layout.bound_bytes, 104);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Layout, PlacesEmptyBuffersAnywhere) {
  const Layout layout = lay_out({buffer(0, 1, 0), buffer(0, 1, 4)});
  EXPECT_EQ(layout.offset_bytes, (Offsets{0, 0}));
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Layout, ProvesThatNothingFits) {
  const Layout layout = lay_out({buffer(0, 2, 10), buffer(1, 3, 10)}, {.capacity_bytes = 19});
  EXPECT_EQ(layout.status, Status::kInfeasible);
  EXPECT_EQ(layout.offset_bytes, Offsets{});
  EXPECT_EQ(layout.bound_bytes, 20);
}

TEST(Layout, SaysWhenItFoundNothing) {
  // 1039360 live at once, so a capacity of that is not refuted; greedy packings are far from it.
  const auto buffers = read_buffers(STOWAGE_TEST_DATA "/layout/C.1048576.csv");
  const Layout layout = lay_out(buffers, {.capacity_bytes = 1048576, .deadline = {}, .node_limit = 1});
  EXPECT_EQ(layout.status, Status::kTimedOut);
  EXPECT_EQ(layout.offset_bytes, Offsets{});
  EXPECT_GT(layout.height_bytes, 1048576);
}

TEST(Layout, StopsAtTheCapacity) {
  const auto buffers = read_buffers(STOWAGE_TEST_DATA "/layout/C.1048576.csv");
  const Layout layout = lay_out(buffers, {.capacity_bytes = std::int64_t{1} << 40});
  expect_valid(buffers, layout);
  EXPECT_EQ(layout.status, Status::kFeasible);
}

TEST(Layout, RefusesBadBuffers) {
  const auto expect_error = [](const std::vector<Buffer>& buffers, const std::string& text) {
    EXPECT_THAT([&] { lay_out(buffers); }, testing::ThrowsMessage<std::invalid_argument>(text));
  };
  expect_error({buffer(3, 3, 1)}, "cannot lay out buffer 'b': lower 3 is not below upper 3; upper is exclusive");
  expect_error({buffer(0, 1, -1)}, "cannot lay out buffer 'b': size -1 is negative");
  expect_error({buffer(0, 1, std::int64_t{1} << 61), buffer(0, 1, std::int64_t{1} << 61)},
               "cannot lay out buffer 'b': the sizes up to it sum to 2^62 B or more");
  expect_error({fixed(buffer(0, 1, 4), 0), fixed(buffer(0, 1, 4), 3)},
               "cannot lay out buffer 'b': its fixed offset overlaps that of 'b'");
  expect_error({fixed(buffer(0, 1, 4), -4)}, "cannot lay out buffer 'b': offset -4 is negative");
  Buffer crooked = fixed(buffer(0, 1, 4), 6);
  crooked.alignment_bytes = 4;
  expect_error({crooked}, "cannot lay out buffer 'b': offset 6 is not a multiple of its alignment 4");
  crooked.alignment_bytes = 0;
  expect_error({crooked}, "cannot lay out buffer 'b': alignment 0 is not positive");
  crooked.id = "b\n" + std::string(100, 'c');
  expect_error({crooked}, "cannot lay out buffer 'b?" + std::string(58, 'c') + "...': alignment 0 is not positive");
}

TEST(Layout, IsValidOnRandomBuffers) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 engine(seed);
    std::vector<Buffer> buffers;
    for (int count = 0; count < 60; ++count) {
      const auto lower = static_cast<std::int64_t>(engine() % 50);
      buffers.push_back(buffer(lower, lower + 1 + engine() % 20, engine() % 100));
      buffers.back().alignment_bytes = 1 + engine() % 8;
    }
    const Layout layout =
        lay_out(buffers, {.capacity_bytes = {}, .deadline = LayoutLimits{}.deadline, .node_limit = 5000});
    expect_valid(buffers, layout);
  }
}

TEST(Layout, StaysWithinATenthOfTheBoundOnHardProblems) {
  for (const char* name : {"A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"}) {
    SCOPED_TRACE(name);
    const auto buffers = read_buffers(std::string(STOWAGE_TEST_DATA "/layout/") + name + ".1048576.csv");
    const Layout layout =
        lay_out(buffers, {.capacity_bytes = {}, .deadline = LayoutLimits{}.deadline, .node_limit = 20'000});
    expect_valid(buffers, layout);
    EXPECT_LE(layout.height_bytes * 10, layout.bound_bytes * 11);
  }
}

TEST(Layout, SolvesTheSmallProblem) {
  const auto buffers = read_buffers(STOWAGE_TEST_DATA "/layout/input.12.csv");
  const Layout layout = lay_out(buffers, {.capacity_bytes = 12});
  expect_valid(buffers, layout);
  EXPECT_EQ(layout.height_bytes, 12);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

}  // namespace
}  // namespace stowage::solver
