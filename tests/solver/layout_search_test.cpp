// SPDX-License-Identifier: Apache-2.0
#include "solver/layout_search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "solver/formats.h"
#include "solver/layout_race.h"

namespace stowage::solver {
namespace {

using Offsets = std::vector<std::int64_t>;
using Buffers = std::vector<Buffer>;

constexpr const char* kRankings[] = {"TWA", "WAT", "TAW", "CAT", "ZAC"};

Buffer buffer(std::int64_t lower, std::int64_t upper, std::int64_t size_bytes, std::int64_t alignment_bytes = 1) {
  return {.id = "b",
          .lower = lower,
          .upper = upper,
          .size_bytes = size_bytes,
          .alignment_bytes = alignment_bytes,
          .fixed_offset_bytes = std::nullopt};
}

bool share_step(const Buffer& left, const Buffer& right) {
  return left.lower < right.upper && right.lower < left.upper;
}

bool collide(const Buffer& left, std::int64_t left_bytes, const Buffer& right, std::int64_t right_bytes) {
  return share_step(left, right) && left_bytes < right_bytes + right.size_bytes &&
         right_bytes < left_bytes + left.size_bytes;
}

LayoutModel model_of(const Buffers& buffers) {
  std::vector<std::int32_t> ids(buffers.size());
  std::iota(ids.begin(), ids.end(), 0);
  return make_layout_model(buffers, ids);
}

Offsets in_bytes(const LayoutModel& model, Offsets offsets) {
  for (std::int64_t& offset : offsets) offset *= model.unit_bytes;
  return offsets;
}

void expect_valid(const Buffers& buffers, const Offsets& offset_bytes, std::int64_t capacity_bytes) {
  ASSERT_EQ(offset_bytes.size(), buffers.size());
  for (std::size_t left = 0; left < buffers.size(); ++left) {
    EXPECT_GE(offset_bytes[left], 0);
    EXPECT_LE(offset_bytes[left] + buffers[left].size_bytes, capacity_bytes);
    EXPECT_EQ(offset_bytes[left] % buffers[left].alignment_bytes, 0);
    EXPECT_EQ(buffers[left].fixed_offset_bytes.value_or(offset_bytes[left]), offset_bytes[left]);
    for (std::size_t right = 0; right < left; ++right) {
      EXPECT_FALSE(collide(buffers[left], offset_bytes[left], buffers[right], offset_bytes[right]))
          << left << " and " << right;
    }
  }
}

/// Tries every sequence, each buffer as low as those before it and the fixed ones allow: some sequence, that of the
/// offsets in a lowest layout, leads to a lowest layout.
class LowestHeight {
 public:
  explicit LowestHeight(const Buffers& buffers) : buffers_(buffers), offset_bytes_(buffers.size(), -1) {
    std::int64_t height_bytes = 0;
    for (std::size_t id = 0; id < buffers.size(); ++id) {
      if (!buffers[id].fixed_offset_bytes) continue;
      offset_bytes_[id] = *buffers[id].fixed_offset_bytes;
      height_bytes = std::max(height_bytes, offset_bytes_[id] + buffers[id].size_bytes);
    }
    visit(height_bytes);
  }
  std::int64_t bytes() const { return best_bytes_; }

 private:
  void visit(std::int64_t height_bytes) {
    if (height_bytes >= best_bytes_) return;
    bool is_complete = true;
    for (std::size_t id = 0; id < buffers_.size(); ++id) {
      if (offset_bytes_[id] >= 0) continue;
      is_complete = false;
      std::int64_t offset_bytes = 0;
      while (collides(id, offset_bytes)) offset_bytes += buffers_[id].alignment_bytes;
      offset_bytes_[id] = offset_bytes;
      visit(std::max(height_bytes, offset_bytes + buffers_[id].size_bytes));
      offset_bytes_[id] = -1;
    }
    if (is_complete) best_bytes_ = height_bytes;
  }
  bool collides(std::size_t id, std::int64_t offset_bytes) const {
    for (std::size_t other = 0; other < buffers_.size(); ++other) {
      if (offset_bytes_[other] >= 0 && collide(buffers_[id], offset_bytes, buffers_[other], offset_bytes_[other])) {
        return true;
      }
    }
    return false;
  }

  const Buffers& buffers_;
  Offsets offset_bytes_;
  std::int64_t best_bytes_ = std::numeric_limits<std::int64_t>::max();
};

/// Up to eight buffers, some aligned; at most two fixed.
Buffers random_small(std::uint32_t seed) {
  std::mt19937 engine(seed);
  Buffers buffers;
  const std::size_t count = 3 + engine() % 6;
  const std::uint32_t unit = seed % 3 == 0 ? 4 : 1;
  while (buffers.size() < count) {
    const auto lower = static_cast<std::int64_t>(engine() % 8);
    Buffer next = buffer(lower, lower + 1 + engine() % 5, unit * (1 + engine() % 9));
    if (seed % 2 == 0) next.alignment_bytes = 1 + engine() % 6;
    if (seed % 5 == 0 && buffers.size() < 2) {
      next.fixed_offset_bytes = next.alignment_bytes * static_cast<std::int64_t>(engine() % 8);
      if (!buffers.empty() && collide(next, *next.fixed_offset_bytes, buffers[0], *buffers[0].fixed_offset_bytes)) {
        continue;
      }
    }
    buffers.push_back(next);
  }
  return buffers;
}

/// A rectangle of steps and bytes cut into `count` buffers, which fit in it with nothing to spare. Of odd seeds some
/// live shorter than they could; of every third some are fixed where they were cut.
Buffers cut_rectangle(std::uint32_t seed, std::size_t count, std::int64_t step_count, std::int64_t height_bytes) {
  struct Piece {
    std::int64_t lower, upper, start_bytes, end_bytes;
  };
  std::mt19937 engine(seed);
  std::vector<Piece> pieces = {{0, step_count, 0, height_bytes}};
  while (pieces.size() < count) {
    Piece& piece = pieces[engine() % pieces.size()];
    Piece rest = piece;
    const bool in_time = engine() % 2 == 0;
    std::int64_t& end = in_time ? piece.upper : piece.end_bytes;
    std::int64_t& start = in_time ? rest.lower : rest.start_bytes;
    if (end - start < 2) continue;
    end = start = start + 1 + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(end - start - 1));
    pieces.push_back(rest);
  }
  Buffers buffers;
  for (const Piece& piece : pieces) {
    Buffer next = buffer(piece.lower, piece.upper, piece.end_bytes - piece.start_bytes);
    if (seed % 2 == 1 && engine() % 4 == 0 && next.upper - next.lower > 1) ++next.lower;
    if (seed % 3 == 0 && engine() % 8 == 0) next.fixed_offset_bytes = piece.start_bytes;
    buffers.push_back(next);
  }
  std::shuffle(buffers.begin(), buffers.end(), engine);
  return buffers;
}

Buffers random_crowd(std::uint32_t seed, std::size_t count) {
  std::mt19937 engine(seed);
  Buffers buffers;
  for (std::size_t id = 0; id < count; ++id) {
    const auto lower = static_cast<std::int64_t>(engine() % 12);
    buffers.push_back(buffer(lower, lower + 1 + engine() % 6, 1 + engine() % 9));
    if (seed % 3 == 0) buffers.back().alignment_bytes = 1 + engine() % 3;
  }
  return buffers;
}

TEST(LayoutModel, KeepsOnlySectionsThatNoOtherContains) {
  const LayoutModel model = model_of({buffer(0, 10, 8), buffer(1, 4, 4), buffer(2, 6, 4), buffer(6, 9, 12)});
  EXPECT_EQ(model.section_count, 2);  // from step 2, when the first three are live, and from 6
  EXPECT_EQ(model.unit_bytes, 4);
  EXPECT_EQ(model.live.values, (std::vector<std::int32_t>{0, 1, 2, 0, 3}));
  EXPECT_EQ(model.overlapping.values, (std::vector<std::int32_t>{1, 2, 3, 0, 2, 0, 1, 0}));
}

TEST(LayoutModel, CountsInUnitsThatAlignmentsAllow) {
  EXPECT_EQ(model_of({buffer(0, 1, 24, 8), buffer(0, 1, 48, 3)}).unit_bytes, 24);  // both divide it
  EXPECT_EQ(model_of({buffer(0, 1, 24, 16), buffer(0, 1, 48)}).unit_bytes, 8);
  EXPECT_EQ(model_of({buffer(0, 1, 24, 16), buffer(0, 1, 48, 6)}).unit_bytes, 2);
}

TEST(LayoutModel, SplitsWhatSharesNoStep) {
  const Buffers buffers = {buffer(4, 6, 1), buffer(0, 2, 1), buffer(1, 3, 1), buffer(3, 4, 1), buffer(1, 5, 0)};
  EXPECT_EQ(find_components(buffers), (std::vector<std::vector<std::int32_t>>{{1, 2}, {3}, {0}}));
}

TEST(LayoutSearch, AgreesWithBruteForce) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Buffers buffers = random_small(seed);
    const std::int64_t lowest_bytes = LowestHeight(buffers).bytes();
    const Layout layout = lay_out(buffers);
    EXPECT_EQ(layout.height_bytes, lowest_bytes);
    EXPECT_EQ(layout.status, Status::kOptimal);
    expect_valid(buffers, layout.offset_bytes, lowest_bytes);

    const LayoutModel model = model_of(buffers);
    for (const char* ranking : kRankings) {
      FitSearch search(model, ranking, seed % 2);
      EXPECT_EQ(search.run((lowest_bytes - 1) / model.unit_bytes, {.node_limit = 1'000'000}), FitResult::kImpossible);
      ASSERT_EQ(search.run(lowest_bytes / model.unit_bytes, {.node_limit = 1'000'000}), FitResult::kFits);
      expect_valid(buffers, in_bytes(model, search.offsets()), lowest_bytes);
    }
  }
}

TEST(LayoutSearch, NeverRefutesWhatFits) {
  int found = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const std::int64_t height_bytes = 600;
    const Buffers buffers = cut_rectangle(seed, 20 + seed % 60, 60, height_bytes);
    const LayoutModel model = model_of(buffers);
    for (const char* ranking : kRankings) {
      FitSearch search(model, ranking);
      const FitResult result = search.run(height_bytes / model.unit_bytes, {.node_limit = 5'000});
      ASSERT_NE(result, FitResult::kImpossible);
      if (result != FitResult::kFits) continue;
      ++found;
      expect_valid(buffers, in_bytes(model, search.offsets()), height_bytes);
    }
  }
  EXPECT_GE(found, 60 * 4);
}

TEST(LayoutSearch, RankingsAgreeOnTheLowestHeight) {
  int above_load = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Buffers buffers = random_crowd(seed, 9 + seed % 6);
    const LayoutModel model = model_of(buffers);
    ASSERT_EQ(model.unit_bytes, 1);
    const std::int64_t load_bytes = find_layout_bound(buffers);
    std::vector<std::int64_t> lowest;
    for (const char* ranking : kRankings) {
      FitSearch search(model, ranking);
      std::int64_t height = load_bytes;
      while (search.run(height, {.node_limit = 1'000'000}) == FitResult::kImpossible) ++height;
      expect_valid(buffers, search.offsets(), height);
      lowest.push_back(height);
    }
    EXPECT_EQ(lowest, std::vector<std::int64_t>(lowest.size(), lowest[0]));
    above_load += lowest[0] > load_bytes ? 1 : 0;
  }
  EXPECT_GE(above_load, 3);
}

TEST(LayoutSearch, ProvesThatNothingFitsInTheLoad) {
  const Buffers buffers = {buffer(3, 9, 2), buffer(0, 1, 4), buffer(6, 9, 5), buffer(1, 3, 3),
                           buffer(0, 4, 2), buffer(4, 5, 3), buffer(5, 6, 5), buffer(1, 5, 3)};
  EXPECT_EQ(find_layout_bound(buffers), 8);
  EXPECT_EQ(LowestHeight(buffers).bytes(), 9);
  const Layout refused = lay_out(buffers, {.capacity_bytes = 8});
  EXPECT_EQ(refused.status, Status::kInfeasible);
  EXPECT_EQ(refused.bound_bytes, 9);
  EXPECT_EQ(refused.offset_bytes, Offsets{});
  const Layout lowest = lay_out(buffers);
  EXPECT_EQ(lowest.status, Status::kOptimal);
  EXPECT_EQ(lowest.bound_bytes, 9);
  expect_valid(buffers, lowest.offset_bytes, 9);
}

TEST(LayoutSearch, StacksStairs) {
  // Each buffer lives on as the next two come, sizes grow: 1, 2, 3, ... Only the largest three are live together.
  Buffers buffers;
  for (std::int64_t step = 0; step < 40; ++step) buffers.push_back(buffer(step, step + 3, step + 1));
  const Layout layout = lay_out(buffers, {.node_limit = 200'000});
  EXPECT_EQ(layout.bound_bytes, 38 + 39 + 40);
  EXPECT_EQ(layout.status, Status::kOptimal);
  expect_valid(buffers, layout.offset_bytes, layout.height_bytes);
}

TEST(LayoutSearch, LaysOutALongTrainingStep) {
  std::mt19937 engine(1);
  const auto size_bytes = [&engine] { return 512 * static_cast<std::int64_t>(1 + engine() % 4096); };
  const std::int64_t forward_count = 10'000;
  Buffers buffers;
  for (std::int64_t op = 0; op < forward_count; ++op) {
    const std::int64_t backward_op = 2 * forward_count - op;
    buffers.push_back(buffer(op, backward_op, size_bytes()));                  // activation
    buffers.push_back(buffer(backward_op, backward_op + 2, size_bytes()));     // gradient
    if (op % 2 == 0) buffers.push_back(buffer(op, op + 1, 4 * size_bytes()));  // workspace
  }
  const Layout layout = lay_out(buffers);
  ASSERT_EQ(layout.offset_bytes.size(), buffers.size());
  EXPECT_LE(layout.height_bytes * 100, layout.bound_bytes * 101);

  // Sweep over the steps: ends come before starts, and whoever starts has free neighbours.
  std::vector<std::pair<std::int64_t, std::size_t>> events;
  for (std::size_t id = 0; id < buffers.size(); ++id) {
    events.emplace_back(2 * buffers[id].upper, id);
    events.emplace_back(2 * buffers[id].lower + 1, id);
  }
  std::sort(events.begin(), events.end());
  std::map<std::int64_t, std::int64_t> live;  // start, end
  for (const auto& [time, id] : events) {
    const std::int64_t start_bytes = layout.offset_bytes[id];
    const std::int64_t end_bytes = start_bytes + buffers[id].size_bytes;
    if (time % 2 == 0) {
      live.erase(start_bytes);
      continue;
    }
    const auto above = live.lower_bound(start_bytes);
    ASSERT_TRUE(above == live.end() || end_bytes <= above->first) << id;
    ASSERT_TRUE(above == live.begin() || std::prev(above)->second <= start_bytes) << id;
    live.emplace(start_bytes, end_bytes);
  }
}

TEST(LayoutSearch, LearnsNothingFromACapacityForALargerOne) {
  const Buffers buffers = {buffer(0, 2, 5, 4), buffer(0, 2, 3, 4)};
  const LayoutModel model = model_of(buffers);
  FitSearch search(model, "TWA");
  EXPECT_EQ(search.run(8, {.node_limit = 100}), FitResult::kImpossible);
  EXPECT_EQ(search.run(9, {.node_limit = 100}), FitResult::kFits);  // the smaller one beneath
  EXPECT_EQ(search.offsets(), (Offsets{4, 0}));
  EXPECT_EQ(search.run(8, {.node_limit = 100}), FitResult::kImpossible);
}

TEST(LayoutSearch, KeepsToItsLimits) {
  const auto buffers = read_buffers(STOWAGE_TEST_DATA "/layout/D.1048576.csv");
  const LayoutModel model = model_of(buffers);
  FitSearch search(model, "TWA");
  EXPECT_EQ(search.run(963, {.node_limit = 1000}), FitResult::kStopped);
  EXPECT_EQ(search.node_count(), 1000);
  const FitLimits past{.node_limit = 1'000'000'000, .deadline = std::chrono::steady_clock::now()};
  EXPECT_EQ(search.run(963, past), FitResult::kStopped);
  EXPECT_EQ(search.node_count(), 0);
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(search.run(963, {.node_limit = 1'000'000'000, .cancelled = &cancelled}), FitResult::kStopped);
}

TEST(LayoutRace, GivesTheSameAnswerOnAnyNumberOfThreads) {
  const auto buffers = read_buffers(STOWAGE_TEST_DATA "/layout/H.1048576.csv");
  const LayoutModel model = model_of(buffers);
  LayoutRace alone(model, 1);
  LayoutRace together(model, 4);
  // Another ranking than the first wins; the last run must not depend on how far the losers of the one before came.
  for (const std::int64_t nodes_each : {1000, 4000, 4000}) {
    const auto deadline = std::chrono::steady_clock::time_point::max();
    const FitResult result = alone.run(1024, nodes_each, 7, deadline);
    EXPECT_EQ(together.run(1024, nodes_each, 7, deadline), result);
    EXPECT_EQ(together.node_count(), alone.node_count());
    EXPECT_EQ(result, nodes_each < 4000 ? FitResult::kStopped : FitResult::kFits);
    if (result != FitResult::kFits) continue;
    EXPECT_EQ(together.offsets(), alone.offsets());
  }
}

TEST(LayoutRace, LayoutsDoNotDependOnThreads) {
  for (const char* name : {"A", "J"}) {
    SCOPED_TRACE(name);
    const auto buffers = read_buffers(std::string(STOWAGE_TEST_DATA "/layout/") + name + ".1048576.csv");
    const Layout first = lay_out(buffers, {.node_limit = 30'000, .thread_count = 1});
    for (const int thread_count : {1, 2, 3}) {
      const Layout again = lay_out(buffers, {.node_limit = 30'000, .thread_count = thread_count});
      EXPECT_EQ(again.offset_bytes, first.offset_bytes);
      EXPECT_EQ(again.height_bytes, first.height_bytes);
      EXPECT_EQ(again.bound_bytes, first.bound_bytes);
    }
  }
}

TEST(LayoutRace, SolvesTheHardProblems) {
  for (const char* name : {"A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"}) {
    SCOPED_TRACE(name);
    const auto buffers = read_buffers(std::string(STOWAGE_TEST_DATA "/layout/") + name + ".1048576.csv");
    const Layout layout = lay_out(buffers, {.capacity_bytes = 1'048'576, .node_limit = 400'000});
    expect_valid(buffers, layout.offset_bytes, 1'048'576);
  }
}

}  // namespace
}  // namespace stowage::solver
