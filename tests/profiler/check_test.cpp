// SPDX-License-Identifier: Apache-2.0
#include "profiler/check.h"

#include <gmock/gmock.h>

#include "tests/support/sample_run.h"

namespace stowage::profiler {
namespace {

using testing::Optional;

TEST(FindContradiction, AcceptsWhatHolds) {
  EXPECT_EQ(find_contradiction(sample_run()), std::nullopt);
  EXPECT_EQ(find_contradiction(sample_plan(), 4, 7), std::nullopt);
  EXPECT_EQ(find_contradiction(sample_step()), std::nullopt);
  EXPECT_EQ(find_contradiction(sample_step_plan(), 2, 3), std::nullopt);
  EXPECT_EQ(find_contradiction(profiler::Run{}), std::nullopt);
  EXPECT_EQ(find_contradiction(PlanRecord{}, 0, 0), std::nullopt);
}

/// One change to the sample run, and what it makes wrong.
struct BrokenRun {
  void (*damage)(Run&);
  std::string finding;
};

TEST(FindContradiction, NamesTheRowOfARun) {
  const BrokenRun cases[] = {
      {[](auto& run) { run.tensors[3].size_bytes = -1; }, "tensor 3 has a negative size"},
      {[](auto& run) { run.uses[1].op = 4; }, "use 1 names op 4 of 4"},
      {[](auto& run) { run.uses[2].tensor = -7; }, "use 2 names tensor -7 of 7"},
      {[](auto& run) { run.uses[2].position = kNone; }, "use 2 has a wrong position"},
      {[](auto& run) { run.uses[0].position = 0; }, "use 0 has a wrong position"},
      {[](auto& run) { run.dependencies[0].op = 9; }, "dependency 0 names op 9 of 4"},
      {[](auto& run) { run.dependencies[1].after = -1; }, "dependency 1 names op -1 of 4"},
      {[](auto& run) { run.dependencies[1].after = 3; }, "dependency 1 does not name an earlier op"},
      {[](auto& run) { run.allocations[0].tensor = 7; }, "allocation 0 names tensor 7 of 7"},
      {[](auto& run) { run.allocations[1].op = 1'000; }, "allocation 1 names op 1000 of 4"},
      {[](auto& run) { run.allocations[1].index = -1; }, "allocation 1 has a negative index"},
      {[](auto& run) { run.allocations[1].requested_bytes = -8; }, "allocation 1 has a negative size"},
      {[](auto& run) { run.allocations[1].rounded_bytes = 767; }, "allocation 1 is rounded down"},
      {[](auto& run) { run.allocations[0].allocate_event = -1; }, "allocation 0 has a negative event"},
      {[](auto& run) { run.allocations[0].free_op = kNone; }, "allocation 0 is freed by half"},
      {[](auto& run) { run.allocations[0].free_op = 4; }, "allocation 0 names op 4 of 4"},
      {[](auto& run) { run.allocations[2].free_event = 3; }, "allocation 2 is freed before it is made"},
      {[](auto& run) { run.reuses[0].op = 4; }, "reuse 0 names op 4 of 4"},
      {[](auto& run) { run.reuses[0].output = 7; }, "reuse 0 names tensor 7 of 7"},
      {[](auto& run) { run.reuses[0].input = -1; }, "reuse 0 names tensor -1 of 7"},
      {[](auto& run) { run.reuses[0].input = 5; }, "reuse 0 is of itself"},
      {[](auto& run) { run.reuses[0].position = -1; }, "reuse 0 has a wrong position"},
      {[](auto& run) { run.alignment_bytes = 0; }, "run 0 has no alignment"},
      {[](auto& run) { run.kernels[1].op = 4; }, "kernel 1 names op 4 of 4"},
      {[](auto& run) { run.kernels[0].duration_ns = -1; }, "kernel 0 has a negative duration"},
      {[](auto& run) { run.copies[0].op = -2; }, "copy 0 names op -2 of 4"},
      {[](auto& run) { run.copies[1].size_bytes = -1; }, "copy 1 has a negative size"},
      {[](auto& run) { run.copies[1].duration_ns = -1; }, "copy 1 has a negative duration"},
      {[](auto& run) { run.device_memory[0].op = 9; }, "device memory change 0 names op 9 of 4"},
      {[](auto& run) { run.device_memory[1].size_bytes = -4; }, "device memory change 1 has a negative size"},
      {[](auto& run) { run.device_memory[0].allocation = 4; }, "device memory change 0 names allocation 4 of 4"},
      {[](auto& run) { run.device_memory[2].allocation = 2; }, "device memory change 2 makes allocation 2 again"},
      {[](auto& run) { run.allocations[2].source = AllocationSource::kCupti; },
       "allocation 2 has a size of CUPTI's that CUPTI did not see"},
      {[](auto& run) { run.allocations[0].source = AllocationSource::kCupti; },
       "allocation 0 has a size of CUPTI's that CUPTI did not see"},
      {[](auto& run) { run.size_mismatches = 0; }, "run 0 counts 0 of 1 unlike sizes"},
  };
  for (const BrokenRun& broken : cases) {
    profiler::Run run = sample_run();
    broken.damage(run);
    EXPECT_THAT(find_contradiction(run), Optional(broken.finding));
  }
}

TEST(FindContradiction, NamesTheRowOfAStep) {
  const BrokenRun cases[] = {
      {[](auto& run) { run.kind = RunKind::kGraph; }, "carried allocation 0 is of no step"},
      {[](auto& run) { run.carried[0].allocation = 3; }, "carried allocation 0 names allocation 3 of 3"},
      {[](auto& run) { run.carried[0].allocation = 0; }, "carried allocation 0 is freed in its own step, too"},
      {[](auto& run) { run.carried[0].free_op = 2; }, "carried allocation 0 names op 2 of 2"},
      {[](auto& run) { run.carried[0].free_event = -1; }, "carried allocation 0 has a negative event"},
      {[](auto& run) { run.allocations[0].lane = -1; }, "allocation 0 has a negative lane"},
  };
  for (const BrokenRun& broken : cases) {
    profiler::Run run = sample_step();
    broken.damage(run);
    EXPECT_THAT(find_contradiction(run), Optional(broken.finding));
  }
}

struct BrokenPlan {
  void (*damage)(PlanRecord&);
  std::string finding;
};

TEST(FindContradiction, NamesTheRowOfAPlan) {
  const BrokenPlan cases[] = {
      {[](PlanRecord& plan) { plan.order.pop_back(); }, "the plan orders 3 of 4 ops"},
      {[](PlanRecord& plan) { plan.order[2] = 4; }, "step 2 names op 4 of 4"},
      {[](PlanRecord& plan) { plan.order[3] = 1; }, "step 3 runs op 1 again"},
      {[](PlanRecord& plan) { plan.slots[0].tensor = 7; }, "slot 0 names tensor 7 of 7"},
      {[](PlanRecord& plan) { plan.slots[1].offset_bytes = 513; }, "slot 1 is outside the arena of 1280 B"},
      {[](PlanRecord& plan) { plan.slots[1].offset_bytes = -1; }, "slot 1 is outside the arena of 1280 B"},
      {[](PlanRecord& plan) { plan.slots[2].size_bytes = INT64_MAX; }, "slot 2 is outside the arena of 1280 B"},
      {[](PlanRecord& plan) { plan.cut_bytes = 511; }, "slot 0 lies across the cut at 511 B"},
      {[](PlanRecord& plan) { plan.cut_bytes = 1'279; }, "slot 1 lies across the cut at 1279 B"},
      {[](PlanRecord& plan) { plan.points[3].op = 4; }, "point 3 names op 4 of 4"},
      {[](PlanRecord& plan) { plan.points[0].tensor = -1; }, "point 0 names tensor -1 of 7"},
      {[](PlanRecord& plan) { plan.points[2].of = 7; }, "point 2 names tensor 7 of 7"},
      {[](PlanRecord& plan) { plan.points[2].of = kNone; }, "point 2 takes a tensor's memory by half"},
      {[](PlanRecord& plan) { plan.points[3].of = 3; }, "point 3 takes a tensor's memory by half"},
  };
  for (const BrokenPlan& broken : cases) {
    PlanRecord plan = sample_plan();
    broken.damage(plan);
    EXPECT_THAT(find_contradiction(plan, 4, 7), Optional(broken.finding));
  }
}

TEST(FindContradiction, LooksAtTheOffsetsOfBothTurns) {
  PlanRecord plan = sample_step_plan();
  plan.slots[1].other_offset_bytes = 3'073;
  EXPECT_THAT(find_contradiction(plan, 2, 3), Optional(std::string("slot 1 is outside the arena of 5120 B")));
}

}  // namespace
}  // namespace stowage::profiler
