// SPDX-License-Identifier: Apache-2.0
#include "solver/bound.h"

#include <gtest/gtest.h>

#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

OrderBound bound_of(const Problem& problem) { return find_order_bound(problem, find_dependencies(problem)); }

TEST(OrderBound, CountsWhatMustLive) {
  const OrderBound bound = bound_of(diamond());
  // "left_end" needs its input (100) and its output (1); the source (8) waits for "join".
  EXPECT_EQ(bound.bytes, 109);
  EXPECT_EQ(bound.op, 3);
  EXPECT_EQ(bound.tensors, (std::vector<std::int32_t>{0, 1, 3}));
}

TEST(OrderBound, CountsWorkspaceInItsSequence) {
  const Problem problem{
      .name = "workspace",
      .ops = {op("a", {}, {allocate(0)}), op("b", {0}, {allocate(1), free(1), allocate(2), allocate(3), free(3)})},
      .tensors = {bytes(10), bytes(7), output(5), bytes(4)}};
  const OrderBound bound = bound_of(problem);
  EXPECT_EQ(bound.bytes, 19);  // 10, then 7, or 5 and 4 once the 7 are freed
  EXPECT_EQ(bound.op, 1);
  EXPECT_EQ(bound.tensors, (std::vector<std::int32_t>{0, 2, 3}));
}

TEST(OrderBound, KeepsOutputsToTheEnd) {
  const Problem problem{.name = "outputs",
                        .ops = {op("a", {}, {allocate(0)}), op("b", {0}, {allocate(1)}), op("c", {1}, {allocate(2)})},
                        .tensors = {output(10), bytes(1), bytes(20)}};
  EXPECT_EQ(bound_of(problem).bytes, 31);
}

TEST(OrderBound, IsThePersistentSumWhereNothingIsAllocated) {
  const Problem problem{.name = "still", .ops = {op("a", {0}, {}, {0})}, .tensors = {persistent(7)}};
  const OrderBound bound = bound_of(problem);
  EXPECT_EQ(bound.bytes, 7);
  EXPECT_EQ(bound.op, -1);
}

TEST(OrderBound, IsSharpenedByContradiction) {
  // As far as must-live sums know, "tail" could free tensor 0 before "peak" runs. But tensor 1 would be alive during
  // "tail" then: 10 + 60 + 40, more than the 105 that the order has which runs "peak" first.
  const Problem problem{.name = "hill",
                        .ops = {op("head", {}, {allocate(0), allocate(1)}), op("peak", {1}, {allocate(2)}),
                                op("tail", {0}, {allocate(3), free(3)}), op("end", {2}, {})},
                        .tensors = {bytes(10), bytes(60), bytes(35), bytes(40)}};
  const Dependencies dependencies = find_dependencies(problem);
  const OrderBound known = find_order_bound(problem, dependencies);
  EXPECT_EQ(known.bytes, 95);  // tensors 1 and 2 in "peak"
  const OrderBound sharp = sharpen_order_bound(problem, dependencies, {0, 1, 3, 2}, known);
  EXPECT_EQ(sharp.bytes, 105);
  EXPECT_EQ(sharp.op, 1);
  EXPECT_EQ(sharp.tensors, (std::vector<std::int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace stowage::solver
