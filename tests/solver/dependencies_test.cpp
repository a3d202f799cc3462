// SPDX-License-Identifier: Apache-2.0
#include "solver/dependencies.h"

#include <gtest/gtest.h>

#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

using Lists = std::vector<std::vector<std::int32_t>>;

TEST(Dependencies, FollowReadsAndWrites) {
  const Dependencies found = find_dependencies(in_place());
  // "read" before "overwrite" (write after read), "overwrite" before "use" (read after write).
  EXPECT_EQ(found.predecessors, (Lists{{}, {0}, {0, 1}, {1, 2}}));
  EXPECT_EQ(found.successors, (Lists{{1, 2}, {2, 3}, {3}, {}}));
}

TEST(Dependencies, OrderWritesOfOneTensor) {
  const Problem problem{.name = "writes",
                        .ops = {op("first", {}, {}, {0}), op("second", {}, {}, {0}), op("third", {0}, {}, {0})},
                        .tensors = {persistent(4)}};
  EXPECT_EQ(find_dependencies(problem).predecessors, (Lists{{}, {0}, {1}}));
}

TEST(Dependencies, LetReadsPassOneAnother) {
  const Problem problem{
      .name = "reads", .ops = {op("first", {0}, {}), op("second", {0}, {})}, .tensors = {persistent(4)}};
  EXPECT_EQ(find_dependencies(problem).predecessors, (Lists{{}, {}}));
}

TEST(Dependencies, KeepWhatAfterSays) {
  EXPECT_EQ(find_dependencies(view()).predecessors, (Lists{{}, {0}, {}, {0, 1, 2}}));
}

TEST(Closure, AgreesWithWalkingTheEdges) {
  const Problem problem = random_problem(7, 150);  // three blocks of 64
  const Dependencies dependencies = find_dependencies(problem);
  const auto op_count = static_cast<std::int32_t>(problem.ops.size());
  std::vector<std::vector<char>> precedes(op_count, std::vector<char>(op_count));
  for (std::int32_t op = 0; op < op_count; ++op) {
    for (const std::int32_t previous : dependencies.predecessors[op]) {
      precedes[previous][op] = true;
      for (std::int32_t other = 0; other < op_count; ++other) precedes[other][op] |= precedes[other][previous];
    }
  }
  ClosureBlock block;
  for (const std::int32_t first_op : {0, 64, 128, 149}) {
    find_closure(dependencies, first_op, block);
    for (std::int32_t k = 0; k < 64 && first_op + k < op_count; ++k) {
      for (std::int32_t op = 0; op < op_count; ++op) {
        EXPECT_EQ((block.before[op] >> k & 1) != 0, precedes[op][first_op + k] != 0) << op << ' ' << first_op + k;
        EXPECT_EQ((block.after[op] >> k & 1) != 0, precedes[first_op + k][op] != 0) << op << ' ' << first_op + k;
      }
    }
  }
}

}  // namespace
}  // namespace stowage::solver
