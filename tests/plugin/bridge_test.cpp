// SPDX-License-Identifier: Apache-2.0
#include "plugin/bridge.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "solver/solve.h"
#include "solver/validate.h"
#include "tests/plugin/update_run.h"

namespace stowage {
namespace {

TEST(Bridge, ARunPosesItsProblem) {
  using solver::Event;
  solver::Problem expected;
  expected.name = "update";
  // name, size, alignment, persistent, output, external
  expected.tensors = {{"x", 64, 64, true, false, false},     {"p", 64, 64, true, false, false},
                      {"big", 640, 64, false, false, false}, {"big.workspace0", 128, 64, false, false, false},
                      {"g", 64, 64, false, false, false},    {"loss", 4, 64, false, true, true}};
  const Event make_workspace{Event::Kind::kAllocate, 3};
  const Event make_big{Event::Kind::kAllocate, 2};
  const Event free_workspace{Event::Kind::kFree, 3};  // within the op; big outlives it
  const Event make_g{Event::Kind::kAllocate, 4};
  const Event make_loss{Event::Kind::kAllocate, 5};
  // name, kind, duration, reads, writes, events, after, reuses
  expected.ops = {{"big", "aten::exp", 10, {0}, {}, {make_workspace, make_big, free_workspace}, {}, {}},
                  {"g", "aten::mul", 20, {0}, {}, {make_g}, {}, {}},
                  {"loss", "aten::sum", 30, {2}, {}, {make_loss}, {0}, {}},
                  {"q", "aten::add_", 40, {1, 4}, {1}, {}, {1}, {}}};
  EXPECT_EQ(to_problem(update_run()), expected);
}

TEST(Bridge, APlanIsRememberedWhole) {
  const profiler::Run run = update_run();
  const solver::Problem problem = to_problem(run);
  const solver::Plan plan = solver::solve(problem);
  ASSERT_EQ(solver::validate(problem, plan), std::nullopt);
  const solver::Plan recalled = to_plan(run, to_record(run, plan));
  EXPECT_EQ(solver::validate(problem, recalled), std::nullopt);
  EXPECT_EQ(recalled.order, plan.order);
  EXPECT_EQ(recalled.offset_bytes, plan.offset_bytes);
  EXPECT_EQ(recalled.frees_after, plan.frees_after);
}

TEST(Bridge, ReuseGoesToTheProblemAndComesBackFromThePlan) {
  profiler::Run run = update_run();
  run.tensors[2].size_bytes = run.tensors[4].size_bytes;  // big is as small as g, and g is made from it
  run.uses[2].tensor = 2;
  run.uses[4].tensor = 0;
  run.reuses = {{.op = 1, .output = 4, .input = 2, .position = 0, .layout = 5}};
  const solver::Problem problem = to_problem(run);
  ASSERT_EQ(problem.ops[1].reuses, (std::vector<solver::Reuse>{{.output = 4, .input = 2}}));
  const solver::Plan plan = solver::solve(problem);
  ASSERT_EQ(plan.reuse_of[4], 2);

  const profiler::PlanRecord record = to_record(run, plan);
  const profiler::PointRecord point{profiler::PointKind::kReuse, 1, 4, 2};
  EXPECT_EQ(std::count(record.points.begin(), record.points.end(), point), 1);
  const solver::Plan recalled = to_plan(run, record);
  EXPECT_EQ(recalled.reuse_of, plan.reuse_of);
  EXPECT_EQ(solver::validate(problem, recalled), std::nullopt);

  const SlotTable table = to_slot_table(run, record);
  EXPECT_FALSE(table.slots[1].reuses);
  EXPECT_TRUE(table.slots[2].reuses);
  EXPECT_EQ(table.slots[2].offset_bytes, table.slots[1].offset_bytes);
}

TEST(Bridge, ASpoiltRecordIsNotValid) {
  const profiler::Run run = update_run();
  const solver::Problem problem = to_problem(run);
  profiler::PlanRecord record = to_record(run, solver::solve(problem));
  record.slots.front().offset_bytes = 1 << 20;
  EXPECT_NE(solver::validate(problem, to_plan(run, record)), std::nullopt);
}

TEST(Bridge, TheAllocatorGetsASlotForEachAllocationOfAnOp) {
  const profiler::Run run = update_run();
  const SlotTable table = to_slot_table(run, update_plan());
  EXPECT_EQ(table.first_slot, (std::vector<std::int32_t>{0, 2, 3, 4, 4}));
  EXPECT_EQ(table.slots, (std::vector<Slot>{
                             {640, 128},  // big's workspace
                             {0, 640},    // big
                             {0, 64},     // g, over big
                             {0, 0},      // the loss outlives the step
                         }));
  EXPECT_EQ(table.arena_bytes, 768);
}

TEST(Bridge, AnAllocationThatItsOpDoesNotMakeIsRefused) {
  profiler::Run run = update_run();
  run.allocations[2].index = 1;  // of op 1, which makes one
  try {
    to_slot_table(run, update_plan());
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "op 1 'g' makes 1 allocations, but has one of index 1");
  }
}

}  // namespace
}  // namespace stowage
