// SPDX-License-Identifier: Apache-2.0
#include "plugin/planned_allocator.h"

#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/plugin/planned_fixture.h"

namespace stowage {
namespace {

TEST_F(Planned, ServesEachAllocationFromItsSlot) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  ASSERT_TRUE(session.owns_arena());
  session.enter_op(0);
  auto* first = static_cast<char*>(allocator.allocate(60));
  auto* second = static_cast<char*>(allocator.allocate(128));
  EXPECT_EQ(second - first, 64);
  allocator.free(first);
  session.enter_op(1);
  EXPECT_EQ(allocator.allocate(64), first);  // the slot is free again
  allocator.free(first);
  allocator.free(second);
  EXPECT_EQ(session.counters().hits, count(3, 252));
  EXPECT_EQ(session.upstream_peak_bytes(), 0);
}

TEST_F(Planned, GoesUpstreamForEachReasonAndCountsIt) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  session.enter_op(0);
  void* too_large = allocator.allocate(65);
  void* placed = allocator.allocate(128);
  void* unplanned = allocator.allocate(7);  // the op makes a third
  session.enter_op(0);
  void* first = allocator.allocate(64);
  session.enter_op(1);
  void* busy = allocator.allocate(32);  // the first is still live
  session.enter_op(2);
  void* escapes = allocator.allocate(4);

  EXPECT_EQ(misses(session.counters(), Miss::kTooLarge), count(1, 65));
  EXPECT_EQ(misses(session.counters(), Miss::kUnplanned), count(1, 7));
  EXPECT_EQ(misses(session.counters(), Miss::kBusy), count(1, 32));
  EXPECT_EQ(misses(session.counters(), Miss::kEscapes), count(1, 4));
  EXPECT_EQ(session.counters().hits, count(2, 192));
  EXPECT_EQ(session.upstream_peak_bytes(), 65 + 7 + 32 + 4);
  for (void* pointer : {too_large, unplanned, busy, escapes}) {
    EXPECT_TRUE(upstream.owns(pointer));
    allocator.free(pointer);
  }
  allocator.free(placed);
  allocator.free(first);
}

TEST_F(Planned, SurvivorKeepsItsSlotInTheNextRun) {
  allocator.reserve_arena(table);
  void* survivor = nullptr;
  {
    PlannedSession session(allocator, table);
    session.enter_op(0);
    survivor = allocator.allocate(64);
  }
  PlannedSession session(allocator, table);
  session.enter_op(0);
  void* other = allocator.allocate(64);
  EXPECT_NE(other, survivor);
  EXPECT_EQ(misses(session.counters(), Miss::kBusy), count(1, 64));
  allocator.free(survivor);
  session.enter_op(0);
  EXPECT_EQ(allocator.allocate(64), survivor);
  allocator.free(survivor);
  allocator.free(other);
}

TEST_F(Planned, FreePointOfALiveSlotIsLate) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  session.enter_op(0);
  void* pointer = allocator.allocate(64);
  session.check_freed(pointer);
  EXPECT_EQ(session.counters().late_frees, 1);
  allocator.free(pointer);
  session.check_freed(pointer);
  EXPECT_EQ(session.counters().late_frees, 1);
}

TEST_F(Planned, OneRunOwnsTheArena) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  std::thread([&] {
    PlannedSession other(allocator, table);
    EXPECT_FALSE(other.owns_arena());
    other.enter_op(0);
    void* pointer = allocator.allocate(64);
    EXPECT_TRUE(upstream.owns(pointer));
    allocator.free(pointer);
    EXPECT_EQ(other.counters(), Counters{});
  }).join();
  EXPECT_TRUE(session.owns_arena());
}

TEST_F(Planned, OtherThreadsGoUpstreamAndMayFreeSlots) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  session.enter_op(0);
  void* slot = allocator.allocate(64);
  std::thread([&] {
    EXPECT_FALSE(allocator.intercepts(64));
    void* pointer = allocator.allocate(64);
    EXPECT_TRUE(upstream.owns(pointer));
    allocator.free(pointer);
    allocator.free(slot);
  }).join();
  session.enter_op(1);
  EXPECT_EQ(allocator.allocate(64), slot);
  allocator.free(slot);
}

TEST_F(Planned, PoisonFillsFreedSlots) {
  allocator.set_poison(true);
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  session.enter_op(0);
  auto* slot = static_cast<unsigned char*>(allocator.allocate(60));
  std::memset(slot, 1, 60);
  allocator.free(slot);
  for (int byte = 0; byte < 64; ++byte) EXPECT_EQ(slot[byte], 0xFF);
}

TEST_F(Planned, ArenaGrowsAndIsGivenBack) {
  allocator.reserve_arena(arena_of(100));
  EXPECT_EQ(allocator.arena_bytes(), 100);
  allocator.reserve_arena(arena_of(50));
  EXPECT_EQ(allocator.arena_bytes(), 100);
  allocator.reserve_arena(arena_of(200));
  EXPECT_EQ(allocator.arena_bytes(), 200);
  EXPECT_EQ(upstream.live_blocks(), 1U);  // the smaller one went first
  allocator.release_arena();
  EXPECT_EQ(allocator.arena_bytes(), 0);
  EXPECT_EQ(upstream.live_blocks(), 0U);
  PlannedSession session(allocator, table);
  EXPECT_FALSE(session.owns_arena());
}

TEST_F(Planned, TwoWhoReserveAtOnceLeaveOneArena) {
  upstream.meanwhile = [&] {
    std::thread([&] {
      allocator.reserve_arena(table);
      PlannedSession session(allocator, table);
      EXPECT_FALSE(session.owns_arena());  // the other is not done yet
    }).join();
  };
  allocator.reserve_arena(table);
  EXPECT_EQ(upstream.live_blocks(), 1U);
  EXPECT_TRUE(PlannedSession(allocator, table).owns_arena());
}

TEST_F(Planned, ReserveWaitsUntilRunsMayBePlanned) {
  upstream.plannable = false;  // what it gave would be a pool's
  allocator.reserve_arena(table);
  EXPECT_EQ(upstream.live_blocks(), 0U);
  EXPECT_FALSE(PlannedSession(allocator, table).owns_arena());
  upstream.plannable = true;
  allocator.reserve_arena(table);
  EXPECT_TRUE(PlannedSession(allocator, table).owns_arena());
}

TEST_F(Planned, ReserveLeavesTheArenaOfARunAlone) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  allocator.reserve_arena(arena_of(1000));
  EXPECT_EQ(allocator.arena_bytes(), table.arena_bytes);
}

TEST_F(Planned, SurvivorThatDiesWhileTheArenaGrowsLeavesNothingBehind) {
  allocator.reserve_arena(table);
  void* survivor = nullptr;
  {
    PlannedSession session(allocator, table);
    session.enter_op(0);
    survivor = allocator.allocate(64);
  }
  upstream.meanwhile = [&] { allocator.free(survivor); };
  allocator.reserve_arena(arena_of(1000));
  EXPECT_EQ(allocator.arena_bytes(), 1000);
  EXPECT_EQ(upstream.live_blocks(), 1U);
}

TEST_F(Planned, ArenaWithASurvivorIsGivenBackWhenItDies) {
  allocator.reserve_arena(table);
  void* survivor = nullptr;
  {
    PlannedSession session(allocator, table);
    session.enter_op(0);
    survivor = allocator.allocate(64);
    allocator.release_arena();  // while the run holds it
  }
  EXPECT_EQ(allocator.arena_bytes(), 0);
  EXPECT_EQ(upstream.live_blocks(), 1U);
  allocator.free(survivor);
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

TEST_F(Planned, UpstreamErrorPassesThroughAndLeavesNothingBehind) {
  upstream.refuse = true;
  EXPECT_THROW(allocator.reserve_arena(table), std::bad_alloc);
  EXPECT_EQ(allocator.arena_bytes(), 0);
  upstream.refuse = false;
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  session.enter_op(2);
  upstream.refuse = true;
  EXPECT_THROW(allocator.allocate(4), std::bad_alloc);
  upstream.refuse = false;
  session.enter_op(0);
  void* slot = allocator.allocate(64);
  EXPECT_EQ(session.counters().hits, count(1, 64));
  allocator.free(slot);
}

TEST_F(Planned, AnAllocationThatIsAskedForAgainIsStillTheSame) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  session.enter_op(0);
  upstream.refuse = true;
  EXPECT_THROW(allocator.allocate(65), std::bad_alloc);  // its slot has 64 B
  upstream.refuse = false;
  void* first = allocator.allocate(65);
  void* second = allocator.allocate(128);
  EXPECT_EQ(misses(session.counters(), Miss::kTooLarge), count(1, 65));
  EXPECT_EQ(session.counters().hits, count(1, 128));
  allocator.free(first);
  allocator.free(second);
}

TEST_F(Planned, ATableThatIsNotOfThisArenaCostsMemoryOnly) {
  allocator.reserve_arena(arena_of(64));
  const SlotTable wrong{
      .slots = {{-64, 64}, {64, 64}, {std::numeric_limits<std::int64_t>::max(), 64}, {0, 1 << 20}, {0, -64}},
      .first_slot = {0, 5},
      .arena_bytes = 0};
  PlannedSession session(allocator, wrong);
  ASSERT_TRUE(session.owns_arena());
  for (const std::int32_t op : {0, 7}) {
    session.enter_op(op);
    for (int index = 0; index < 5; ++index) {
      void* pointer = allocator.allocate(64);
      EXPECT_TRUE(upstream.owns(pointer));
      allocator.free(pointer);
    }
  }
  EXPECT_EQ(misses(session.counters(), Miss::kBusy), count(4, 256));
  EXPECT_EQ(misses(session.counters(), Miss::kTooLarge), count(1, 64));
  EXPECT_EQ(misses(session.counters(), Miss::kUnplanned), count(5, 320));  // there is no op 7
}

TEST_F(Planned, ARunWithoutAnArenaGoesUpstream) {
  const SlotTable wrong{.slots = {{0, 64}}, .first_slot = {0, 1}, .arena_bytes = 0};
  PlannedSession session(allocator, wrong);
  session.enter_op(0);
  void* pointer = allocator.allocate(64);
  EXPECT_TRUE(upstream.owns(pointer));
  allocator.free(pointer);
}

TEST_F(Planned, MeterCountsEveryByteAndTheArenaAsOneBlock) {
  allocator.set_meter(true);
  void* outside = allocator.allocate(1000);
  allocator.reserve_arena(table);
  {
    PlannedSession session(allocator, table);
    session.enter_op(0);
    allocator.free(allocator.allocate(64));
  }
  EXPECT_EQ(allocator.meter().live_bytes, 1192);
  allocator.free(outside);
  EXPECT_EQ(allocator.meter().live_bytes, 192);
  EXPECT_EQ(allocator.meter().peak_bytes, 1192);
  allocator.reset_meter_peak();
  EXPECT_EQ(allocator.meter().peak_bytes, 192);
}

/// Serves random plans, most of them wrong, and checks that no two live tensors ever overlap.
TEST(Place, NeverServesALiveRangeTwice) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
    FakeUpstream upstream;
    PlannedAllocator allocator(upstream);
    SlotTable table{.slots = {}, .first_slot = {0}, .arena_bytes = 4096};
    for (int op = 0; op < 20; ++op) {
      for (int index = below(4); index > 0; --index) {
        const std::int64_t size = 64 * below(9);
        table.slots.push_back({64 * below(56), size, /*reuses=*/below(2) == 0});
      }
      table.first_slot.push_back(static_cast<std::int32_t>(table.slots.size()));
    }
    allocator.reserve_arena(table);
    std::map<char*, std::size_t> live;
    for (int run = 0; run < 3; ++run) {
      PlannedSession session(allocator, table);
      for (int op = 0; op < 20; ++op) {
        session.enter_op(op);
        for (int index = below(5); index > 0; --index) {
          const auto size = static_cast<std::size_t>(1 + below(512));
          auto* pointer = static_cast<char*>(allocator.allocate(size));
          const auto after = live.lower_bound(pointer);
          const bool clear_above = after == live.end() || pointer + size <= after->first;
          const bool clear_below =
              after == live.begin() || std::prev(after)->first + std::prev(after)->second <= pointer;
          EXPECT_TRUE(clear_above && clear_below);
          live[pointer] = size;
        }
        while (!live.empty() && below(3) != 0) {
          const auto victim = std::next(live.begin(), below(static_cast<int>(live.size())));
          allocator.free(victim->first);
          live.erase(victim);
        }
      }
    }
    for (const auto& [pointer, size] : live) allocator.free(pointer);
    allocator.release_arena();
  }
}

}  // namespace
}  // namespace stowage
