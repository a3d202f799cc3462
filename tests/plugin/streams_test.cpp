// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "plugin/planned_allocator.h"
#include "tests/plugin/planned_fixture.h"

namespace stowage {
namespace {

constexpr Stream kDefault = 0;
constexpr Stream kSide = 16;
constexpr Stream kThird = 32;

/// Op 0 makes two tensors side by side, op 1 one over the first of them. The fake upstream finds work that touches
/// memory too early.
class Streams : public Planned {
 protected:
  ~Streams() override {
    FakeUpstream::t_stream = kDefault;
    for (const Stream stream : {kDefault, kSide, kThird}) upstream.finish(stream);
  }

  void* make(PlannedSession& session, std::int32_t op, Stream stream) {
    session.enter_op(op);
    void* pointer = allocator.allocate(64, stream);
    upstream.touch(pointer, 64, stream);
    return pointer;
  }
  /// What a program does to read a tensor of `stream` on another.
  void use(void* pointer, Stream other, Stream stream) {
    upstream.synchronize(other, stream);
    upstream.touch(pointer, 64, other);
    EXPECT_TRUE(allocator.record_stream(pointer, other));
  }
};

TEST_F(Streams, AnotherStreamsAllocationGoesUpstreamAndTakesItsIndex) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  void* other = make(session, 0, kSide);
  void* own = allocator.allocate(64, kDefault);
  EXPECT_EQ(allocator.block_of(other), nullptr);
  EXPECT_EQ(static_cast<char*>(own) - static_cast<char*>(allocator.block_of(own)), 64);  // the op's second slot
  EXPECT_EQ(misses(session.counters(), Miss::kStream), count(1, 64));
  EXPECT_EQ(session.counters().hits, count(1, 64));
  allocator.free(other);
  allocator.free(own);
}

TEST_F(Streams, ARunOnASideStreamTakesTheDefaultStreamForAnother) {
  allocator.reserve_arena(table);
  FakeUpstream::t_stream = kSide;
  PlannedSession session(allocator, table);
  void* other = make(session, 0, kDefault);
  void* own = make(session, 0, kSide);
  EXPECT_EQ(allocator.block_of(other), nullptr);
  EXPECT_NE(allocator.block_of(own), nullptr);
  EXPECT_EQ(misses(session.counters(), Miss::kStream), count(1, 64));
  allocator.free(other);
  allocator.free(own);
}

TEST_F(Streams, ASlotIsServedAgainWhenTheOtherStreamIsDone) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  void* shared = make(session, 0, kDefault);
  use(shared, kSide, kDefault);
  allocator.free(shared);

  void* busy = make(session, 1, kDefault);
  EXPECT_EQ(allocator.block_of(busy), nullptr);
  EXPECT_EQ(misses(session.counters(), Miss::kBusy), count(1, 64));
  upstream.finish(kDefault);
  void* still_busy = make(session, 1, kDefault);  // its own stream was never the matter
  EXPECT_EQ(allocator.block_of(still_busy), nullptr);
  upstream.touch(still_busy, 64, kDefault);
  upstream.finish(kSide);
  EXPECT_EQ(make(session, 1, kDefault), shared);
  for (void* pointer : {busy, still_busy, shared}) allocator.free(pointer);
}

TEST_F(Streams, WorkThatAStreamGetsAfterTheFreeIsNotWaitedFor) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  void* shared = make(session, 0, kDefault);
  use(shared, kSide, kDefault);
  allocator.free(shared);
  const std::size_t until_free = upstream.submitted(kSide);
  void* unrelated = upstream.allocate(64, kSide);
  upstream.touch(unrelated, 64, kSide);
  upstream.finish(kSide, until_free);
  EXPECT_EQ(make(session, 1, kDefault), shared);
  allocator.free(shared);
  upstream.free(unrelated);
}

TEST_F(Streams, ASlotWaitsForEachStreamThatUsesIt) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  void* shared = make(session, 0, kDefault);
  use(shared, kSide, kDefault);
  use(shared, kThird, kSide);
  allocator.free(shared);
  upstream.finish(kSide);
  void* busy = make(session, 1, kDefault);
  EXPECT_EQ(allocator.block_of(busy), nullptr);
  upstream.finish(kThird);
  EXPECT_EQ(make(session, 1, kDefault), shared);
  allocator.free(busy);
  allocator.free(shared);
}

TEST_F(Streams, WhatCannotBeToldDuringACaptureIsAskedLater) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  void* shared = make(session, 0, kDefault);
  use(shared, kSide, kDefault);
  upstream.capturing = true;
  allocator.free(shared);
  upstream.finish(kSide);
  void* busy = make(session, 1, kDefault);
  EXPECT_EQ(allocator.block_of(busy), nullptr);
  upstream.capturing = false;
  EXPECT_EQ(make(session, 1, kDefault), shared);
  allocator.free(busy);
  allocator.free(shared);
}

TEST_F(Streams, OneStreamThatCannotBeToldHoldsTheSlot) {
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  void* shared = make(session, 0, kDefault);
  use(shared, kSide, kDefault);
  use(shared, kThird, kSide);
  upstream.untold = kThird;
  allocator.free(shared);
  upstream.finish(kSide);
  void* busy = make(session, 1, kDefault);
  EXPECT_EQ(allocator.block_of(busy), nullptr);
  upstream.untold.reset();
  upstream.finish(kThird);
  EXPECT_EQ(make(session, 1, kDefault), shared);
  allocator.free(busy);
  allocator.free(shared);
}

TEST_F(Streams, ARunOnAnotherStreamFollowsTheRunBefore) {
  allocator.reserve_arena(table);
  for (const Stream stream : {kDefault, kSide, kThird, kSide, kDefault}) {
    FakeUpstream::t_stream = stream;
    PlannedSession session(allocator, table);
    void* pointer = make(session, 0, stream);  // the fake upstream says if that is too early
    EXPECT_NE(allocator.block_of(pointer), nullptr);
    allocator.free(pointer);
  }
  // The arena is given back while no stream has finished: the upstream has been told of each.
  allocator.release_arena();
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

TEST_F(Streams, ASlotThatAnotherStreamsRunMeetsLiveIsQuarantinedWhenItIsFreed) {
  allocator.reserve_arena(table);
  void* survivor = nullptr;
  {
    PlannedSession session(allocator, table);
    survivor = make(session, 0, kDefault);
  }
  FakeUpstream::t_stream = kSide;
  PlannedSession session(allocator, table);
  upstream.touch(survivor, 64, kDefault);  // after the run on the side stream began
  allocator.free(survivor);
  void* busy = make(session, 1, kSide);
  EXPECT_EQ(allocator.block_of(busy), nullptr);
  upstream.finish(kDefault);
  EXPECT_EQ(make(session, 1, kSide), survivor);
  allocator.free(busy);
  allocator.free(survivor);
}

TEST_F(Streams, AResultTakesNoSlotThatAnotherStreamReads) {
  const SlotTable reusing{.slots = {{0, 64}, {0, 64, /*reuses=*/true}}, .first_slot = {0, 1, 2}, .arena_bytes = 64};
  allocator.reserve_arena(reusing);
  PlannedSession session(allocator, reusing);
  void* input = make(session, 0, kDefault);
  use(input, kSide, kDefault);
  session.enter_op(1);
  session.permit_reuse(input, 64);
  void* result = allocator.allocate(64, kDefault);
  EXPECT_EQ(allocator.block_of(result), nullptr);
  EXPECT_EQ(misses(session.counters(), Miss::kHeld), count(1, 64));
  EXPECT_EQ(session.counters().reused, count(0, 0));
  allocator.free(input);
  allocator.free(result);
}

TEST_F(Streams, PoisonComesWhenTheQuarantineEnds) {
  allocator.set_poison(true);
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  auto* shared = static_cast<unsigned char*>(make(session, 0, kDefault));
  std::memset(shared, 1, 64);
  use(shared, kSide, kDefault);
  allocator.free(shared);
  for (int byte = 0; byte < 64; ++byte) EXPECT_EQ(shared[byte], 1);
  upstream.finish(kSide);
  session.enter_op(1);
  ASSERT_EQ(allocator.allocate(64, kDefault), shared);
  for (int byte = 0; byte < 64; ++byte) EXPECT_EQ(shared[byte], 0xFF);
  upstream.touch(shared, 64, kDefault);
  allocator.free(shared);
}

TEST_F(Streams, PoisonKeepsToTheOrderOfTheRunThatGetsTheSlot) {
  allocator.set_poison(true);
  allocator.reserve_arena(table);
  void* survivor = nullptr;
  {
    PlannedSession session(allocator, table);
    survivor = make(session, 0, kDefault);
  }
  FakeUpstream::t_stream = kSide;
  PlannedSession session(allocator, table);
  allocator.free(survivor);
  upstream.finish(kDefault);
  // A fill that the default stream did after all would come upon this run's tensor.
  EXPECT_EQ(make(session, 1, kSide), survivor);
  allocator.free(survivor);
}

TEST_F(Streams, ARetiredArenaWaitsForItsQuarantines) {
  allocator.reserve_arena(table);
  {
    PlannedSession session(allocator, table);
    void* shared = make(session, 0, kDefault);
    use(shared, kSide, kDefault);
    allocator.free(shared);
  }
  allocator.release_arena();
  EXPECT_EQ(upstream.live_blocks(), 1U);
  EXPECT_EQ(allocator.arena_bytes(), 0);
  upstream.finish(kSide);
  EXPECT_TRUE(allocator.release_idle_arena());  // there is memory for whoever asks
  EXPECT_EQ(upstream.live_blocks(), 0U);
  EXPECT_FALSE(allocator.release_idle_arena());
}

TEST_F(Streams, AnArenaIsIdleWhenNoRunAndNoTensorNeedsIt) {
  allocator.reserve_arena(table);
  void* pointer = nullptr;
  {
    PlannedSession session(allocator, table);
    EXPECT_FALSE(allocator.release_idle_arena());
    pointer = make(session, 0, kDefault);
  }
  EXPECT_FALSE(allocator.release_idle_arena());
  use(pointer, kSide, kDefault);
  allocator.free(pointer);
  EXPECT_FALSE(allocator.release_idle_arena());
  EXPECT_EQ(allocator.arena_bytes(), table.arena_bytes);  // a refusal leaves it where it is
  upstream.finish(kSide);
  EXPECT_TRUE(allocator.release_idle_arena());
  EXPECT_EQ(allocator.arena_bytes(), 0);
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

TEST_F(Streams, ARunThatBeginsWhileTheArenaGrowsKeepsToOneArena) {
  allocator.reserve_arena(table);
  void* shared = nullptr;
  {
    PlannedSession session(allocator, table);
    shared = make(session, 0, kDefault);
    use(shared, kSide, kDefault);
    allocator.free(shared);
  }
  std::promise<void> begun;
  std::promise<void> grown;
  std::thread other;
  upstream.while_asking = [&] {
    other = std::thread([&] {
      FakeUpstream::t_stream = kThird;
      PlannedSession session(allocator, table);
      begun.set_value();
      grown.get_future().wait();
      allocator.free(make(session, 0, kThird));
    });
    begun.get_future().wait();
    upstream.finish(kSide);
  };
  upstream.meanwhile = [&] { EXPECT_EQ(upstream.live_blocks(), 0U) << "two arenas are held at once"; };
  allocator.reserve_arena(arena_of(1000));  // asks the event of the quarantine first
  grown.set_value();
  other.join();
  EXPECT_EQ(allocator.arena_bytes(), 1000);
  EXPECT_EQ(upstream.live_blocks(), 1U);
}

TEST_F(Streams, ARunThatCannotWaitLeavesTheArenaToOthers) {
  allocator.reserve_arena(table);
  {
    PlannedSession session(allocator, table);
    allocator.free(make(session, 0, kDefault));
  }
  FakeUpstream::t_stream = kSide;
  upstream.refuse_waits = true;
  EXPECT_THROW(PlannedSession(allocator, table), std::runtime_error);
  upstream.refuse_waits = false;
  EXPECT_EQ(Session::current(), nullptr);
  allocator.reserve_arena(table);
  PlannedSession session(allocator, table);
  ASSERT_TRUE(session.owns_arena());
  void* pointer = make(session, 0, kSide);
  EXPECT_NE(allocator.block_of(pointer), nullptr);
  allocator.free(pointer);
}

}  // namespace
}  // namespace stowage
