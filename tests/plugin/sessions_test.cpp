// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "plugin/planned_allocator.h"
#include "tests/plugin/planned_fixture.h"

namespace stowage {
namespace {

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

TEST(Profile, TellsAllocationsOfOtherStreamsFromItsOwn) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  for (const Stream own : {Stream{0}, Stream{16}}) {
    FakeUpstream::t_stream = own;
    ProfileSession session(allocator);
    for (const Stream stream : {Stream{0}, Stream{16}, Stream{32}}) {
      allocator.free(allocator.allocate(8, stream));
      EXPECT_EQ(session.allocations().back().stream == 0, stream == own) << stream << " in a run on " << own;
    }
  }
  FakeUpstream::t_stream = 0;
}

/// Op 0's second and third allocation and op 1's only one may come from the driver.
class Direct : public testing::Test {
 protected:
  FakeUpstream upstream;
  PlannedAllocator allocator{upstream};
  SlotTable direct{.slots = {{0, 0}, {0, 8}, {0, 8}, {0, 8}}, .first_slot = {0, 3, 4}, .arena_bytes = 0};
};

TEST_F(Direct, ServesWhatTheTableNamesAndFreesItAsSuch) {
  ProfileSession session(allocator, &direct);
  EXPECT_EQ(upstream.cache_releases, 1);
  session.enter_op(0);
  void* cached = allocator.allocate(8);
  void* from_driver = allocator.allocate(8);
  void* another_stream = allocator.allocate(8, /*stream=*/16);
  session.enter_op(1);
  void* also = allocator.allocate(8);
  void* third = allocator.allocate(8);  // the table names one
  EXPECT_EQ(upstream.direct_requests, 2);
  EXPECT_FALSE(session.refused());
  EXPECT_EQ(session.allocations().size(), 5U);
  EXPECT_TRUE(allocator.record_stream(from_driver, 16));  // the driver waits for every stream
  EXPECT_FALSE(allocator.record_stream(cached, 16));
  // The fake upstream says if one is freed as the other kind.
  for (void* pointer : {cached, another_stream, also, third}) allocator.free(pointer);
  std::thread([&] { allocator.free(from_driver); }).join();
  EXPECT_EQ(session.allocations()[1].free_op, 1);
}

TEST_F(Direct, ARefusalIsTakenOnce) {
  ProfileSession session(allocator, &direct);
  session.enter_op(0);
  allocator.free(allocator.allocate(8));
  upstream.refuse_direct = true;
  void* refused = allocator.allocate(8);
  upstream.refuse_direct = false;
  session.enter_op(1);
  void* after = allocator.allocate(8);
  EXPECT_TRUE(session.refused());
  EXPECT_EQ(upstream.direct_requests, 1);
  EXPECT_EQ(session.allocations().size(), 3U);
  allocator.free(refused);
  allocator.free(after);
}

TEST_F(Direct, ATensorOutlivesItsRun) {
  void* survivor = nullptr;
  {
    ProfileSession session(allocator, &direct);
    session.enter_op(1);
    survivor = allocator.allocate(8);
  }
  EXPECT_TRUE(allocator.record_stream(survivor, 16));
  allocator.free(survivor);
  EXPECT_EQ(upstream.live_blocks(), 0U);
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
      allocator.reserve_arena(arena_of(arena_bytes));
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
  allocator.reserve_arena(table);
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
  allocator.reserve_arena(table);
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
