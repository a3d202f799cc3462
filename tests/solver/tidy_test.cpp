// SPDX-License-Identifier: Apache-2.0
#include "solver/tidy.h"

#include <gtest/gtest.h>

#include "solver/order.h"
#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

std::vector<std::int32_t> tidied(const Problem& problem, const std::vector<std::int32_t>& order) {
  return tidy(problem, find_dependencies(problem), order, play(problem, order));
}

/// A weight read by two ops, its momentum, a gradient, and an update written last.
Problem update() {
  return {.name = "update",
          .ops = {op("view", {0}, {}), op("decay", {1}, {}, {1}), op("forward", {0}, {allocate(2)}, {}, {0}),
                  op("gradient", {0, 2}, {allocate(3)}), op("other", {2}, {allocate(4)}), op("gather", {1, 3}, {}, {1}),
                  op("update", {0, 1}, {}, {0}), op("end", {4}, {allocate(5)})},
          .tensors = {persistent(8), persistent(8), bytes(16), bytes(8), bytes(4), output(4)}};
}

TEST(Tidy, UpdateRunsWithItsChainAsSoonAsItsGradientIsThere) {
  // decay waits for gather, which needs the gradient; then the update, before anything else.
  EXPECT_EQ(tidied(update(), {0, 1, 2, 3, 4, 7, 5, 6}), (std::vector<std::int32_t>{0, 2, 3, 1, 5, 6, 4, 7}));
}

TEST(Tidy, ViewRunsRightBeforeItsFirstUser) {
  Problem problem = chain();
  problem.ops.push_back(op("use", {2}, {allocate(4)}, {}, {2}));
  problem.ops[2] = op("view", {1}, {});
  problem.tensors = {persistent(4), bytes(10), bytes(20), output(5), output(5)};
  problem.ops.insert(problem.ops.begin() + 3, op("c", {2}, {allocate(3)}));
  problem.ops.back().after = {2};
  EXPECT_EQ(tidied(problem, {0, 2, 1, 3, 4}), (std::vector<std::int32_t>{0, 1, 3, 2, 4}));
}

TEST(Tidy, KeepsDependenciesAndNeverRaisesThePeakOfAnOrder) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Problem problem = random_problem(seed, 30);
    const Order order = find_order(problem);
    EXPECT_EQ(play(problem, order.ops).peak_bytes, order.peak_bytes);
    EXPECT_LE(order.peak_bytes, order.program_peak_bytes);
    std::vector<std::int32_t> step_of(problem.ops.size());
    const auto again = tidied(problem, order.ops);
    ASSERT_EQ(again.size(), problem.ops.size());
    for (std::int32_t step = 0; step < std::ssize(again); ++step) step_of[again[step]] = step;
    const Dependencies dependencies = find_dependencies(problem);
    for (std::int32_t each = 0; each < std::ssize(problem.ops); ++each) {
      for (const std::int32_t before : dependencies.predecessors[each]) EXPECT_LT(step_of[before], step_of[each]);
    }
  }
}

}  // namespace
}  // namespace stowage::solver
