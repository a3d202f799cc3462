// SPDX-License-Identifier: Apache-2.0
// Layouts that are cut because memory is there anyway.
#include <algorithm>

#include <gtest/gtest.h>

#include "solver/solve.h"
#include "solver/validate.h"
#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

/// Tensors that all live at once.
Problem together(const std::vector<Tensor>& tensors) {
  Problem problem{.name = "together", .ops = {}, .tensors = tensors};
  std::vector<std::int32_t> made;
  for (std::int32_t id = 0; id < std::ssize(tensors); ++id) {
    problem.ops.push_back(op("make", made, {allocate(id)}));
    made.push_back(id);
  }
  return problem;
}

Problem three_tens() { return together({bytes(10), bytes(10), bytes(10)}); }

Plan solve_beside(const Problem& problem, std::int64_t spare_bytes) {
  // No deadline that a slow machine could meet: nodes limit the search.
  Plan plan = solve(problem, {.deadline_ms = 3'600'000, .node_limit = 2'000, .spare_bytes = spare_bytes});
  EXPECT_EQ(validate(problem, plan), std::nullopt);
  return plan;
}

/// What the plan needs besides the memory that is there.
std::int64_t besides_bytes(const Plan& plan) { return plan.arena_bytes - plan.cut_bytes; }

TEST(Cut, LiesWhereTheSpareMemoryEnds) {
  const Plan plan = solve_beside(three_tens(), 20);
  EXPECT_EQ(plan.cut_bytes, 20);
  EXPECT_EQ(plan.arena_bytes, 30);
  EXPECT_EQ(plan.layout_status, Status::kOptimal);
}

TEST(Cut, LiesLowerWhereNoMoreFitsBelow) {
  // Cut at 15, one tensor lies below, and five bytes are lost. Where that one ends, as much lies above.
  const Plan plan = solve_beside(three_tens(), 15);
  EXPECT_EQ(plan.cut_bytes, 10);
  EXPECT_EQ(plan.arena_bytes, 30);
}

TEST(Cut, IsAMultipleOfTheAlignments) {
  Tensor wide = bytes(16);
  wide.alignment_bytes = 8;
  const Plan plan = solve_beside(together({wide, bytes(8), wide}), 31);
  EXPECT_EQ(plan.cut_bytes, 24);
  EXPECT_EQ(besides_bytes(plan), 16);
}

TEST(Cut, IsNotMadeWithoutNeed) {
  const Plan whole = solve_beside(three_tens(), 0);
  EXPECT_EQ(whole.cut_bytes, 0);
  EXPECT_EQ(whole.arena_bytes, 30);
  EXPECT_EQ(solve_beside(three_tens(), 30), whole);  // it fits in what is there
  EXPECT_EQ(solve_beside(three_tens(), 1'000), whole);
}

TEST(Cut, IsNotMadeWhereItSavesNothing) {
  const Plan whole = solve_beside(three_tens(), 0);
  for (const std::int64_t spare_bytes : {-7, 1, 2, 9}) {
    EXPECT_EQ(solve_beside(three_tens(), spare_bytes), whole) << spare_bytes;  // no tensor fits below
  }
  Tensor page = bytes(64);
  page.alignment_bytes = 64;
  EXPECT_EQ(solve_beside(together({page, page}), 63).cut_bytes, 0);
  EXPECT_EQ(solve_beside({.name = "empty", .ops = {}, .tensors = {}}, 100).cut_bytes, 0);
}

TEST(Cut, IsRefusedOffTheAlignment) {
  Tensor half = bytes(4);
  half.alignment_bytes = 4;
  const Problem problem = together({half, half});
  Plan plan = solve_beside(problem, 0);
  plan.offset_bytes = {0, 8};
  plan.arena_bytes = 12;
  plan.layout_status = Status::kFeasible;
  EXPECT_EQ(validate(problem, plan), std::nullopt);
  plan.cut_bytes = 8;
  EXPECT_EQ(validate(problem, plan), std::nullopt);
  plan.cut_bytes = 6;
  EXPECT_EQ(validate(problem, plan), "slots: the cut at 6 B is not a multiple of the alignment 4 of tensor 0 ''");
}

TEST(Cut, PlansOfRandomProblemsAreValidAndNeverNeedMore) {
  int cuts = 0;
  int lower_cuts = 0;
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    const Problem problem = random_problem(seed, 5 + static_cast<int>(seed % 60));
    const Plan whole = solve_beside(problem, 0);
    const std::int64_t spare_bytes = 1 + (seed * 37) % (whole.arena_bytes + 10);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", spare " << spare_bytes);
    const Plan plan = solve_beside(problem, spare_bytes);
    EXPECT_EQ(plan, solve_beside(problem, spare_bytes));
    EXPECT_EQ(plan.order, whole.order);
    EXPECT_EQ(plan.arena_bound_bytes, whole.arena_bound_bytes);
    if (plan.cut_bytes == 0) {
      EXPECT_EQ(plan, whole);
      continue;
    }
    EXPECT_LE(plan.cut_bytes, spare_bytes);
    EXPECT_GT(whole.arena_bytes, spare_bytes);
    EXPECT_LT(besides_bytes(plan), whole.arena_bytes);
    ++cuts;
    lower_cuts += plan.cut_bytes + 8 < spare_bytes ? 1 : 0;
  }
  EXPECT_GT(cuts, 15);
  EXPECT_GT(lower_cuts, 0);
}

}  // namespace
}  // namespace stowage::solver
