// SPDX-License-Identifier: Apache-2.0
#include "solver/time_bound.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "solver/exact_budget.h"
#include "tests/support/problems.h"
#include "tests/support/training_problem.h"

namespace stowage::solver {
namespace {

using Ids = std::vector<std::int32_t>;

/// Three layers, whose backward ops take what the layers left: 10, 6 and 4 bytes. The
/// peak is in "turn", with 30.
Problem three_layers() {
  return {.name = "three_layers",
          .ops = {timed(op("dear", {}, {allocate(0)}), 50), timed(op("cheap", {0}, {allocate(1)}), 3),
                  timed(op("middling", {1}, {allocate(2)}), 8),
                  timed(op("turn", {2}, {allocate(3), allocate(7), free(7)}), 1),
                  timed(op("middling_back", {2, 3}, {allocate(4)}), 1),
                  timed(op("cheap_back", {1, 4}, {allocate(5)}), 1), timed(op("dear_back", {0, 5}, {allocate(6)}), 1)},
          .tensors = {bytes(10), bytes(6), bytes(4), bytes(2), bytes(2), bytes(1), output(1), bytes(8)}};
}

class Bounds {
 public:
  explicit Bounds(const Problem& problem)
      : problem_(problem), dependencies_(find_dependencies(problem_)), bounds_(problem_, dependencies_) {}

  const TimeBounds* operator->() const { return &bounds_; }

 private:
  const Problem problem_;
  const Dependencies dependencies_;
  const TimeBounds bounds_;
};

TEST(TimeBound, IsTheTimeOfAllOpsWhereEverythingFits) {
  EXPECT_EQ(Bounds(three_layers())->find(30), (TimeBound{.time_ns = 65, .op = -1, .is_infeasible = false}));
}

TEST(TimeBound, AddsTheCheapestRepeatsThatMakeRoom) {
  // Of the 30 bytes in "turn", 14 are its own: "cheap" gives 6 of the others for 3 ns, "dear" 10 for 50 ns.
  const Bounds bounds(three_layers());
  EXPECT_EQ(bounds->find(24), (TimeBound{.time_ns = 68, .op = 3, .is_infeasible = false}));
  // 5 bytes cost less than 6 as far as the relaxed limit is concerned: 2.5 ns, and time is whole.
  EXPECT_EQ(bounds->find(25).time_ns, 68);
}

TEST(TimeBound, KnowsWhatRepeatsTakeThemselves) {
  Problem problem = three_layers();
  problem.ops[6].reads = {5};  // what "dear" makes is taken by "cheap" alone, so "cheap" again is "dear" again, or 10
  const Bounds bounds(problem);
  EXPECT_EQ(bounds->relax(3),
            (std::vector<Relaxed>{{.dropped = {1}, .kept = {}, .repeats = {0, 1}, .bytes = 14, .time_ns = 53},
                                  {.dropped = {}, .kept = {}, .repeats = {}, .bytes = 20, .time_ns = 0}}));
}

TEST(TimeBound, KnowsThatWritersInPlaceRunAgainToo) {
  Problem problem = three_layers();
  problem.ops.insert(problem.ops.begin() + 2, timed(op("in_place", {}, {}, {1}), 4));
  EXPECT_EQ(Bounds(problem)->find(24).time_ns, 69 + 7);
  problem.ops[2].repeatable = false;
  EXPECT_EQ(Bounds(problem)->find(24).time_ns, 69 + 50 * 6 / 10);
}

TEST(TimeBound, RepeatsNothingThatHasLostAnInput) {
  Problem problem = three_layers();
  problem.tensors.push_back(persistent(0));
  problem.ops[1].reads.push_back(8);
  EXPECT_EQ(Bounds(problem)->find(24).time_ns, 68);
  problem.ops[3].writes = {8};  // after it, "cheap" cannot run again; while it runs, it still could
  EXPECT_EQ(Bounds(problem)->find(24).time_ns, 68);
  problem.ops[2].writes = {8};
  EXPECT_EQ(Bounds(problem)->find(24).time_ns, 65 + 50 * 6 / 10);
}

TEST(TimeBound, ProvesWhatCannotBeMet) {
  const Bounds bounds(three_layers());
  EXPECT_EQ(bounds->least_peak_bytes(), 16);  // "cheap": 10 that it takes, 6 that it makes
  EXPECT_FALSE(bounds->find(16).is_infeasible);
  EXPECT_TRUE(bounds->find(15).is_infeasible);
}

TEST(TimeBound, CountsNoMemoryThatMayBeReused) {
  Problem problem = three_layers();
  problem.tensors[1].size_bytes = 10;
  EXPECT_EQ(Bounds(problem)->least_peak_bytes(), 20);
  problem.ops[1] = reusing(std::move(problem.ops[1]), 1, {0});
  EXPECT_EQ(Bounds(problem)->least_peak_bytes(), 14);  // "middling": 10 and 4
  problem.ops[0].repeatable = false;                   // so that what it makes must live on
  EXPECT_EQ(Bounds(problem)->least_peak_bytes(), 24);
}

TEST(Relax, TellsWhatEachByteCosts) {
  EXPECT_EQ(Bounds(three_layers())->relax(3),
            (std::vector<Relaxed>{{.dropped = {0, 1}, .kept = {}, .repeats = {0, 1}, .bytes = 14, .time_ns = 53},
                                  {.dropped = {1}, .kept = {}, .repeats = {1}, .bytes = 24, .time_ns = 3},
                                  {.dropped = {}, .kept = {}, .repeats = {}, .bytes = 30, .time_ns = 0}}));
}

TEST(Relax, GivesTheCornersOfAConvexHullThatTheBoundGoesThrough) {
  int corners = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = training_problem(seed, 12);
    const Bounds bounds(problem);
    const std::int64_t time_ns = bounds->find(1'000'000).time_ns;
    for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
      const std::vector<Relaxed> choices = bounds->relax(op);
      EXPECT_EQ(choices.back().time_ns, 0);
      for (std::size_t next = 0; next < choices.size(); ++next) {
        const Relaxed& choice = choices[next];
        const TimeBound bound = bounds->find(choice.bytes);
        if (!bound.is_infeasible) {
          EXPECT_GE(bound.time_ns, time_ns + choice.time_ns);
        }
        if (next + 1 < choices.size()) {
          EXPECT_LT(choice.bytes, choices[next + 1].bytes);
          EXPECT_GT(choice.time_ns, choices[next + 1].time_ns);
        }
        if (next == 0 || next + 1 == choices.size()) continue;
        ++corners;
        const Relaxed& before = choices[next - 1];
        const Relaxed& after = choices[next + 1];
        EXPECT_GE((before.time_ns - choice.time_ns) * (after.bytes - choice.bytes),
                  (choice.time_ns - after.time_ns) * (choice.bytes - before.bytes));
      }
    }
  }
  EXPECT_GT(corners, 300);
}

struct Tally {
  int limits = 0;
  int tight = 0;      ///< the bound equals the least time, which needs repeats
  int repeating = 0;  ///< the least time needs repeats
};

/// At all limits at which the least time differs from that without repeats.
void compare_with_search(const Problem& problem, Tally& tally) {
  const Bounds bounds(problem);
  const Dependencies dependencies = find_dependencies(problem);
  std::int64_t least_time_ns = 0;
  for (const Op& op : problem.ops) least_time_ns += op.duration_ns;
  const std::optional<std::int64_t> least_bytes = search_least_peak(problem, dependencies);
  ASSERT_TRUE(least_bytes);
  EXPECT_LE(bounds->least_peak_bytes(), *least_bytes);
  EXPECT_TRUE(bounds->find(bounds->least_peak_bytes() - 1).is_infeasible);
  TimeBound below = bounds->find(*least_bytes);
  for (std::int64_t limit_bytes = *least_bytes;; ++limit_bytes) {
    const TimeBound bound = bounds->find(limit_bytes);
    const ExactBudget found = search_repeats(problem, dependencies, limit_bytes);
    ASSERT_EQ(found.status, Status::kOptimal);
    ++tally.limits;
    EXPECT_FALSE(bound.is_infeasible);
    EXPECT_LE(bound.time_ns, found.time_ns) << "at " << limit_bytes;
    EXPECT_LE(bound.time_ns, below.time_ns);
    below = bound;
    if (found.time_ns == least_time_ns) return;
    ++tally.repeating;
    tally.tight += bound.time_ns == found.time_ns ? 1 : 0;
  }
}

TEST(TimeBound, IsNeverAboveTheLeastTimeOfTrainingSteps) {
  Tally tally;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    compare_with_search(training_problem(seed, 4), tally);
    ASSERT_FALSE(HasFailure());
  }
  RecordProperty("repeating", tally.repeating);
  RecordProperty("tight", tally.tight);
  EXPECT_GT(tally.tight, tally.repeating / 10);
}

TEST(TimeBound, IsNeverAboveTheLeastTimeOfRandomProblems) {
  Tally tally;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 engine(seed);
    Problem problem = random_problem(seed, 8);
    for (Op& op : problem.ops) {
      op.repeatable = engine() % 4 != 0;
      op.duration_ns = 1 + static_cast<std::int64_t>(engine() % 20);
    }
    compare_with_search(problem, tally);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(tally.repeating, 50);
}

}  // namespace
}  // namespace stowage::solver
