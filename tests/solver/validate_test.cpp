// SPDX-License-Identifier: Apache-2.0
#include "solver/validate.h"

#include <functional>
#include <utility>

#include <gtest/gtest.h>

#include "solver/solve.h"
#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

/// The diamond with a workspace in "left" (tensor 6) and something persistent (tensor 7).
Problem example() {
  Problem problem = diamond();
  problem.tensors.push_back(bytes(2));
  problem.tensors.push_back(persistent(3));
  problem.ops[1].events = {allocate(6), free(6), allocate(1)};
  problem.ops[5].after = {2};
  for (Tensor& tensor : problem.tensors) tensor.alignment_bytes = 2;
  return problem;
}

struct Mutation {
  const char* name;
  std::function<void(Plan&)> spoil;
  const char* fault;
};

class BadPlan : public testing::TestWithParam<Mutation> {};

TEST_P(BadPlan, IsNamed) {
  const Problem problem = example();
  Plan plan = solve(problem);
  ASSERT_EQ(plan.order, (std::vector<std::int32_t>{0, 1, 3, 2, 4, 5}));
  ASSERT_EQ(validate(problem, plan), std::nullopt);
  GetParam().spoil(plan);
  EXPECT_EQ(validate(problem, plan), GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPlan,
    testing::Values(
        Mutation{"ShortOrder", [](Plan& p) { p.order.pop_back(); }, "order: 5 ops, the problem has 6"},
        Mutation{"ShortFrees", [](Plan& p) { p.frees_after.pop_back(); }, "frees: lists for 5 ops, the problem has 6"},
        Mutation{"ShortOffsets", [](Plan& p) { p.offset_bytes.pop_back(); },
                 "slots: 7 offsets, the problem has 8 tensors"},
        Mutation{"UnknownOp", [](Plan& p) { p.order[2] = 6; }, "order: there is no op 6"},
        Mutation{"DoubleOp", [](Plan& p) { p.order[2] = 1; }, "order: op 1 'left' runs twice"},
        Mutation{"BrokenRead", [](Plan& p) { std::swap(p.order[1], p.order[2]); },
                 "order: op 3 'left_end' runs before op 1 'left', but reads tensor 1 '' after it in the program"},
        Mutation{"BrokenAfter", [](Plan& p) { p.order = {0, 1, 3, 5, 2, 4}; },
                 "order: op 5 'join' runs before op 2 'right', which it must run after"},
        Mutation{"FreedTooEarly",
                 [](Plan& p) {
                   p.frees_after[3] = {0, 1};
                   p.frees_after[5] = {3, 4};
                 },
                 "frees: op 2 'right' uses tensor 0 '' after it was freed"},
        Mutation{"FreedTwice", [](Plan& p) { p.frees_after[5].push_back(1); },
                 "frees: tensor 1 '' is freed twice, after op 5 'join'"},
        Mutation{"WorkspaceFreedAgain", [](Plan& p) { p.frees_after[3].push_back(6); },
                 "frees: tensor 6 '' is freed twice, after op 3 'left_end'"},
        Mutation{"FreedBeforeAllocated", [](Plan& p) { p.frees_after[0] = {4}; },
                 "frees: tensor 4 '' is freed after op 0 'source', before it is allocated"},
        Mutation{"NeverFreed",
                 [](Plan& p) {
                   p.frees_after[5] = {0, 3};
                 },
                 "frees: tensor 4 '' is never freed"},
        Mutation{"FreedOutput", [](Plan& p) { p.frees_after[5].push_back(5); },
                 "frees: tensor 5 '' is an output, but freed after op 5 'join'"},
        Mutation{"FreedPersistent", [](Plan& p) { p.frees_after[5].push_back(7); },
                 "frees: tensor 7 '' is persistent, but freed after op 5 'join'"},
        Mutation{"FreedUnknown", [](Plan& p) { p.frees_after[5].push_back(8); },
                 "frees: there is no tensor 8, freed after op 5 'join'"},
        Mutation{"NoSlot", [](Plan& p) { p.offset_bytes[3] = kNoSlot; }, "slots: tensor 3 '' has none"},
        Mutation{"NeedlessSlot", [](Plan& p) { p.offset_bytes[7] = 0; },
                 "slots: tensor 7 '' needs no slot, but has one"},
        Mutation{"CrookedSlot", [](Plan& p) { p.offset_bytes[3] += 1; },
                 "slots: offset 109 of tensor 3 '' is not a multiple of its alignment 2"},
        Mutation{"OutsideTheArena", [](Plan& p) { p.offset_bytes[3] = 110; },
                 "slots: tensor 3 '' at offset 110 ends outside the arena of 110 B"},
        Mutation{"AcrossTheCut", [](Plan& p) { p.cut_bytes = 50; },
                 "slots: tensor 1 '' at offset 0 lies across the cut at 50 B"},
        Mutation{"CutAtTheEnd", [](Plan& p) { p.cut_bytes = 110; },
                 "slots: the cut at 110 B is outside the arena of 110 B"},
        Mutation{"CutBelowTheBegin", [](Plan& p) { p.cut_bytes = -2; },
                 "slots: the cut at -2 B is outside the arena of 110 B"},
        Mutation{"Overlap", [](Plan& p) { p.offset_bytes[0] = 0; },
                 "slots: tensor 6 '' and tensor 0 '' overlap while op 1 'left' runs"},
        Mutation{"WrongArena", [](Plan& p) { p.arena_bytes += 2; }, "sums: arena_bytes is 112, the slots end at 110"},
        Mutation{"WrongPeak", [](Plan& p) { p.peak_bytes += 1; }, "sums: peak_bytes is 113, the replay finds 112"},
        Mutation{"WrongProgramPeak", [](Plan& p) { p.program_peak_bytes += 1; },
                 "sums: program_peak_bytes is 163, the replay finds 162"},
        Mutation{"WrongArenaBound", [](Plan& p) { p.arena_bound_bytes -= 1; },
                 "sums: arena_bound_bytes is 109, the replay finds 110"},
        Mutation{"ArenaBoundAboveArena", [](Plan& p) { p.arena_bound_bytes += 1; },
                 "sums: arena_bound_bytes is 111, the replay finds 110"},
        Mutation{"BoundAbovePeak", [](Plan& p) { p.bound_bytes = 200; },
                 "sums: bound_bytes 200 is above peak_bytes 112"},
        Mutation{"FalseOptimum", [](Plan& p) { p.bound_bytes = 100; },
                 "status: the order is 'optimal' with a peak of 112 B and a bound of 100 B"},
        Mutation{"ModestLayout", [](Plan& p) { p.layout_status = Status::kFeasible; },
                 "status: the layout is 'feasible' with a height of 110 B and a bound of 110 B"}),
    [](const auto& instance) { return instance.param.name; });

/// Plans of `reuse()`: the sum takes tensor 0, what is scaled takes the sum. Tensor 5 is persistent.
class BadReuse : public testing::TestWithParam<Mutation> {};

TEST_P(BadReuse, IsNamed) {
  Problem problem = reuse();
  problem.tensors.push_back(persistent(10));
  Plan plan = solve(problem);
  ASSERT_EQ(validate(problem, plan), std::nullopt);
  GetParam().spoil(plan);
  EXPECT_EQ(validate(problem, plan), GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadReuse,
    testing::Values(
        Mutation{"Short", [](Plan& p) { p.reuse_of.pop_back(); }, "reuse: entries for 5 tensors, the problem has 6"},
        Mutation{"NoCandidate", [](Plan& p) { p.reuse_of[3] = 1; },
                 "reuse: tensor 3 '' takes the memory of tensor 1 in op 3 'scale', which is no candidate"},
        Mutation{"Unknown", [](Plan& p) { p.reuse_of[3] = 7; },
                 "reuse: tensor 3 '' takes the memory of tensor 7 in op 3 'scale', which is no candidate"},
        Mutation{"NeverAllocated", [](Plan& p) { p.reuse_of[5] = 0; },
                 "reuse: tensor 5 '' is persistent, but takes the memory of tensor 0"},
        Mutation{"Elsewhere", [](Plan& p) { p.offset_bytes[2] = 12; },
                 "reuse: tensor 2 '' takes the memory of tensor 0 '' in op 2 'add', but lies at offset 12, not 0"},
        Mutation{"StillRead",
                 [](Plan& p) {
                   p.reuse_of[2] = 1;
                   p.offset_bytes = {10, 0, 0, 0, 20, kNoSlot};
                   p.frees_after[2] = {0};
                   p.frees_after[4] = {3};
                   p.arena_bytes = 24;
                 },
                 "frees: op 4 'use' uses tensor 1 '' after it was freed"},
        Mutation{"FreedToo", [](Plan& p) { p.frees_after[2] = {0}; },
                 "frees: tensor 0 '' is freed twice, after op 2 'add'"},
        Mutation{"OverlapsWithout", [](Plan& p) { p.reuse_of[2] = kNoReuse; },
                 "slots: tensor 2 '' and tensor 0 '' overlap while op 2 'add' runs"}),
    [](const auto& instance) { return instance.param.name; });

TEST(Validate, AnswersInOneLine) {
  Problem problem = chain();
  problem.ops[1].name = "b\nb";
  problem.tensors[1].name = "t\tt";
  Plan plan = solve(problem);
  std::swap(plan.order[0], plan.order[1]);
  EXPECT_EQ(validate(problem, plan),
            "order: op 1 'b?b' runs before op 0 'a', but reads tensor 1 't?t' after it in the program");
}

TEST(Validate, NamesABadProblemFirst) {
  Problem problem = chain();
  const Plan plan = solve(problem);
  problem.tensors[1].size_bytes = -1;
  EXPECT_EQ(validate(problem, plan), "problem: tensor 1 '' has a negative size of -1 B");
}

}  // namespace
}  // namespace stowage::solver
