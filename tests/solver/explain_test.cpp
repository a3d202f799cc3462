// SPDX-License-Identifier: Apache-2.0
#include "solver/explain.h"

#include <gtest/gtest.h>

#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

TEST(Explain, NamesMakerAndUserOfWhatMustLive) {
  Problem problem = diamond();
  problem.tensors[0].output = true;
  const Dependencies dependencies = find_dependencies(problem);
  const OrderBound bound = find_order_bound(problem, dependencies);
  ASSERT_EQ(bound.op, 3);  // "left_end"
  EXPECT_EQ(explain_bound(problem, dependencies, bound),
            (std::vector<Reason>{
                {.tensor = 1, .made_by = 1, .used_by = 3},   // 100: "left_end" reads it
                {.tensor = 0, .made_by = 0, .used_by = -1},  // 8: an output
                {.tensor = 3, .made_by = 3, .used_by = 3},   // 1: "left_end" makes it
            }));
}

TEST(Explain, NamesALaterUser) {
  const Dependencies dependencies = find_dependencies(diamond());
  const OrderBound bound = find_order_bound(diamond(), dependencies);
  EXPECT_EQ(explain_bound(diamond(), dependencies, bound)[1], (Reason{.tensor = 0, .made_by = 0, .used_by = 5}));
}

TEST(Explain, HasNothingToSayOfPersistentTensors) {
  const Problem problem{.name = "still", .ops = {op("a", {0}, {}, {0})}, .tensors = {persistent(7)}};
  const Dependencies dependencies = find_dependencies(problem);
  EXPECT_EQ(explain_bound(problem, dependencies, find_order_bound(problem, dependencies)), std::vector<Reason>{});
}

}  // namespace
}  // namespace stowage::solver
