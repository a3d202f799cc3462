// SPDX-License-Identifier: Apache-2.0
#include "plugin/arena.h"

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace stowage {
namespace {

constexpr Stream kOwn = 0;
constexpr Stream kOther = 16;
constexpr Stream kThird = 32;

class DoneEvent final : public Event {
 public:
  bool is_done() noexcept override { return true; }
};

class ArenaOf256 : public testing::Test {
 protected:
  char* at(std::int64_t offset_bytes) { return memory.data() + offset_bytes; }
  bool may_end(std::int64_t offset_bytes, std::uint64_t ticket) {
    const auto let_go = arena.let_go(at(offset_bytes), ticket);
    EXPECT_TRUE(let_go);
    return let_go && let_go->may_end;
  }

  std::array<char, 256> memory{};
  Arena arena{{{memory.data(), 0, 256}}, kOwn};
};

TEST_F(ArenaOf256, PlacesWhatTouchesButDoesNotOverlap) {
  EXPECT_TRUE(arena.try_place({64, 64}));
  for (const Slot& overlapping : {Slot{0, 65}, {64, 64}, {96, 16}, {127, 64}, {0, 256}}) {
    EXPECT_FALSE(arena.try_place(overlapping)) << overlapping.offset_bytes;
  }
  EXPECT_TRUE(arena.try_place({0, 64}));
  EXPECT_TRUE(arena.try_place({128, 128}));
  EXPECT_FALSE(arena.try_place({256, 1}));
  EXPECT_FALSE(arena.try_place({-1, 1}));
}

TEST_F(ArenaOf256, ASlotOfOneStreamEndsWhenItIsFreed) {
  ASSERT_TRUE(arena.try_place({0, 64}));
  arena.use_on(at(0), kOwn);
  EXPECT_TRUE(may_end(0, 1));
  arena.end(at(0));
  EXPECT_FALSE(arena.has_live());
  EXPECT_TRUE(arena.quarantines().empty());
}

TEST_F(ArenaOf256, AQuarantineNamesEachStreamOnceAndKeepsTheRange) {
  ASSERT_TRUE(arena.try_place({0, 64}));
  ASSERT_TRUE(arena.try_place({64, 64}));
  for (const Stream stream : {kOther, kThird, kOther}) arena.use_on(at(0), stream);
  EXPECT_FALSE(may_end(0, 7));
  ASSERT_EQ(arena.quarantines().size(), 1U);
  EXPECT_EQ(arena.quarantines()[0].streams, (std::vector<Stream>{kOther, kThird}));
  EXPECT_FALSE(arena.try_place({0, 64}));
  EXPECT_TRUE(may_end(64, 8));  // the neighbour has nothing to do with it

  EXPECT_FALSE(arena.end_quarantine(8));
  const auto ended = arena.end_quarantine(7);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->size_bytes(), 64);
  EXPECT_FALSE(arena.end_quarantine(7));  // whoever else saw it over comes too late
  EXPECT_TRUE(arena.try_place({0, 64}));
  EXPECT_TRUE(may_end(0, 9));  // the streams were those of the tensor before
}

TEST_F(ArenaOf256, ASlotOfTheRunBeforeWaitsForItsOwnStream) {
  ASSERT_TRUE(arena.try_place({0, 64}));
  EXPECT_EQ(arena.take_for(kOther), kOwn);
  ASSERT_TRUE(arena.try_place({64, 64}));
  EXPECT_FALSE(may_end(0, 1));
  EXPECT_EQ(arena.quarantines()[0].streams, std::vector<Stream>{kOwn});
  EXPECT_TRUE(may_end(64, 2));
}

TEST_F(ArenaOf256, ASlotIsSharedOnlyWithinOneStream) {
  for (const std::int64_t offset : {0, 64, 128}) ASSERT_TRUE(arena.try_place({offset, 64}));
  arena.use_on(at(64), kOther);
  EXPECT_TRUE(arena.try_share({0, 64}));
  EXPECT_FALSE(arena.try_share({0, 64}));    // two hold it already
  EXPECT_FALSE(arena.try_share({64, 64}));   // the other stream still reads it
  EXPECT_FALSE(arena.try_share({128, 32}));  // not the same range
  EXPECT_FALSE(arena.try_share({192, 64}));  // nothing is there
  arena.take_for(kOther);
  EXPECT_FALSE(arena.try_share({128, 64}));  // of another stream's run
}

TEST_F(ArenaOf256, TheLastHolderOfASharedSlotMeetsItsQuarantine) {
  ASSERT_TRUE(arena.try_place({0, 64}));
  ASSERT_TRUE(arena.try_share({0, 64}));
  arena.use_on(at(0), kOther);
  EXPECT_FALSE(arena.let_go(at(0), 1));
  EXPECT_TRUE(arena.quarantines().empty());
  EXPECT_FALSE(may_end(0, 1));
  EXPECT_FALSE(arena.let_go(at(0), 2));  // freed once too often
  EXPECT_EQ(arena.quarantines().size(), 1U);
}

TEST_F(ArenaOf256, TheEventsOfAQuarantineAreSetOnce) {
  ASSERT_TRUE(arena.try_place({0, 64}));
  arena.use_on(at(0), kOther);
  EXPECT_FALSE(may_end(0, 1));
  arena.set_events(1, {});  // they could not be recorded
  EXPECT_TRUE(arena.quarantines()[0].events.empty());
  const auto first = std::make_shared<DoneEvent>();
  arena.set_events(2, {std::make_shared<DoneEvent>()});
  arena.set_events(1, {first});
  arena.set_events(1, {std::make_shared<DoneEvent>()});
  EXPECT_EQ(arena.quarantines()[0].events, std::vector<std::shared_ptr<Event>>{first});
}

/// Cut at 96: the second block lies before the first, with a gap between them.
class CutArena : public testing::Test {
 protected:
  char* second() { return memory.data(); }
  char* first() { return memory.data() + 256; }

  std::array<char, 352> memory{};
  Arena arena{{{first(), 0, 96}, {second(), 96, 256}}, kOwn};
};

TEST_F(CutArena, HasOffsetsInBothBlocks) {
  EXPECT_EQ(arena.size_bytes(), 256);
  EXPECT_EQ(arena.cuts(), std::vector<std::int64_t>{96});
  EXPECT_EQ(arena.address_of(0), first());
  EXPECT_EQ(arena.address_of(95), first() + 95);
  EXPECT_EQ(arena.address_of(96), second());
  EXPECT_EQ(arena.address_of(255), second() + 159);
}

TEST_F(CutArena, ContainsItsBlocksAndNothingBetween) {
  EXPECT_EQ(arena.block_of(first()), &arena.blocks()[0]);
  EXPECT_EQ(arena.block_of(first() + 95), &arena.blocks()[0]);
  EXPECT_EQ(arena.block_of(second()), &arena.blocks()[1]);
  EXPECT_EQ(arena.block_of(second() + 159), &arena.blocks()[1]);
  EXPECT_TRUE(arena.contains(second() + 159));
  for (const char* outside : {second() + 160, first() - 1, first() + 96}) {
    EXPECT_EQ(arena.block_of(outside), nullptr);
    EXPECT_FALSE(arena.contains(outside));
    EXPECT_FALSE(arena.is_live(outside));
  }
}

TEST_F(CutArena, PlacesNothingAcrossTheCut) {
  EXPECT_FALSE(arena.try_place({95, 2}));
  EXPECT_FALSE(arena.try_place({0, 256}));
  EXPECT_FALSE(arena.try_place({32, 65}));
  EXPECT_FALSE(arena.try_place({96, 161}));
  EXPECT_TRUE(arena.try_place({32, 64}));  // up to the cut
  EXPECT_TRUE(arena.try_place({96, 64}));  // from there on
  EXPECT_FALSE(arena.try_place({64, 32}));
  EXPECT_FALSE(arena.try_place({128, 64}));
  EXPECT_TRUE(arena.is_live(first() + 32));
  EXPECT_TRUE(arena.is_live(second()));
  EXPECT_FALSE(arena.is_live(first()));
}

TEST_F(CutArena, SharesAndFreesOnEachSide) {
  for (const Slot& slot : {Slot{64, 32}, {96, 32}}) {
    char* const pointer = arena.address_of(slot.offset_bytes);
    ASSERT_TRUE(arena.try_place(slot));
    ASSERT_TRUE(arena.try_share(slot));
    EXPECT_FALSE(arena.let_go(pointer, 1));
    const auto last = arena.let_go(pointer, 1);
    ASSERT_TRUE(last);
    EXPECT_TRUE(last->may_end);
    EXPECT_EQ(last->span.begin_bytes, slot.offset_bytes);
    arena.end(pointer);
    EXPECT_FALSE(arena.has_live());
  }
}

TEST_F(CutArena, QuarantinesOnEachSide) {
  std::uint64_t ticket = 0;
  for (const std::int64_t offset : {64, 96}) {
    char* const pointer = arena.address_of(offset);
    ASSERT_TRUE(arena.try_place({offset, 32}));
    arena.use_on(pointer, kOther);
    const auto last = arena.let_go(pointer, ++ticket);
    ASSERT_TRUE(last);
    EXPECT_FALSE(last->may_end);
    ASSERT_EQ(arena.quarantines().size(), 1U);
    EXPECT_EQ(arena.quarantines()[0].pointer, pointer);
    EXPECT_FALSE(arena.try_place({offset, 32}));
    ASSERT_TRUE(arena.end_quarantine(ticket));
    EXPECT_FALSE(arena.is_live(pointer));
  }
}

}  // namespace
}  // namespace stowage
