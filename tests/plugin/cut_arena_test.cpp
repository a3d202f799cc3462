// SPDX-License-Identifier: Apache-2.0
// Arenas of two blocks, where the upstream has memory that it could not give back.
#include <cstring>
#include <limits>
#include <new>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "plugin/planned_allocator.h"
#include "tests/plugin/fake_upstream.h"
#include "tests/plugin/planned_fixture.h"

namespace stowage {
namespace {

constexpr Stream kSide = 16;

class Cut : public Planned {
 protected:
  Cut() {
    table.cuts = {64};
    upstream.spare = 64;
  }
  ~Cut() override { FakeUpstream::t_stream = 0; }

  /// Both slots of op 0.
  std::vector<void*> make(PlannedSession& session) {
    session.enter_op(0);
    return {allocator.allocate(64), allocator.allocate(128)};
  }
  void free(const std::vector<void*>& pointers) {
    for (void* pointer : pointers) allocator.free(pointer);
  }
};

TEST_F(Cut, TakesTheSpareMemoryAndTheRestApart) {
  allocator.reserve_arena(table);
  EXPECT_EQ(upstream.live_blocks(), 2U);
  EXPECT_EQ(upstream.apart_bytes, std::vector<std::int64_t>{128});
  EXPECT_EQ(allocator.arena_bytes(), 192);
  PlannedSession session(allocator, table);
  const std::vector<void*> made = make(session);
  EXPECT_EQ(session.counters().hits, count(2, 192));
  for (void* pointer : made) {
    EXPECT_TRUE(upstream.owns(pointer));  // each is its block's begin
    EXPECT_EQ(allocator.block_of(pointer), pointer);
    EXPECT_EQ(allocator.block_of(static_cast<char*>(pointer) + 63), pointer);
  }
  EXPECT_EQ(allocator.block_of(static_cast<char*>(made[0]) + 64), nullptr);
  free(made);
}

TEST_F(Cut, IsWholeWhereTooLittleIsSpare) {
  upstream.spare = 63;
  allocator.reserve_arena(table);
  EXPECT_EQ(upstream.live_blocks(), 1U);
  EXPECT_EQ(upstream.apart_bytes, std::vector<std::int64_t>{192});
  PlannedSession session(allocator, table);
  const std::vector<void*> made = make(session);
  EXPECT_EQ(static_cast<char*>(made[1]) - static_cast<char*>(made[0]), 64);
  free(made);
}

TEST_F(Cut, WholeArenaLiesInSpareMemoryThatHoldsIt) {
  upstream.spare = 192;
  table.cuts.clear();
  allocator.reserve_arena(table);
  EXPECT_EQ(upstream.live_blocks(), 1U);
  EXPECT_TRUE(upstream.apart_bytes.empty());
}

TEST_F(Cut, SecondBlockRefusedGivesTheFirstBack) {
  allocator.set_meter(true);
  upstream.refuse_apart = true;
  EXPECT_THROW(allocator.reserve_arena(table), std::bad_alloc);
  EXPECT_EQ(upstream.live_blocks(), 0U);
  EXPECT_EQ(allocator.arena_bytes(), 0);
  EXPECT_EQ(allocator.meter().live_bytes, 0);
  upstream.refuse_apart = false;
  allocator.reserve_arena(table);
  EXPECT_EQ(allocator.arena_bytes(), 192);
  EXPECT_EQ(allocator.meter().live_bytes, 192);
  allocator.release_arena();
  EXPECT_EQ(allocator.meter().live_bytes, 0);
}

TEST_F(Cut, PlansWithUnlikeCutsShareAWholeArena) {
  SlotTable other = table;
  other.cuts = {128};
  other.slots = {{0, 128}, {128, 64}, {0, 64}, {0, 0}};
  upstream.spare = 128;
  int before = 0;
  for (int run = 0; run < 20; ++run) {
    for (const SlotTable* each : {&table, &other}) {
      allocator.reserve_arena(*each);
      EXPECT_TRUE(PlannedSession(allocator, *each).owns_arena());
    }
    if (run == 0) before = upstream.allocations;
  }
  EXPECT_EQ(before, 3);  // two blocks, then the whole
  EXPECT_EQ(upstream.allocations, before);
  EXPECT_EQ(upstream.live_blocks(), 1U);
}

TEST_F(Cut, PlanThatFitsBelowTheCutSharesTheArena) {
  for (const bool small_first : {true, false}) {
    upstream.allocations = 0;
    for (int run = 0; run < 20; ++run) {
      if (small_first) allocator.reserve_arena(arena_of(64));
      allocator.reserve_arena(table);
      allocator.reserve_arena(arena_of(64));
      EXPECT_TRUE(PlannedSession(allocator, table).owns_arena());
      EXPECT_TRUE(PlannedSession(allocator, arena_of(64)).owns_arena());
      EXPECT_TRUE(allocator.has_arena_for(table));
    }
    EXPECT_EQ(upstream.allocations, small_first ? 3 : 2);
    EXPECT_EQ(upstream.live_blocks(), 2U);  // it stays cut
    allocator.release_arena();
  }
}

TEST_F(Cut, PlanThatIsNotCutNeedsAWholeArena) {
  allocator.reserve_arena(table);
  SlotTable whole = table;
  whole.cuts.clear();
  whole.slots[0].size_bytes = 128;
  EXPECT_FALSE(allocator.has_arena_for(whole));
  EXPECT_FALSE(PlannedSession(allocator, whole).owns_arena());
  allocator.reserve_arena(whole);
  EXPECT_TRUE(allocator.has_arena_for(table));
  EXPECT_EQ(upstream.live_blocks(), 1U);
}

TEST_F(Cut, SlotAcrossTheCutCostsMemoryOnly) {
  allocator.reserve_arena(table);
  SlotTable wrong = table;
  wrong.slots = {{32, 64}, {64, 129}, {std::numeric_limits<std::int64_t>::max(), 64}, {63, 1}};
  wrong.first_slot = {0, 4};
  PlannedSession session(allocator, wrong);
  session.enter_op(0);
  std::vector<void*> made;
  for (int index = 0; index < 3; ++index) made.push_back(allocator.allocate(64));
  for (void* pointer : made) EXPECT_EQ(allocator.block_of(pointer), nullptr);
  EXPECT_EQ(misses(session.counters(), Miss::kBusy), count(3, 192));
  made.push_back(allocator.allocate(1));
  EXPECT_EQ(session.counters().hits, count(1, 1));
  free(made);
}

TEST_F(Cut, AnotherStreamsRunIsToldOfBothBlocks) {
  allocator.reserve_arena(table);
  FakeUpstream::t_stream = kSide;
  PlannedSession session(allocator, table);
  session.enter_op(0);
  const std::vector<void*> made{allocator.allocate(64, kSide), allocator.allocate(128, kSide)};
  for (void* pointer : made) {
    ASSERT_TRUE(upstream.owns(pointer));
    EXPECT_EQ(upstream.told(pointer), std::set<Stream>{kSide});
  }
  free(made);
}

TEST_F(Cut, BothBlocksGoWhenTheLastSlotDies) {
  allocator.reserve_arena(table);
  std::vector<void*> made;
  {
    PlannedSession session(allocator, table);
    made = make(session);
  }
  allocator.release_arena();
  EXPECT_EQ(upstream.live_blocks(), 2U);
  allocator.free(made[0]);
  EXPECT_EQ(upstream.live_blocks(), 2U);  // the one that is empty waits for the other
  allocator.free(made[1]);
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

TEST_F(Cut, IdleArenaIsGivenBack) {
  allocator.reserve_arena(table);
  EXPECT_TRUE(allocator.release_idle_arena());
  EXPECT_EQ(upstream.live_blocks(), 0U);
  EXPECT_FALSE(allocator.release_idle_arena());
}

TEST_F(Cut, PoisonFillsBothBlocks) {
  allocator.set_poison(true);
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  const std::vector<void*> made = make(session);
  const std::size_t sizes[] = {64, 128};
  for (const std::size_t which : {0U, 1U}) {
    const auto* bytes = static_cast<unsigned char*>(made[which]);
    for (std::size_t byte = 0; byte < sizes[which]; ++byte) ASSERT_EQ(bytes[byte], 0xFF) << which << ' ' << byte;
    std::memset(made[which], 1, sizes[which]);
  }
  free(made);
  for (const std::size_t which : {0U, 1U}) {
    const auto* bytes = static_cast<unsigned char*>(made[which]);
    for (std::size_t byte = 0; byte < sizes[which]; ++byte) ASSERT_EQ(bytes[byte], 0xFF) << which << ' ' << byte;
  }
}

TEST_F(Cut, NothingIsSpareWhileThereIsAnArena) {
  EXPECT_EQ(allocator.spare_bytes(), 64);
  EXPECT_EQ(upstream.cache_releases, 1);  // only what stays then is spare
  allocator.reserve_arena(table);
  EXPECT_EQ(allocator.spare_bytes(), 0);
  allocator.release_arena();
  EXPECT_EQ(allocator.spare_bytes(), 64);
}

}  // namespace
}  // namespace stowage
