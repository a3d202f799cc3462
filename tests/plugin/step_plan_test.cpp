// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace stowage {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

StepAllocation one(std::int64_t size_bytes, std::int32_t allocate_event, FreedIn freed_in, std::int32_t free_event,
                   std::int32_t lane = 0) {
  return {lane, size_bytes, allocate_event, freed_in, free_event, -1};
}

std::vector<std::int64_t> offsets_of(const StepTable& table, std::size_t lane = 0) {
  std::vector<std::int64_t> offsets;
  for (const auto& entry : table.lanes.at(lane)) offsets.push_back(entry.slot_bytes == 0 ? -1 : entry.offset_bytes[0]);
  return offsets;
}

/// An activation, then a gradient that the next step frees first of all, then what needs the activation's place.
StepRecord training_step() {
  StepRecord record;
  record.allocations = {one(4 * kMiB, 1, FreedIn::kSameStep, 3), one(kMiB, 2, FreedIn::kNextStep, 0),
                        one(4 * kMiB, 4, FreedIn::kSameStep, 5)};
  record.event_count = 6;
  return record;
}

TEST(StepPlan, AGradientKeepsItsPlaceUntilTheNextStepFreesIt) {
  const StepPlan plan = plan_step(training_step(), {});
  EXPECT_EQ(plan.table->arena_bytes, 5 * kMiB);  // the two large ones share 4 MiB
  EXPECT_EQ(plan.bound_bytes, 5 * kMiB);
  EXPECT_EQ(plan.peak_bytes, 5 * kMiB);
  EXPECT_EQ(plan.table->turns, 1);
  EXPECT_EQ(plan.carried.size_bytes, std::vector<std::int64_t>{kMiB});
}

TEST(StepPlan, WhatOutlivesTheNextStepHasNoSlot) {
  StepRecord record = training_step();
  record.allocations[1].freed_in = FreedIn::kNoStepYet;
  const StepPlan plan = plan_step(record, {});
  EXPECT_EQ(offsets_of(*plan.table), (std::vector<std::int64_t>{0, -1, 0}));
  EXPECT_EQ(plan.table->arena_bytes, 4 * kMiB);
}

TEST(StepPlan, AllPhasesCarryAtTheSamePlace) {
  StepPlanOptions options;
  options.carried = {{kMiB}, {8 * kMiB}};
  options.follows_itself = false;
  StepRecord record = training_step();
  record.left_behind = {{8 * kMiB, kMiB, 1}};  // what another phase left there is the same gradient
  const StepPlan plan = plan_step(record, options);
  EXPECT_EQ(offsets_of(*plan.table), (std::vector<std::int64_t>{0, 8 * kMiB, 0}));
}

TEST(StepPlan, KeepsClearOfWhatAnotherPhaseLeft) {
  StepPlanOptions options;
  options.carried = {{kMiB}, {0}};
  options.follows_itself = false;
  StepRecord record;
  record.allocations = {one(kMiB, 0, FreedIn::kSameStep, 1), one(kMiB, 2, FreedIn::kSameStep, 4)};
  record.event_count = 5;
  record.left_behind = {{0, kMiB, 2}};  // until event 2
  EXPECT_EQ(offsets_of(*plan_step(record, options).table), (std::vector<std::int64_t>{kMiB, 0}));
  options.carried = {};  // it was not left there by rule
  EXPECT_EQ(offsets_of(*plan_step(record, options).table), (std::vector<std::int64_t>{0, 0}));
}

TEST(StepPlan, NoSlotLiesAcrossACut) {
  StepPlanOptions options;
  options.cuts = {2 * kMiB};
  // Below the cut 64 bytes less than 2 MiB are free: the two of 1 MiB do not both fit there.
  StepRecord record;
  record.allocations = {one(kMiB, 0, FreedIn::kSameStep, 2), one(kMiB, 1, FreedIn::kSameStep, 3)};
  record.event_count = 4;
  const StepPlan plan = plan_step(record, options);
  const std::vector<std::int64_t> offsets = offsets_of(*plan.table);
  EXPECT_EQ(std::max(offsets[0], offsets[1]), 2 * kMiB);
  EXPECT_EQ(std::min(offsets[0], offsets[1]), 0);
  EXPECT_EQ(plan.table->cuts, options.cuts);
}

TEST(StepPlan, ALoopVariableHasTwoPlacesByTurns) {
  StepRecord record;  // `out = model(x)`: the old one is freed after the new one is there
  record.allocations = {one(4 * kMiB, 0, FreedIn::kNextStep, 1)};
  record.event_count = 3;
  const StepPlan plan = plan_step(record, {});
  EXPECT_EQ(plan.table->turns, 2);
  EXPECT_EQ(plan.table->arena_bytes, 8 * kMiB);
  StepPlanOptions options;
  options.follows_itself = false;  // nobody knows whose turn it is
  EXPECT_EQ(offsets_of(*plan_step(record, options).table), std::vector<std::int64_t>{-1});
}

TEST(StepPlan, LifetimesOfTwoStepsAreJoined) {
  StepRecord record = training_step();
  StepRecord other = training_step();
  // In the other step the activation is freed after the last allocation, and the gradient is not freed yet.
  other.allocations[0].free_event = 5;
  other.allocations[2].allocate_event = 3;
  other.allocations[1].freed_in = FreedIn::kNoStepYet;
  join_lifetimes(record, other, /*complete=*/false);
  EXPECT_EQ(record.allocations[0], one(4 * kMiB, 1, FreedIn::kSameStep, 5));  // right after the allocation at 4
  EXPECT_EQ(record.allocations[1], one(kMiB, 2, FreedIn::kNextStep, 0));
  EXPECT_EQ(record.allocations[2], one(4 * kMiB, 4, FreedIn::kSameStep, 5));
}

TEST(StepPlan, WhatOutlivedOneOfTwoStepsHasNoSlot) {
  StepRecord record = training_step();
  StepRecord other = training_step();
  other.allocations[0].freed_in = other.allocations[1].freed_in = FreedIn::kNoStepYet;
  join_lifetimes(record, other, /*complete=*/false);
  EXPECT_EQ(record.allocations[0].freed_in, FreedIn::kNoStepYet);
  EXPECT_EQ(record.allocations[1].freed_in, FreedIn::kNextStep);  // the next step may still free it
  join_lifetimes(record, other, /*complete=*/true);
  EXPECT_EQ(record.allocations[1].freed_in, FreedIn::kNoStepYet);
}

TEST(StepPlan, SurvivesAsText) {
  StepRecord record = training_step();
  record.allocations.push_back(one(2 * kMiB, 5, FreedIn::kSameStep, 6, /*lane=*/1));
  record.event_count = 7;
  const StepPlan plan = plan_step(record, {});
  const StepPlan read = to_plan(to_text(plan), 64);
  EXPECT_EQ(to_text(read), to_text(plan));
  EXPECT_EQ(read.carried, plan.carried);
  EXPECT_EQ(read.table->digest, digest_of(record));
}

TEST(StepPlan, TextThatIsNoneIsRefused) {
  const auto plan_of = [](const char* turns, const char* entry) {
    return fmt::format(R"({{"turns": {}, "arena_bytes": 4096, "cuts": [], "carried": [[], []], "lanes": [[{}]]}})",
                       turns, entry);
  };
  EXPECT_NO_THROW(to_plan(plan_of("1", "[1024, 1024, [64]]"), 64));
  for (const std::string& text :
       {std::string("{"), std::string("{}"), plan_of("3", "[1024, 1024, [0, 0, 0]]"), plan_of("1", "[1024, 64, [0]]"),
        plan_of("2", "[1024, 1024, [0]]"), plan_of("1", "[1024, 1024, [3]]"), plan_of("1", "[1024]")}) {
    EXPECT_THROW(to_plan(text, 64), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace stowage
