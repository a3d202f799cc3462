// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_scope.h"

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/plugin/planned_fixture.h"

namespace stowage {
namespace {

const Thread kOpener = "opener";
const Thread kBackward = "backward";

class Scope : public testing::Test {
 protected:
  void begin(std::vector<std::shared_ptr<StepTable>> tables) {
    scope.set_tables(std::move(tables));
    scope.begin(kOpener, 0);
  }
  /// Where the plan wants it; -1: nowhere.
  std::int64_t want(std::int64_t size_bytes, Thread thread = kOpener) {
    const StepScope::Wanted wanted = scope.allocate(thread, size_bytes);
    return wanted.slot_bytes == 0 ? -1 : wanted.offset_bytes;
  }
  std::vector<std::int64_t> want_all(const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> offsets;
    for (const std::int64_t size_bytes : sizes) offsets.push_back(want(size_bytes));
    return offsets;
  }

  StepScope scope;
};

TEST_F(Scope, RecordsWhenEachAllocationIsFreed) {
  begin({});
  const StepTag a = scope.allocate(kOpener, 1024).tag;  // event 0
  const StepTag b = scope.allocate(kOpener, 2048).tag;  // event 1
  scope.free(a);                                        // event 2
  const StepTag c = scope.allocate(kOpener, 4096).tag;  // event 3
  EXPECT_TRUE(scope.end(true));
  scope.free(c);  // between steps: before the next one's first event
  begin({});
  scope.allocate(kOpener, 1024);
  scope.free(b);  // event 1 of the second step
  scope.end(true);
  const std::vector<StepAllocation> expected{{0, 1024, 0, FreedIn::kSameStep, 2, -1},
                                             {0, 2048, 1, FreedIn::kNextStep, 1, -1},
                                             {0, 4096, 3, FreedIn::kNextStep, 0, -1}};
  EXPECT_EQ(scope.record_before().allocations, expected);
  EXPECT_EQ(scope.record_before().event_count, 4);
}

TEST_F(Scope, WhatOutlivesTheNextStepIsNobodysConcern) {
  begin({});
  const StepTag a = scope.allocate(kOpener, 1024).tag;
  scope.end(true);
  begin({});
  scope.end(true);
  begin({});
  scope.free(a);
  EXPECT_EQ(scope.record().event_count, 0);
}

TEST_F(Scope, DigestDoesNotDependOnWhichLaneGoesFirst) {
  begin({});
  scope.allocate(kOpener, 1024);
  scope.allocate(kBackward, 2048);
  scope.allocate(kOpener, 4096);
  const StepDigest one = digest_of(scope.record());
  scope.end(true);
  begin({});
  scope.allocate(kOpener, 1024);
  scope.allocate(kOpener, 4096);
  scope.allocate(kBackward, 2048);
  EXPECT_EQ(digest_of(scope.record()), one);
  scope.allocate(kBackward, 2048);
  EXPECT_NE(digest_of(scope.record()), one);
}

TEST_F(Scope, FollowsThePlanLaneByLane) {
  begin({table_of({{{1024, 0}, {2048, 1024}}, {{1024, 4096}}})});
  EXPECT_EQ(want(1024), 0);
  EXPECT_EQ(want(1024, kBackward), 4096);
  EXPECT_FALSE(scope.is_as_planned());  // the second of the first lane is to come
  EXPECT_EQ(want(2048), 1024);
  EXPECT_TRUE(scope.is_as_planned());
}

TEST_F(Scope, OneMoreAllocationCostsOnlyItself) {
  begin({table_of({{{1024, 0}, {2048, 1024}, {3072, 4096}, {4096, 8192}}})});
  EXPECT_EQ(want_all({1024, 9999, 2048, 3072, 4096}), (std::vector<std::int64_t>{0, -1, 1024, 4096, 8192}));
  EXPECT_FALSE(scope.is_as_planned());
}

TEST_F(Scope, OneLessCostsTheTwoAfterIt) {
  begin({table_of({{{1024, 0}, {2048, 1}, {3072, 2}, {4096, 3}, {5120, 4}, {6144, 5}}})});
  // 2048 does not come. With 3072, 4096 and 5120 the place is known again.
  EXPECT_EQ(want_all({1024, 3072, 4096, 5120, 6144}), (std::vector<std::int64_t>{0, -1, -1, 4, 5}));
}

TEST_F(Scope, ComesBackFromTooFar) {
  // Three more than planned are found at the end, too far on. After three others the place is known again.
  begin({table_of({{{1024, 0}, {5120, 1}, {6144, 2}, {7168, 3}, {2048, 4}, {3072, 5}, {4096, 6}}})});
  EXPECT_EQ(want_all({1024, 2048, 3072, 4096, 5120, 6144, 7168}), (std::vector<std::int64_t>{0, -1, -1, 6, -1, -1, 3}));
}

TEST_F(Scope, WhatComesAfterThePlanTakesNoSlotOfIt) {
  // As an optimizer's state that has the sizes of the gradients, in their order.
  begin({table_of({{{1024, 0}, {2048, 1}, {3072, 2}, {4096, 3}}})});
  EXPECT_EQ(want_all({1024, 2048, 3072, 4096, 1024, 2048, 3072, 4096}),
            (std::vector<std::int64_t>{0, 1, 2, 3, -1, -1, -1, -1}));
}

TEST_F(Scope, ChangesToThePlanThatBeganTheSame) {
  const auto first = table_of({{{1024, 0}, {2048, 1}, {3072, 2}}});
  const auto second = table_of({{{1024, 10}, {2048, 11}, {4096, 12}, {5120, 13}}});
  begin({first, second});
  EXPECT_EQ(want_all({1024, 2048, 4096, 5120}), (std::vector<std::int64_t>{0, 1, 12, 13}));
  EXPECT_EQ(scope.table(), second);
  EXPECT_TRUE(scope.is_as_planned());
}

TEST_F(Scope, ChoosesThePlanByTheFirstSize) {
  const auto first = table_of({{{1024, 0}}});
  const auto second = table_of({{{2048, 1}}});
  begin({first, second});
  EXPECT_EQ(want(2048), 1);
  EXPECT_EQ(scope.table(), second);
}

TEST_F(Scope, FindsThePlanThoughTheFirstAllocationIsAnother) {
  begin({table_of({{{5120, 0}}}), table_of({{{1024, 0}, {2048, 1}, {3072, 2}, {4096, 3}}})});
  EXPECT_EQ(want_all({9999, 1024, 2048, 3072, 4096}), (std::vector<std::int64_t>{-1, -1, -1, 2, 3}));
  EXPECT_FALSE(scope.is_as_planned());
}

TEST_F(Scope, FollowsNoPlanThatIsNothingLikeIt) {
  begin({table_of({{{1024, 0}, {2048, 1}, {3072, 2}}})});
  EXPECT_EQ(want_all({4096, 3072, 2048, 1024}), (std::vector<std::int64_t>{-1, -1, -1, -1}));
  EXPECT_EQ(scope.table(), nullptr);
}

TEST_F(Scope, StepsTakeTurns) {
  const auto table = table_of({{{1024, 0}}});
  table->turns = 2;
  table->lanes[0][0].offset_bytes = {0, 1024};
  for (const std::int64_t expected : {0, 1024, 0}) {
    begin({table});
    EXPECT_EQ(want(1024), expected);
    scope.end(true);
  }
}

TEST_F(Scope, ADisturbedStepIsNothingToLearnFrom) {
  begin({});
  scope.disturb();
  EXPECT_FALSE(scope.end(true));
  begin({});
  EXPECT_FALSE(scope.end(false));
  begin({});
  EXPECT_TRUE(scope.end(true));
}

TEST_F(Scope, TellsWhatTheStepBeforeLeftInTheArena) {
  const auto table = table_of({{{1024, 0}, {2048, 1024}, {1024, 4096}}});
  begin({table});
  std::vector<StepScope::Wanted> placed;
  for (const std::int64_t size_bytes : {1024, 2048, 1024}) {
    placed.push_back(scope.allocate(kOpener, size_bytes));
    scope.hit(placed.back());
  }
  scope.free(placed[0].tag);
  scope.end(true);
  begin({});
  scope.allocate(kOpener, 1024);
  scope.free(placed[1].tag);  // event 1; the third stays for the whole step, of two events
  scope.end(true);
  EXPECT_EQ(scope.record().left_behind, (std::vector<LeftBehind>{{1024, 2048, 1}, {4096, 1024, 2}}));
}

}  // namespace
}  // namespace stowage
