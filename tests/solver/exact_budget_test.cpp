// SPDX-License-Identifier: Apache-2.0
#include "solver/exact_budget.h"

#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "solver/lifetimes.h"
#include "solver/repeat.h"
#include "tests/support/problems.h"
#include "tests/support/training_problem.h"

namespace stowage::solver {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

ExactBudget search(const Problem& problem, std::int64_t peak_bytes, std::int64_t node_limit = 1'000'000) {
  return search_repeats(problem, find_dependencies(problem), peak_bytes, node_limit);
}

std::optional<std::int64_t> least_peak_bytes(const Problem& problem) {
  return search_least_peak(problem, find_dependencies(problem));
}

std::int64_t peak_of(const Problem& problem, const Ids& executions) {
  const Problem repeated = repeat(problem, executions).problem;
  Ids order(repeated.ops.size());
  std::iota(order.begin(), order.end(), 0);
  return play(repeated, order).peak_bytes;
}

/// What "first" makes is taken again at the end, when there is no room for it beside the 20 bytes in the middle.
Problem kept_for_long() {
  return {.name = "kept_for_long",
          .ops = {timed(op("first", {}, {allocate(0)}), 3), timed(op("middle", {0}, {allocate(1)}), 5),
                  timed(op("shrink", {1}, {allocate(2)}), 7), timed(op("last", {0, 2}, {allocate(3)}), 2)},
          .tensors = {bytes(10), bytes(20), bytes(1), output(1)}};
}

TEST(ExactBudget, RepeatsNothingWithinTheUnplannedPeak) {
  const ExactBudget found = search(kept_for_long(), 31);
  EXPECT_EQ(found.executions, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(found.time_ns, 17);
  EXPECT_EQ(found.status, Status::kOptimal);
}

TEST(ExactBudget, MakesAgainWhatDoesNotFit) {
  const ExactBudget found = search(kept_for_long(), 30);  // "middle" needs what it takes and what it makes
  EXPECT_EQ(found.executions, (Ids{0, 1, 2, 0, 3}));
  EXPECT_EQ(found.time_ns, 20);
  EXPECT_EQ(found.status, Status::kOptimal);
}

TEST(ExactBudget, ProvesWhatCannotBeMet) {
  EXPECT_EQ(search(kept_for_long(), 29).status, Status::kInfeasible);
  EXPECT_EQ(least_peak_bytes(kept_for_long()), 30);

  Problem once = kept_for_long();
  once.ops[0].repeatable = false;
  EXPECT_EQ(search(once, 30).status, Status::kInfeasible);
  EXPECT_EQ(least_peak_bytes(once), 31);
}

TEST(ExactBudget, WritesInPlaceAgainWhatItMakesAgain) {
  Problem problem = kept_for_long();
  problem.ops.insert(problem.ops.begin() + 1, timed(op("in_place", {}, {}, {0}), 4));
  EXPECT_EQ(search(problem, 30).executions, (Ids{0, 1, 2, 3, 0, 1, 4}));
  problem.ops[1].repeatable = false;
  EXPECT_EQ(search(problem, 30).status, Status::kInfeasible);
}

TEST(ExactBudget, RepeatsNothingThatHasLostAnInput) {
  Problem problem = kept_for_long();
  problem.tensors.push_back(persistent(0));
  problem.ops[0].reads = {4};
  problem.ops[2].writes = {4};  // "shrink" must run before "last", which needs "first" again after it
  EXPECT_EQ(search(problem, 30).status, Status::kInfeasible);
  problem.ops[0].writes = {4};  // a repeat neither reads nor writes what is its own to write
  EXPECT_EQ(search(problem, 30).executions, (Ids{0, 1, 2, 0, 3}));
}

TEST(ExactBudget, TakesTheMemoryOfAnInputThatDies) {
  Problem problem = kept_for_long();
  problem.tensors[1].size_bytes = 10;
  EXPECT_EQ(least_peak_bytes(problem), 20);
  problem.ops[1] = reusing(std::move(problem.ops[1]), 1, {0});
  EXPECT_EQ(search(problem, 12).executions, (Ids{0, 1, 2, 0, 3}));
  EXPECT_EQ(least_peak_bytes(problem), 12);  // 10 and two of 1 in "last"
}

TEST(ExactBudget, SaysSoWhereItGivesUp) {
  EXPECT_EQ(search(kept_for_long(), 30, /*node_limit=*/2).status, Status::kTimedOut);
  EXPECT_EQ(search_least_peak(kept_for_long(), find_dependencies(kept_for_long()), /*node_limit=*/2), std::nullopt);
  EXPECT_EQ(search(random_problem(1, 65), kNoLimit).status, Status::kTimedOut);
}

Problem with_repeats(Problem problem, std::uint32_t seed) {
  std::mt19937 engine(seed);
  for (Op& op : problem.ops) {
    op.repeatable = engine() % 4 != 0;
    op.duration_ns = 1 + static_cast<std::int64_t>(engine() % 20);
  }
  return problem;
}

/// Searches all limits from the least peak to the lowest without repeats; returns how many schedules repeat something.
int check_all_limits(const Problem& problem) {
  check(problem);
  const std::optional<std::int64_t> least_bytes = least_peak_bytes(problem);
  if (!least_bytes) {
    ADD_FAILURE() << "no least peak";
    return 0;
  }
  std::int64_t time_ns = 0;
  for (const Op& op : problem.ops) time_ns += op.duration_ns;
  EXPECT_EQ(search(problem, *least_bytes - 1).status, Status::kInfeasible);
  int repeating = 0;
  std::int64_t fewer_bytes_ns = kNoLimit;
  for (std::int64_t limit_bytes = *least_bytes;; ++limit_bytes) {
    const ExactBudget found = search(problem, limit_bytes);
    EXPECT_EQ(found.status, Status::kOptimal);
    if (found.status != Status::kOptimal) return repeating;
    EXPECT_LE(peak_of(problem, found.executions), limit_bytes);
    EXPECT_LE(found.time_ns, fewer_bytes_ns);
    fewer_bytes_ns = found.time_ns;
    if (found.time_ns == time_ns) {
      if (problem.ops.size() <= 8) {
        EXPECT_EQ(limit_bytes, std::max(*least_bytes, BruteForce(problem).lowest_peak_bytes()));
      }
      return repeating;
    }
    ++repeating;
  }
}

TEST(ExactBudget, HoldsEveryLimitOnRandomProblems) {
  int repeating = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    repeating += check_all_limits(with_repeats(random_problem(seed, 8), seed));
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(repeating, 50);
}

TEST(ExactBudget, HoldsEveryLimitOnTrainingSteps) {
  int repeating = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    repeating += check_all_limits(training_problem(seed, 4));
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(repeating, 50);
}

}  // namespace
}  // namespace stowage::solver
