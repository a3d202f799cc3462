// SPDX-License-Identifier: Apache-2.0
#include "solver/solve.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "solver/lifetimes.h"
#include "solver/validate.h"
#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(Solve, PlansAChain) {
  const Plan plan = solve(chain());
  EXPECT_EQ(plan, (Plan{.order = {0, 1, 2},
                        // Tensor 2, the largest, comes first; 1 and 3 both meet it, but not one another.
                        .offset_bytes = {kNoSlot, 20, 0, 20},
                        .reuse_of = {kNoReuse, kNoReuse, kNoReuse, kNoReuse},
                        .frees_after = {{}, {1}, {2}},
                        .peak_bytes = 34,  // 4 persistent, 10 and 20
                        .program_peak_bytes = 34,
                        .bound_bytes = 34,
                        .bound_op = 1,
                        .order_status = Status::kOptimal,
                        .arena_bytes = 30,
                        .arena_bound_bytes = 30,
                        .layout_status = Status::kOptimal}));
}

TEST(Solve, RunsOneBranchOfADiamondAfterTheOther) {
  const Plan plan = solve(diamond());
  EXPECT_EQ(plan.order, (Ids{0, 1, 3, 2, 4, 5}));
  EXPECT_EQ(plan.program_peak_bytes, 159);  // 8 + 100 + 50 + 1
  EXPECT_EQ(plan.peak_bytes, 109);          // 8 + 100 + 1
  EXPECT_EQ(plan.bound_bytes, 109);
  EXPECT_EQ(plan.order_status, Status::kOptimal);
  EXPECT_EQ(plan.frees_after, (std::vector<Ids>{{}, {}, {}, {1}, {2}, {0, 3, 4}}));
  EXPECT_EQ(validate(diamond(), plan), std::nullopt);
}

TEST(Solve, KeepsReadsAroundAWriteInPlace) {
  const Plan plan = solve(in_place());
  EXPECT_EQ(plan.order, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(plan.frees_after[3], (Ids{0, 1}));
}

TEST(Solve, KeepsTheStorageOfAViewUntilItsLastRead) {
  const Plan plan = solve(view());
  EXPECT_EQ(plan.frees_after[3], (Ids{0, 1}));
  EXPECT_EQ(validate(view(), plan), std::nullopt);
}

TEST(Solve, ReordersDrawsOnlyWithoutAControlEdge) {
  EXPECT_EQ(solve(two_draws(false)).peak_bytes, 101);  // the second draw first: 100 and 1
  const Plan ordered = solve(two_draws(true));
  EXPECT_EQ(ordered.peak_bytes, 111);  // the first draw's 10 wait for the second
  EXPECT_EQ(ordered.order_status, Status::kOptimal);
  EXPECT_EQ(validate(two_draws(true), ordered), std::nullopt);
}

TEST(Solve, RunsUpdatesAsSoonAsTheirGradientExists) {
  // Two layers' gradients, then the two updates in program order at the end.
  const Problem problem{
      .name = "updates",
      .ops = {op("forward", {0, 1}, {allocate(2)}), op("gradient_1", {0, 2}, {allocate(3)}),
              op("gradient_0", {1, 2}, {allocate(4)}), op("update_0", {4}, {}, {1}), op("update_1", {3}, {}, {0})},
      .tensors = {persistent(100), persistent(100), bytes(5), bytes(100), bytes(100)}};
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.order, (Ids{0, 1, 4, 2, 3}));
  EXPECT_EQ(plan.program_peak_bytes, 405);
  EXPECT_EQ(plan.peak_bytes, 305);
  EXPECT_EQ(plan.order_status, Status::kOptimal);
}

TEST(Solve, LetsAnOutputTakeADyingInput) {
  const Plan plan = solve(reuse());
  EXPECT_EQ(plan.order, (Ids{0, 1, 2, 3, 4}));
  // "use" reads tensor 1 again, so the sum takes tensor 0.
  EXPECT_EQ(plan.reuse_of, (Ids{kNoReuse, kNoReuse, 0, 2, kNoReuse}));
  EXPECT_EQ(plan.frees_after, (std::vector<Ids>{{}, {}, {}, {}, {1, 3}}));
  EXPECT_EQ(plan.offset_bytes[2], plan.offset_bytes[0]);
  EXPECT_EQ(plan.offset_bytes[3], plan.offset_bytes[0]);
  EXPECT_EQ(plan.program_peak_bytes, 30);
  EXPECT_EQ(plan.peak_bytes, 24);  // 10, 10 and the output's 4
  EXPECT_EQ(plan.bound_bytes, 24);
  EXPECT_EQ(plan.arena_bytes, 24);
  EXPECT_EQ(validate(reuse(), plan), std::nullopt);
}

TEST(Solve, ReusesNothingThatIsForbidden) {
  Problem problem = reuse();
  forbid_reuse(problem);
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.reuse_of, Ids(5, kNoReuse));
  EXPECT_EQ(plan.peak_bytes, 30);
  EXPECT_EQ(plan.order_status, Status::kOptimal);
}

TEST(Solve, OrdersOpsSoThatAnInputDies) {
  // The reader of tensor 0 is written after "double", which could take its place if it ran last.
  const Problem problem{.name = "late reader",
                        .ops = {op("make", {}, {allocate(0)}), reusing(op("double", {0}, {allocate(1)}), 1, {0}),
                                op("sum", {0}, {allocate(2)}), op("end", {1, 2}, {allocate(3)})},
                        .tensors = {bytes(100), bytes(100), bytes(1), output(1)}};
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.order, (Ids{0, 2, 1, 3}));
  EXPECT_EQ(plan.peak_bytes, 102);
  EXPECT_EQ(plan.program_peak_bytes, 201);
  EXPECT_EQ(plan.order_status, Status::kOptimal);
}

TEST(Solve, GivesNoSlotToWhatNeedsNone) {
  Problem problem = chain();
  problem.tensors[1].external = true;
  problem.tensors[3].size_bytes = 0;
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.offset_bytes, (std::vector<std::int64_t>{kNoSlot, kNoSlot, 0, kNoSlot}));
  EXPECT_EQ(plan.peak_bytes, 34);  // an external tensor counts
  EXPECT_EQ(plan.arena_bytes, 20);
  EXPECT_EQ(validate(problem, plan), std::nullopt);
}

TEST(Solve, RoundsSlotsUpButNotThePeak) {
  Problem problem = chain();
  for (Tensor& tensor : problem.tensors) tensor.alignment_bytes = 64;
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.offset_bytes, (std::vector<std::int64_t>{kNoSlot, 0, 64, 0}));  // all are equal now
  EXPECT_EQ(plan.arena_bytes, 128);
  EXPECT_EQ(plan.peak_bytes, 34);
}

TEST(Solve, AcceptsAStepWithoutOps) {
  const Plan plan = solve({.name = "empty", .ops = {}, .tensors = {persistent(5)}});
  EXPECT_EQ(plan.peak_bytes, 5);
  EXPECT_EQ(plan.order_status, Status::kOptimal);
  EXPECT_EQ(plan.arena_bytes, 0);
}

TEST(Solve, AnswersWithinADeadlineOfNothing) {
  const Problem problem = random_problem(3, 200);
  for (const std::int64_t deadline_ms : {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
    const Plan plan = solve(problem, {.deadline_ms = deadline_ms, .node_limit = 0});
    EXPECT_EQ(validate(problem, plan), std::nullopt);
  }
}

TEST(Solve, RefusesAProblemThatIsNotWellFormed) {
  Problem problem = chain();
  problem.ops[0].reads = {9};
  EXPECT_THAT([&] { solve(problem); },
              testing::ThrowsMessage<std::invalid_argument>(
                  "cannot plan 'chain': op 0 'a': 'reads' names tensor 9, but there are only 4 tensors"));
}

TEST(Lifetimes, CountEventsNotOps) {
  const Problem problem{.name = "clock",
                        .ops = {op("a", {}, {allocate(0), allocate(1), free(1)}), op("b", {0}, {allocate(2)})},
                        .tensors = {bytes(1), bytes(2), output(4)}};
  const Timeline timeline = play(problem, {0, 1});
  // 0 allocate 0, 1 allocate 1, 2 free 1, 3 allocate 2, 4 free 0; the output lives to the end.
  EXPECT_EQ(timeline.lifetimes, (std::vector<Lifetime>{{0, 4}, {1, 2}, {3, 5}}));
  EXPECT_EQ(timeline.step_count, 5);
  EXPECT_EQ(timeline.peak_bytes, 5);
  EXPECT_EQ(timeline.peak_op, 1);
}

TEST(Lifetimes, FreeAtOnceWhatNobodyUses) {
  const Problem problem{.name = "unused",
                        .ops = {op("a", {}, {allocate(0)}), op("b", {}, {allocate(1)})},
                        .tensors = {bytes(8), bytes(8)}};
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.frees_after, (std::vector<Ids>{{0}, {1}}));
  EXPECT_EQ(plan.arena_bytes, 8);
}

TEST(Status, HasAName) {
  EXPECT_EQ(to_string(Status::kOptimal), "optimal");
  EXPECT_EQ(to_string(Status::kFeasible), "feasible");
  EXPECT_EQ(to_string(Status::kInfeasible), "infeasible");
  EXPECT_EQ(to_string(Status::kTimedOut), "timed_out");
}

}  // namespace
}  // namespace stowage::solver
