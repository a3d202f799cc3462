// SPDX-License-Identifier: Apache-2.0
#include "plugin/planned_allocator.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

namespace stowage {
namespace {

/// An upstream that knows what it gave out, refuses on demand, and lets others in between.
class FakeUpstream : public Upstream {
 public:
  ~FakeUpstream() override { EXPECT_TRUE(live_.empty()) << live_.size() << " blocks were never freed"; }

  void* allocate(std::size_t size_bytes, Stream) override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    std::lock_guard lock(mutex_);
    if (refuse) throw std::bad_alloc();
    void* pointer = std::aligned_alloc(64, (size_bytes + 63) / 64 * 64);
    live_[pointer] = size_bytes;
    return pointer;
  }
  void free(void* pointer) noexcept override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(live_.erase(pointer), 1U) << "freed twice, or never allocated";
    std::free(pointer);
  }
  bool owns(void* pointer) {
    std::lock_guard lock(mutex_);
    return live_.count(pointer) == 1;
  }
  std::size_t live_blocks() {
    std::lock_guard lock(mutex_);
    return live_.size();
  }

  bool refuse = false;
  std::function<void()> meanwhile;  ///< done once, while the next allocation is under way

 private:
  std::mutex mutex_;
  std::map<void*, std::size_t> live_;
};

class Planned : public testing::Test {
 protected:
  ~Planned() override { allocator.release_arena(); }

  FakeUpstream upstream;
  PlannedAllocator allocator{upstream};
  // Op 0 makes two tensors side by side, op 1 one over the first of them, op 2 one that escapes.
  SlotTable table{.slots = {{0, 64}, {64, 128}, {0, 64}, {0, 0}}, .first_slot = {0, 2, 3, 4}, .arena_bytes = 192};
};

Count count(std::int64_t allocations, std::int64_t bytes) { return {allocations, bytes}; }

Count misses(const Counters& counters, Miss reason) { return counters.misses[static_cast<std::size_t>(reason)]; }

TEST_F(Planned, ServesEachAllocationFromItsSlot) {
  allocator.reserve_arena(table.arena_bytes);
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
  allocator.reserve_arena(table.arena_bytes);
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
  allocator.reserve_arena(table.arena_bytes);
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
  allocator.reserve_arena(table.arena_bytes);
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
  allocator.reserve_arena(table.arena_bytes);
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
  allocator.reserve_arena(table.arena_bytes);
  PlannedSession session(allocator, table);
  session.enter_op(0);
  void* slot = allocator.allocate(64);
  std::thread([&] {
    EXPECT_FALSE(allocator.intercepts());
    void* pointer = allocator.allocate(64);
    EXPECT_TRUE(upstream.owns(pointer));
    allocator.free(pointer);
    allocator.free(slot);
  }).join();
  session.enter_op(1);
  EXPECT_EQ(allocator.allocate(64), slot);
  allocator.free(slot);
}

/// Op 0 makes a tensor, and workspace beside it; op 1, whose second allocation is its result, may write that over the
/// tensor; op 2 takes the place when it is free.
class Reuse : public Planned {
 protected:
  Reuse() {
    allocator.reserve_arena(reusing.arena_bytes);
    session.emplace(allocator, reusing);
    session->enter_op(0);
    input = allocator.allocate(60);
    session->enter_op(1);
  }

  void* result(std::size_t size_bytes) {
    allocator.free(allocator.allocate(64));  // the op's workspace
    return allocator.allocate(size_bytes);
  }

  SlotTable reusing{
      .slots = {{0, 64}, {64, 64}, {0, 64, /*reuses=*/true}, {0, 64}}, .first_slot = {0, 1, 3, 4}, .arena_bytes = 128};
  std::optional<PlannedSession> session;
  void* input = nullptr;
};

TEST_F(Reuse, TheResultLiesOnTheInputAndTheLastOfBothFreesTheSlot) {
  for (const bool input_dies_first : {true, false}) {
    allocator.set_poison(true);
    session->permit_reuse(input, 60);
    auto* output = static_cast<char*>(result(60));
    ASSERT_EQ(output, input);
    std::memset(output, 1, 60);
    void* last = input_dies_first ? output : input;
    allocator.free(input_dies_first ? input : output);
    for (int byte = 0; byte < 60; ++byte) EXPECT_EQ(output[byte], 1);
    session->check_freed(last);
    session->enter_op(2);
    void* other = allocator.allocate(64);
    EXPECT_TRUE(upstream.owns(other));  // the slot is still held
    allocator.free(other);
    allocator.free(last);
    EXPECT_EQ(output[0], static_cast<char>(0xFF));
    session->enter_op(0);
    input = allocator.allocate(60);
    EXPECT_EQ(input, last);
    session->enter_op(1);
  }
  EXPECT_EQ(session->counters().reused, count(2, 120));
  EXPECT_EQ(session->counters().late_frees, 2);
  EXPECT_EQ(misses(session->counters(), Miss::kBusy), count(2, 128));
  allocator.free(input);
}

TEST_F(Reuse, WithoutPermissionTheResultGoesUpstream) {
  void* output = result(60);
  EXPECT_TRUE(upstream.owns(output));
  EXPECT_EQ(misses(session->counters(), Miss::kHeld), count(1, 60));
  EXPECT_EQ(session->counters().reused, count(0, 0));
  allocator.free(output);
  allocator.free(input);
}

TEST_F(Reuse, AFreeSlotNeedsNoPermission) {
  allocator.free(input);
  EXPECT_EQ(result(60), input);
  EXPECT_EQ(session->counters().reused, count(0, 0));
  EXPECT_EQ(session->counters().hits, count(3, 60 + 64 + 60));
  allocator.free(input);
}

TEST_F(Reuse, APermissionIsForOneAllocationOfThatOp) {
  session->permit_reuse(input, 60);
  session->enter_op(2);
  void* of_another_op = allocator.allocate(60);
  EXPECT_TRUE(upstream.owns(of_another_op));
  session->enter_op(1);
  void* after_another_op = result(60);
  EXPECT_TRUE(upstream.owns(after_another_op));

  session->enter_op(1);
  session->permit_reuse(input, 60);
  void* workspace = allocator.allocate(60);
  EXPECT_NE(workspace, input);
  EXPECT_EQ(allocator.allocate(60), input);
  void* unplanned = allocator.allocate(60);
  EXPECT_TRUE(upstream.owns(unplanned));
  session->enter_op(1);
  session->permit_reuse(input, 60);
  void* third = result(60);
  EXPECT_TRUE(upstream.owns(third));  // two hold the slot already
  for (void* pointer : {of_another_op, after_another_op, workspace, unplanned, third, input, input}) {
    allocator.free(pointer);
  }
}

TEST_F(Reuse, APermissionIsForExactlyThatRange) {
  struct Wrong {
    void* pointer;
    std::int64_t input_bytes;
    std::size_t output_bytes;
  };
  void* outside = upstream.allocate(64, /*stream=*/0);
  for (const Wrong& wrong :
       {Wrong{static_cast<char*>(input) + 64, 60, 60}, {outside, 60, 60}, {input, 60, 59}, {input, 61, 60}}) {
    session->enter_op(1);
    session->permit_reuse(wrong.pointer, wrong.input_bytes);
    void* output = result(wrong.output_bytes);
    EXPECT_TRUE(upstream.owns(output));
    allocator.free(output);
  }
  EXPECT_EQ(session->counters().reused, count(0, 0));
  upstream.free(outside);
  allocator.free(input);
}

TEST_F(Reuse, ASlotOfAnotherSizeIsNotShared) {
  session.reset();
  reusing.slots[2].size_bytes = 128;
  session.emplace(allocator, reusing);
  session->enter_op(1);
  session->permit_reuse(input, 60);
  void* output = result(60);
  EXPECT_TRUE(upstream.owns(output));
  allocator.free(output);
  allocator.free(input);
}

TEST_F(Reuse, BothMayOutliveTheRunAndTheArena) {
  session->permit_reuse(input, 60);
  ASSERT_EQ(result(60), input);
  session.reset();
  allocator.release_arena();
  EXPECT_EQ(upstream.live_blocks(), 1U);
  std::thread([&] { allocator.free(input); }).join();
  EXPECT_EQ(upstream.live_blocks(), 1U);
  allocator.free(input);
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

TEST_F(Planned, PoisonFillsFreedSlots) {
  allocator.set_poison(true);
  allocator.reserve_arena(table.arena_bytes);
  PlannedSession session(allocator, table);
  session.enter_op(0);
  auto* slot = static_cast<unsigned char*>(allocator.allocate(60));
  std::memset(slot, 1, 60);
  allocator.free(slot);
  for (int byte = 0; byte < 64; ++byte) EXPECT_EQ(slot[byte], 0xFF);
}

TEST_F(Planned, ArenaGrowsAndIsGivenBack) {
  allocator.reserve_arena(100);
  EXPECT_EQ(allocator.arena_bytes(), 100);
  allocator.reserve_arena(50);
  EXPECT_EQ(allocator.arena_bytes(), 100);
  allocator.reserve_arena(200);
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
      allocator.reserve_arena(table.arena_bytes);
      PlannedSession session(allocator, table);
      EXPECT_FALSE(session.owns_arena());  // the other is not done yet
    }).join();
  };
  allocator.reserve_arena(table.arena_bytes);
  EXPECT_EQ(upstream.live_blocks(), 1U);
  EXPECT_TRUE(PlannedSession(allocator, table).owns_arena());
}

TEST_F(Planned, ReserveLeavesTheArenaOfARunAlone) {
  allocator.reserve_arena(table.arena_bytes);
  PlannedSession session(allocator, table);
  allocator.reserve_arena(1000);
  EXPECT_EQ(allocator.arena_bytes(), table.arena_bytes);
}

TEST_F(Planned, SurvivorThatDiesWhileTheArenaGrowsLeavesNothingBehind) {
  allocator.reserve_arena(table.arena_bytes);
  void* survivor = nullptr;
  {
    PlannedSession session(allocator, table);
    session.enter_op(0);
    survivor = allocator.allocate(64);
  }
  upstream.meanwhile = [&] { allocator.free(survivor); };
  allocator.reserve_arena(1000);
  EXPECT_EQ(allocator.arena_bytes(), 1000);
  EXPECT_EQ(upstream.live_blocks(), 1U);
}

TEST_F(Planned, ArenaWithASurvivorIsGivenBackWhenItDies) {
  allocator.reserve_arena(table.arena_bytes);
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
  EXPECT_THROW(allocator.reserve_arena(table.arena_bytes), std::bad_alloc);
  EXPECT_EQ(allocator.arena_bytes(), 0);
  upstream.refuse = false;
  allocator.reserve_arena(table.arena_bytes);
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

TEST_F(Planned, ATableThatIsNotOfThisArenaCostsMemoryOnly) {
  allocator.reserve_arena(64);
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
  allocator.reserve_arena(table.arena_bytes);
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

TEST(Profile, RecordsEveryAllocationAndFreeInOrder) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  void* before = allocator.allocate(8);
  ProfileSession session(allocator);
  session.enter_op(0);
  void* workspace = allocator.allocate(100);
  void* output = allocator.allocate(50);
  EXPECT_EQ(session.find(output), 1);
  EXPECT_EQ(session.find(before), -1);
  allocator.free(workspace);
  allocator.free(before);  // not of this run
  session.enter_op(1);
  void* escaping = allocator.allocate(10);
  std::thread([&] { allocator.free(output); }).join();
  EXPECT_EQ(session.allocations(), (std::vector<RecordedAllocation>{
                                       {0, 0, 100, 0, 0, 2, workspace},  // freed within op 0, after event 1
                                       {0, 1, 50, 1, 1, 4, output},      // freed in op 1, by another thread
                                       {1, 0, 10, 3, -1, -1, escaping},  // outlives the run
                                   }));
  EXPECT_EQ(session.peak_bytes(), 150);
  allocator.free(escaping);
}

TEST(Profile, ARunWithinARunGivesTheThreadBack) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  void* survivor = nullptr;
  std::optional<ProfileSession> outer(std::in_place, allocator);
  {
    ProfileSession inner(allocator);
    survivor = allocator.allocate(8);
    EXPECT_EQ(inner.allocations().size(), 1);
  }
  EXPECT_EQ(Session::current(), &*outer);
  void* own = allocator.allocate(16);
  allocator.free(own);
  ASSERT_EQ(outer->allocations().size(), 1);
  EXPECT_EQ(outer->allocations()[0].size_bytes, 16);
  outer.reset();
  EXPECT_EQ(Session::current(), nullptr);
  allocator.free(survivor);  // of a run that is gone
}

TEST(Profile, ForgetsTheTensorsOfAnEarlierRun) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  void* kept = nullptr;
  {
    ProfileSession session(allocator);
    kept = allocator.allocate(10);
  }
  ProfileSession session(allocator);
  EXPECT_EQ(session.find(kept), -1);
  allocator.free(kept);
  EXPECT_EQ(session.allocations(), std::vector<RecordedAllocation>{});
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
    allocator.reserve_arena(table.arena_bytes);
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

TEST(Threads, FreesGoOnWhileAProfiledRunEnds) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  for (int run = 0; run < 200; ++run) {
    std::array<void*, 64> made{};
    std::thread other;
    {
      ProfileSession session(allocator);
      for (void*& pointer : made) pointer = allocator.allocate(8);
      other = std::thread([&] {
        for (void* pointer : made) allocator.free(pointer);
      });
    }
    other.join();
  }
}

TEST(Threads, ArenasComeAndGoWhileRunsGoOn) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  auto work = [&](std::int64_t arena_bytes) {
    const SlotTable table{.slots = {{arena_bytes - 64, 64}}, .first_slot = {0, 1}, .arena_bytes = arena_bytes};
    for (int run = 0; run < 300; ++run) {
      allocator.reserve_arena(arena_bytes);
      void* pointer = nullptr;
      {
        PlannedSession session(allocator, table);
        session.enter_op(0);
        pointer = allocator.allocate(64);
        std::memset(pointer, run, 64);
      }
      if (run % 3 == 0) allocator.release_arena();
      EXPECT_EQ(*static_cast<unsigned char*>(pointer), run % 256);
      allocator.free(pointer);
    }
  };
  std::thread first(work, 64);
  std::thread second(work, 128);
  std::thread third(work, 256);
  first.join();
  second.join();
  third.join();
  allocator.release_arena();
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

TEST(Threads, TheHoldersOfASlotDieOnDifferentThreads) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  const SlotTable table{.slots = {{0, 64}, {0, 64, /*reuses=*/true}}, .first_slot = {0, 1, 2}, .arena_bytes = 64};
  allocator.reserve_arena(table.arena_bytes);
  {
    PlannedSession session(allocator, table);
    for (int run = 0; run < 200; ++run) {
      session.enter_op(0);
      void* input = allocator.allocate(64);
      session.enter_op(1);
      session.permit_reuse(input, 64);
      void* output = allocator.allocate(64);
      ASSERT_EQ(output, input);
      std::thread other([&] { allocator.free(input); });
      std::memset(output, run, 64);
      allocator.free(output);
      other.join();
    }
    EXPECT_EQ(session.counters().reused, count(200, 200 * 64));
    EXPECT_EQ(session.counters().hits, count(400, 400 * 64));
  }
  allocator.release_arena();
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

TEST(Threads, ManyRunsAndFreesAtOnce) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  const SlotTable table{.slots = {{0, 64}, {64, 64}, {0, 64}}, .first_slot = {0, 2, 3}, .arena_bytes = 128};
  allocator.reserve_arena(table.arena_bytes);
  allocator.set_meter(true);
  auto work = [&](bool profile) {
    for (int run = 0; run < 200; ++run) {
      std::vector<void*> made;
      auto make = [&](Session& session) {
        for (int op = 0; op < 2; ++op) {
          session.enter_op(op);
          for (int index = 0; index < 2; ++index) {
            made.push_back(allocator.allocate(64));
            std::memset(made.back(), run, 64);
          }
        }
      };
      if (profile) {
        ProfileSession session(allocator);
        make(session);
      } else {
        PlannedSession session(allocator, table);
        make(session);
      }
      std::thread([&] {
        for (void* pointer : made) allocator.free(pointer);
      }).join();
    }
  };
  std::thread first(work, false);
  std::thread second(work, false);
  std::thread third(work, true);
  first.join();
  second.join();
  third.join();
  EXPECT_EQ(allocator.meter().live_bytes, 0);  // the arena was taken before the meter ran
  allocator.release_arena();
}

}  // namespace
}  // namespace stowage
