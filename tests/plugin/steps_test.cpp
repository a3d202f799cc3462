// SPDX-License-Identifier: Apache-2.0
//
// Steps as the planned allocator serves them.
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plugin/planned_allocator.h"
#include "tests/plugin/fake_upstream.h"
#include "tests/plugin/planned_fixture.h"

namespace stowage {
namespace {

class Steps : public testing::Test {
 protected:
  ~Steps() override { allocator.release_arena(); }

  bool begin(const std::shared_ptr<StepTable>& plan) {
    allocator.with_step([&](StepScope& step) { step.set_tables({plan}); });
    const SlotTable needed = arena_of(plan->arena_bytes);
    allocator.set_before_arena([needed] { return needed; });
    return allocator.begin_step(needed);
  }
  Counters counters() {
    return allocator.with_step([](const StepScope& step) { return step.counters(); });
  }

  FakeUpstream upstream;
  PlannedAllocator allocator{upstream};
  std::shared_ptr<StepTable> table = table_of({{{1024, 0}, {2048, 1024}, {1024, 0}}});
};

TEST_F(Steps, ServesTheThreadThatOpenedIt) {
  EXPECT_FALSE(allocator.intercepts(1024));
  ASSERT_TRUE(begin(table));
  EXPECT_TRUE(allocator.intercepts(1024));
  EXPECT_FALSE(allocator.intercepts(kLeastStepBytes - 1));
  auto* a = static_cast<char*>(allocator.allocate(1024));
  auto* b = static_cast<char*>(allocator.allocate(2048));
  EXPECT_EQ(b - a, 1024);
  allocator.free(a);
  EXPECT_EQ(allocator.allocate(1024), a);
  EXPECT_EQ(counters().hits, count(3, 4096));
  EXPECT_TRUE(allocator.end_step(true));
  EXPECT_FALSE(allocator.intercepts(1024));
  allocator.free(a);
  allocator.free(b);
  EXPECT_EQ(upstream.live_blocks(), 1U);  // the arena
}

TEST_F(Steps, ASlotStillLiveIsNotGivenOutAgain) {
  ASSERT_TRUE(begin(table));
  void* a = allocator.allocate(1024);
  void* b = allocator.allocate(2048);
  void* c = allocator.allocate(1024);  // planned where `a` still is
  EXPECT_TRUE(upstream.owns(c));
  EXPECT_EQ(misses(counters(), Miss::kBusy), count(1, 1024));
  allocator.end_step(true);
  ASSERT_TRUE(begin(table));
  void* d = allocator.allocate(1024);  // nor in the next step
  EXPECT_TRUE(upstream.owns(d));
  allocator.end_step(true);
  for (void* pointer : {a, b, c, d}) allocator.free(pointer);
}

TEST_F(Steps, TheArenaIsMadeWhenTheFirstTensorIsToBeServed) {
  ASSERT_TRUE(begin(table));
  EXPECT_EQ(allocator.arena_bytes(), 0);
  void* a = allocator.allocate(1024);
  EXPECT_EQ(allocator.arena_bytes(), 3072);
  allocator.free(a);
  allocator.end_step(true);
}

TEST_F(Steps, GoesOnWithoutAnArena) {
  ASSERT_TRUE(begin(table));
  upstream.refuse_apart = true;
  void* a = allocator.allocate(1024);
  EXPECT_TRUE(upstream.owns(a));
  EXPECT_EQ(allocator.why_no_step_arena(), "std::bad_alloc");
  allocator.free(a);
  EXPECT_TRUE(allocator.end_step(true));
}

TEST_F(Steps, ThreadsOfABackwardBelongToItAndOthersDoNot) {
  const auto two_lanes = table_of({{{1024, 0}}, {{4096, 1024}}});
  ASSERT_TRUE(begin(two_lanes));
  void* a = allocator.allocate(1024);
  void* other = nullptr;
  std::thread([&] {
    EXPECT_FALSE(allocator.intercepts(4096));
    other = allocator.allocate(4096);
  }).join();
  EXPECT_TRUE(upstream.owns(other));
  void* b = nullptr;
  std::thread([&] {
    FakeUpstream::t_runs_backward = true;
    b = allocator.allocate(4096);
    EXPECT_FALSE(allocator.begin_step({})) << "one step at a time";
    EXPECT_FALSE(allocator.end_step(true)) << "only by the thread that opened it";
  }).join();
  EXPECT_EQ(static_cast<char*>(b) - static_cast<char*>(a), 1024);
  EXPECT_TRUE(allocator.with_step([](const StepScope& step) { return step.has_run_backward(); }));
  allocator.end_step(true);
  for (void* pointer : {a, b, other}) allocator.free(pointer);
}

TEST_F(Steps, AllocationsOfAnotherStreamGoUpstream) {
  ASSERT_TRUE(begin(table));
  void* a = allocator.allocate(1024, /*stream=*/7);
  EXPECT_TRUE(upstream.owns(a));
  EXPECT_EQ(misses(counters(), Miss::kStream), count(1, 1024));
  EXPECT_TRUE(allocator.with_step([](const StepScope& step) { return step.record().allocations.empty(); }));
  allocator.free(a);
  allocator.end_step(true);
}

TEST_F(Steps, WhatGoesToAPoolOfItsOwnIsNotServed) {
  ASSERT_TRUE(begin(table));
  upstream.servable = false;  // as while a CUDA graph is captured
  void* a = allocator.allocate(1024);
  EXPECT_TRUE(upstream.owns(a));
  upstream.servable = true;
  allocator.free(a);
  EXPECT_FALSE(allocator.end_step(true));
}

TEST_F(Steps, AStepThatRunsOutOfMemoryIsNothingToLearnFrom) {
  ASSERT_TRUE(allocator.begin_step({}));
  upstream.refuse = true;
  EXPECT_THROW(allocator.allocate(1024), std::bad_alloc);
  upstream.refuse = false;
  EXPECT_FALSE(allocator.end_step(true));
}

TEST_F(Steps, AProfiledGraphDisturbsTheStep) {
  ASSERT_TRUE(allocator.begin_step({}));
  { ProfileSession session(allocator); }
  EXPECT_FALSE(allocator.end_step(true));
}

TEST_F(Steps, OneRunHasTheArena) {
  allocator.reserve_arena(arena_of(4096));
  PlannedSession session(allocator, arena_of(4096));
  std::thread([&] {
    ASSERT_TRUE(begin(table));
    void* a = allocator.allocate(1024);
    EXPECT_TRUE(upstream.owns(a));
    allocator.free(a);
    allocator.end_step(true);
  }).join();
}

TEST_F(Steps, AForkedChildHasNoStep) {
  ASSERT_TRUE(begin(table));
  allocator.before_fork();
  allocator.after_fork(/*in_child=*/false);
  EXPECT_TRUE(allocator.is_in_step());
  allocator.before_fork();
  allocator.after_fork(/*in_child=*/true);
  EXPECT_FALSE(allocator.is_in_step());
  EXPECT_FALSE(allocator.end_step(true));
}

/// Steps that do otherwise than planned: more, fewer, other sizes, other lifetimes, on two threads; the bytes of each
/// tensor are its own as long as it lives.
TEST_F(Steps, NoTwoTensorsShareBytesWhateverHappens) {
  constexpr int kSeeds = 40;
  constexpr int kSteps = 30;
  struct Tensor {
    unsigned char* pointer;
    std::size_t size_bytes;
    unsigned char mark;
  };
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> lanes(2);
    for (auto& lane : lanes) {
      for (int each = 0; each < 20; ++each) lane.push_back({1024 * (1 + random() % 4), 1024 * (random() % 40)});
    }
    const auto plan = table_of(lanes);
    std::vector<Tensor> live;
    const auto check_and_free = [&](std::size_t at) {
      const Tensor& tensor = live[at];
      for (std::size_t byte = 0; byte < tensor.size_bytes; ++byte) ASSERT_EQ(tensor.pointer[byte], tensor.mark);
      allocator.free(tensor.pointer);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    };
    const auto run_lane = [&](const auto& lane) {
      for (const auto& [size_bytes, offset_bytes] : lane) {
        const unsigned what = random() % 16;
        if (what == 0) continue;  // one less
        const auto bytes = static_cast<std::size_t>(what == 1 ? 1024 * (1 + random() % 6) : size_bytes);
        const auto mark = static_cast<unsigned char>(random());
        auto* pointer = static_cast<unsigned char*>(allocator.allocate(bytes));
        std::memset(pointer, mark, bytes);
        live.push_back({pointer, bytes, mark});
        while (!live.empty() && random() % 5 < 2) check_and_free(random() % live.size());
      }
    };
    std::int64_t hits = 0;
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(begin(plan));
      run_lane(lanes[0]);
      std::thread([&] {
        FakeUpstream::t_runs_backward = true;
        run_lane(lanes[1]);
      }).join();
      allocator.end_step(random() % 8 != 0);
      hits += counters().hits.allocations;
    }
    while (!live.empty()) check_and_free(0);
    EXPECT_GT(hits, kSteps);
    allocator.release_arena();
  }
}

}  // namespace
}  // namespace stowage
