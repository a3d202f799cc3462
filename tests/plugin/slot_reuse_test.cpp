// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "plugin/planned_allocator.h"
#include "tests/plugin/planned_fixture.h"

namespace stowage {
namespace {

/// Op 0 makes a tensor, and workspace beside it; op 1, whose second allocation is its result, may write that over the
/// tensor; op 2 takes the place when it is free.
class Reuse : public Planned {
 protected:
  Reuse() {
    allocator.reserve_arena(reusing);
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

}  // namespace
}  // namespace stowage
