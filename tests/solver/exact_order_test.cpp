// SPDX-License-Identifier: Apache-2.0
#include "solver/exact_order.h"

#include <gtest/gtest.h>

#include "solver/lifetimes.h"
#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

using Ids = std::vector<std::int32_t>;

ExactOrder search(const Problem& problem, std::int64_t below_bytes, std::int64_t node_limit = 1'000'000) {
  OrderLimits limits;
  limits.node_limit = node_limit;
  return search_orders(problem, find_dependencies(problem), below_bytes, /*bound_bytes=*/0, limits);
}

TEST(ExactOrder, FindsTheLowestPeakAndProvesIt) {
  const ExactOrder found = search(diamond(), 159);
  EXPECT_EQ(found.ops, (Ids{0, 1, 3, 2, 4, 5}));
  EXPECT_TRUE(found.is_proven);
}

TEST(ExactOrder, ProvesThatNothingIsLower) {
  const ExactOrder found = search(diamond(), 109);
  EXPECT_EQ(found.ops, Ids{});
  EXPECT_TRUE(found.is_proven);
}

TEST(ExactOrder, StopsAtTheBoundWithoutRulingOutTheRest) {
  const ExactOrder found = search_orders(diamond(), find_dependencies(diamond()), 159, /*bound_bytes=*/109, {});
  EXPECT_EQ(play(diamond(), found.ops).peak_bytes, 109);
  EXPECT_TRUE(found.is_proven);
}

TEST(ExactOrder, ProvesNothingBeyondItsNodes) {
  const ExactOrder found = search(random_problem(7, 60), 1, /*node_limit=*/0);
  EXPECT_EQ(found.ops, Ids{});
  EXPECT_TRUE(found.is_proven);  // not even the first op fits: no node was needed

  EXPECT_FALSE(search(diamond(), 109, /*node_limit=*/1).is_proven);
}

/// `count` independent pairs, of which any first ones are better than any other, and `tail` behind them all.
Problem pairs_and_tail(int count, std::int64_t tail_bytes) {
  Problem problem{.name = "pairs", .ops = {}, .tensors = {}};
  Op join = op("join", {}, {});
  for (int pair = 0; pair < count; ++pair) {
    const auto first = static_cast<std::int32_t>(problem.tensors.size());
    problem.ops.push_back(op("grow", {}, {allocate(first)}));
    problem.ops.push_back(op("shrink", {first}, {allocate(first + 1)}));
    problem.tensors.push_back(bytes(10 + pair));
    problem.tensors.push_back(bytes(3));
    join.reads.push_back(first + 1);
  }
  const auto last = static_cast<std::int32_t>(problem.tensors.size());
  join.events = {allocate(last)};
  problem.ops.push_back(join);
  problem.ops.push_back(op("tail", {last}, {allocate(last + 1)}));
  problem.tensors.push_back(bytes(1));
  problem.tensors.push_back(output(tail_bytes));
  return problem;
}

TEST(ExactOrder, GivesUpOnceWhatIsBehindABottleneckFails) {
  // "tail" needs 101 whatever came before. All 2^14 sets of pairs fit below that, but trying one way is enough.
  const ExactOrder found = search(pairs_and_tail(14, 100), 101, /*node_limit=*/5'000);
  EXPECT_EQ(found.ops, Ids{});
  EXPECT_TRUE(found.is_proven);
}

TEST(ExactOrder, AgreesWithBruteForce) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed, 8);
    const std::int64_t lowest_bytes = BruteForce(problem).lowest_peak_bytes();
    const ExactOrder found = search(problem, lowest_bytes + 5);
    ASSERT_TRUE(found.is_proven);
    EXPECT_EQ(play(problem, found.ops).peak_bytes, lowest_bytes);
    EXPECT_EQ(search(problem, lowest_bytes).ops, Ids{});
  }
}

}  // namespace
}  // namespace stowage::solver
