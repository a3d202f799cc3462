// SPDX-License-Identifier: Apache-2.0
#include "solver/cyclic.h"

#include <algorithm>
#include <functional>
#include <random>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "solver/formats.h"
#include "tests/support/training_loop.h"

namespace stowage::solver {
namespace {

using Buffers = std::vector<CyclicBuffer>;
using Offsets = std::vector<std::vector<std::int64_t>>;

CyclicBuffer buffer(std::string id, std::int64_t allocate_event, std::int64_t free_event, std::int64_t size_bytes) {
  return {.id = std::move(id),
          .allocate_event = allocate_event,
          .free_event = free_event,
          .size_bytes = size_bytes,
          .fixed_offset_bytes = std::nullopt};
}

CyclicBuffer carried(CyclicBuffer buffer) {
  buffer.carried = true;
  return buffer;
}

CyclicBuffer fixed(CyclicBuffer buffer, std::int64_t offset_bytes) {
  buffer.fixed_offset_bytes = offset_bytes;
  return buffer;
}

CyclicBuffer aligned(CyclicBuffer buffer, std::int64_t alignment_bytes) {
  buffer.alignment_bytes = alignment_bytes;
  return buffer;
}

CyclicLayout lay_out_checked(const Buffers& buffers, std::int64_t event_count,
                             const std::vector<Obstacle>& obstacles = {}, const CyclicLimits& limits = {}) {
  CyclicLayout layout = lay_out_cyclic(buffers, event_count, obstacles, limits);
  EXPECT_EQ(find_overlap(buffers, event_count, obstacles, layout), std::nullopt);
  EXPECT_GE(layout.arena_bytes, layout.bound_bytes);
  return layout;
}

/// `next` is assigned while the value of the step before is still there.
Buffers loop_variable() { return {buffer("hidden", 0, 2, 10), carried(buffer("next", 1, 3, 8))}; }

TEST(Cyclic, LaysOutAStepThatKeepsNothing) {
  const CyclicLayout layout = lay_out_checked({buffer("a", 0, 2, 10), buffer("b", 1, 4, 20), buffer("c", 3, 5, 5)}, 6);
  EXPECT_EQ(layout.turns, 1);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{20, 0, 20}}));  // the largest lowest; a is free when c comes
  EXPECT_EQ(layout.arena_bytes, 30);
  EXPECT_EQ(layout.bound_bytes, 30);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Cyclic, TakesAnEmptyStep) {
  EXPECT_EQ(lay_out_checked({}, 0), (CyclicLayout{.offset_bytes = {{}}, .status = Status::kOptimal}));
}

TEST(Cyclic, KeepsGradientsUntilTheNextStepDropsThem) {
  // Dropped at event 0 and 1, before the activation is allocated at 2.
  const Buffers buffers = {buffer("activation", 2, 6, 10), carried(buffer("first", 4, 0, 4)),
                           carried(buffer("second", 5, 1, 6))};
  const CyclicLayout layout = lay_out_checked(buffers, 8);
  EXPECT_EQ(layout.turns, 1);
  // Cut at 1, the first event over which nothing lives: all are free to go anywhere, the largest lowest.
  EXPECT_EQ(layout.offset_bytes, (Offsets{{0, 16, 10}}));
  EXPECT_EQ(layout.arena_bytes, 20);  // all three from 5 to 6
  EXPECT_EQ(layout.bound_bytes, 20);
}

TEST(Cyclic, StacksWhatLivesOnOverEveryEvent) {
  // Dropped between forward and backward, while the activation is live.
  const Buffers buffers = {buffer("activation", 0, 4, 10), buffer("mask", 1, 5, 3),
                           carried(buffer("gradient", 3, 2, 4))};
  const CyclicLayout layout = lay_out_checked(buffers, 6);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{4, 14, 0}}));  // cut at 0, where only the gradient lives on
  EXPECT_EQ(layout.arena_bytes, 17);
  EXPECT_EQ(layout.bound_bytes, 17);
}

TEST(Cyclic, CutsWhereTheFewestBytesLiveOn) {
  const Buffers buffers = {buffer("activation", 0, 4, 10), buffer("mask", 1, 5, 3),
                           carried(buffer("gradient", 3, 2, 20))};
  const CyclicLayout layout = lay_out_checked(buffers, 6);
  // Cut at 2, where the gradient is dropped; the first of the stack is who comes back first, at 0.
  EXPECT_EQ(layout.offset_bytes, (Offsets{{0, 10, 13}}));
  EXPECT_EQ(layout.arena_bytes, 33);
  EXPECT_EQ(layout.bound_bytes, 33);
}

TEST(Cyclic, StacksTheLargestAlignmentFirst) {
  const Buffers buffers = {carried(buffer("odd", 2, 1, 3)), carried(aligned(buffer("even", 3, 1, 6), 4))};
  const CyclicLayout layout = lay_out_checked(buffers, 4);
  // Cut at 3, where `odd` lives on alone: 3 B, and `even` is above. Cut at 0, which is tried too, `even` takes 0 to 8.
  EXPECT_EQ(layout.bound_bytes, 11);
  EXPECT_EQ(layout.arena_bytes, 11);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{8, 0}}));
}

TEST(Cyclic, LivesOnForAWholeRound) {
  const CyclicLayout layout = lay_out_checked({carried(buffer("a", 1, 1, 4)), buffer("b", 0, 2, 8)}, 2);
  EXPECT_EQ(layout.turns, 1);
  EXPECT_EQ(layout.bound_bytes, 12);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Cyclic, TakesTurnsForWhatIsLiveTwice) {
  const CyclicLayout layout = lay_out_checked(loop_variable(), 4);
  EXPECT_EQ(layout.turns, 2);
  // `next` of the second turn is what lives on at event 0, so it is stacked; `hidden` is above that, and the other
  // `next` above both.
  EXPECT_EQ(layout.offset_bytes, (Offsets{{8, 18}, {8, 0}}));
  EXPECT_EQ(layout.arena_bytes, 26);
  EXPECT_EQ(layout.bound_bytes, 26);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Cyclic, LeavesOutWhatIsLiveTwiceIfItMayNotTakeTurns) {
  const CyclicLayout layout = lay_out_checked(loop_variable(), 4, {}, {.may_alternate = false});
  EXPECT_EQ(layout.turns, 1);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{0, kNoSlot}}));
  EXPECT_EQ(layout.arena_bytes, 10);
  EXPECT_EQ(layout.bound_bytes, 10);
}

TEST(Cyclic, TakesTurnsOnlyWhereItIsWorthIt) {
  // 8 B are live twice, 10 B without them.
  EXPECT_EQ(lay_out_checked(loop_variable(), 4, {}, {.worth = 0.79}).turns, 2);
  EXPECT_EQ(lay_out_checked(loop_variable(), 4, {}, {.worth = 0.8}).turns, 1);
}

TEST(Cyclic, HonoursFixedOffsets) {
  const Buffers buffers = {fixed(buffer("a", 0, 4, 10), 8), buffer("b", 0, 2, 8), buffer("c", 2, 4, 9)};
  const CyclicLayout layout = lay_out_checked(buffers, 4);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{8, 0, 18}}));  // 8 fit beneath, 9 do not
  EXPECT_EQ(layout.bound_bytes, 19);
}

TEST(Cyclic, StacksAroundWhatIsFixed) {
  const Buffers buffers = {fixed(carried(buffer("a", 3, 1, 4)), 2), carried(buffer("b", 2, 1, 4)),
                           carried(buffer("c", 2, 1, 2))};
  const CyclicLayout layout = lay_out_checked(buffers, 4);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{2, 6, 0}}));  // only the small one fits beneath
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Cyclic, FixedOffsetsAreTheSameInBothTurns) {
  Buffers buffers = loop_variable();
  buffers.push_back(fixed(carried(buffer("gradient", 2, 1, 4)), 10));
  const CyclicLayout layout = lay_out_checked(buffers, 4);
  EXPECT_EQ(layout.turns, 2);
  EXPECT_EQ(layout.offset_bytes[0][2], 10);
  EXPECT_EQ(layout.offset_bytes[1][2], 10);
}

TEST(Cyclic, GoesAroundObstacles) {
  const std::vector<Obstacle> obstacles = {{.offset_bytes = 0, .size_bytes = 4, .end_event = 2}};
  const CyclicLayout layout = lay_out_checked({buffer("a", 0, 4, 10), buffer("b", 3, 5, 4)}, 6, obstacles);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{4, 0}}));  // the obstacle is gone when b comes
  EXPECT_EQ(layout.arena_bytes, 14);
  EXPECT_EQ(layout.bound_bytes, 14);  // the obstacle counts
}

TEST(Cyclic, TakesTheLongerOfObstaclesThatShareBytes) {
  // 0 to 2 until event 1, 2 to 6 until 3, 6 to 8 until 1.
  const std::vector<Obstacle> obstacles = {{.offset_bytes = 0, .size_bytes = 8, .end_event = 1},
                                           {.offset_bytes = 2, .size_bytes = 4, .end_event = 3},
                                           {.offset_bytes = 4, .size_bytes = 2, .end_event = 2},
                                           {.offset_bytes = 0, .size_bytes = 0, .end_event = 4},
                                           {.offset_bytes = 0, .size_bytes = 9, .end_event = 0}};
  const CyclicLayout layout =
      lay_out_checked({buffer("a", 1, 4, 2), buffer("b", 2, 4, 3), buffer("c", 3, 4, 4)}, 4, obstacles);
  EXPECT_EQ(layout.offset_bytes, (Offsets{{0, 6, 2}}));
  EXPECT_EQ(layout.arena_bytes, 9);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

TEST(Cyclic, MeetsObstaclesInBothTurns) {
  const std::vector<Obstacle> obstacles = {{.offset_bytes = 0, .size_bytes = 4, .end_event = 1}};
  const CyclicLayout layout = lay_out_checked(loop_variable(), 4, obstacles);
  EXPECT_EQ(layout.turns, 2);
  EXPECT_GE(*std::min_element(layout.offset_bytes[0].begin(), layout.offset_bytes[0].end()), 4);
  EXPECT_GE(layout.offset_bytes[1][0], 4);
}

TEST(Cyclic, PutsEmptyBuffersAtZero) {
  const CyclicLayout layout = lay_out_checked({buffer("a", 0, 1, 4), carried(buffer("b", 0, 1, 0))}, 2);
  EXPECT_EQ(layout.turns, 1);  // twice nothing
  EXPECT_EQ(layout.offset_bytes, (Offsets{{0, 0}}));
}

TEST(Cyclic, RefusesBadInput) {
  const auto expect_error = [](const Buffers& buffers, const std::string& text,
                               const std::vector<Obstacle>& obstacles = {}) {
    EXPECT_THAT([&] { lay_out_cyclic(buffers, 4, obstacles); }, testing::ThrowsMessage<std::invalid_argument>(text));
  };
  expect_error({buffer("b", -1, 1, 1)}, "cannot lay out buffer 'b': allocated at event -1, a step has 4");
  expect_error({buffer("b", 4, 5, 1)}, "cannot lay out buffer 'b': allocated at event 4, a step has 4");
  expect_error({carried(buffer("b", 3, -1, 1))}, "cannot lay out buffer 'b': freed at event -1, a step has 4");
  expect_error({buffer("b", 3, 5, 1)}, "cannot lay out buffer 'b': freed at event 5, a step has 4");
  expect_error({buffer("b", 2, 2, 1)},
               "cannot lay out buffer 'b': freed at event 2, which is not after its allocation at 2");
  expect_error({buffer("b", 0, 1, -1)}, "cannot lay out buffer 'b': size -1 is negative");
  expect_error({aligned(buffer("b", 0, 1, 1), 0)}, "cannot lay out buffer 'b': alignment 0 is not positive");
  expect_error({buffer("a", 0, 1, std::int64_t{1} << 59), buffer("b", 0, 1, std::int64_t{1} << 59)},
               "cannot lay out buffer 'b': the sizes up to it sum to 2^60 B or more");
  expect_error({fixed(buffer("b", 0, 1, 1), -2)}, "cannot lay out buffer 'b': offset -2 is negative");
  expect_error({fixed(buffer("b", 0, 1, 1), std::int64_t{1} << 60)},
               "cannot lay out buffer 'b': offset 1152921504606846976 is above 2^60 B");
  expect_error({fixed(aligned(buffer("b", 0, 1, 1), 4), 6)},
               "cannot lay out buffer 'b': offset 6 is not a multiple of its alignment 4");
  expect_error({fixed(carried(buffer("b", 0, 1, 1)), 0)},
               "cannot lay out buffer 'b': its offset is fixed, but it is live twice at once");
  expect_error({fixed(buffer("a", 0, 2, 4), 0), fixed(buffer("b", 1, 3, 4), 3)},
               "cannot lay out buffer 'b': its fixed offset overlaps that of 'a'");
  expect_error({fixed(buffer("b", 0, 2, 4), 3)},
               "cannot lay out buffer 'b': its fixed offset overlaps that of 'obstacle at 0'",
               {{.offset_bytes = 0, .size_bytes = 4, .end_event = 1}});
  expect_error({}, "cannot lay out around an obstacle: 4 B at -1 until event 1, a step has 4",
               {{.offset_bytes = -1, .size_bytes = 4, .end_event = 1}});
  EXPECT_THAT([] { lay_out_cyclic({}, -1); },
              testing::ThrowsMessage<std::invalid_argument>("cannot lay out a step of -1 events"));
}

/// Of odd seeds some are live twice at once; of every third there are obstacles; all have some that are carried.
struct RandomStep {
  explicit RandomStep(std::uint32_t seed) {
    std::mt19937 engine(seed);
    const auto below = [&engine](std::int64_t end) {
      return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(end));
    };
    for (int count = 0; count < 40; ++count) {
      const std::int64_t allocate_event = below(event_count);
      const std::int64_t length = 1 + below(seed % 2 == 1 && count % 8 == 0 ? event_count + 20 : event_count);
      const std::int64_t free_event = std::min(allocate_event + length, 2 * event_count);
      buffers.push_back(buffer(std::to_string(count), allocate_event, free_event, below(100)));
      if (free_event > event_count) {
        buffers.back().carried = true;
        buffers.back().free_event -= event_count;
      }
      buffers.back().alignment_bytes = 1 + below(8);
    }
    for (int count = 0; seed % 3 == 0 && count < 5; ++count) {
      obstacles.push_back({.offset_bytes = below(500), .size_bytes = below(100), .end_event = below(event_count + 1)});
    }
  }

  std::int64_t event_count = 60;
  Buffers buffers;
  std::vector<Obstacle> obstacles;
};

constexpr CyclicLimits kShortSearch{.layout = {.node_limit = 500, .thread_count = 1}};

TEST(Cyclic, IsValidOnRandomSteps) {
  int alternating = 0;
  int refixed = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomStep step(seed);
    const CyclicLayout layout = lay_out_checked(step.buffers, step.event_count, step.obstacles, kShortSearch);
    EXPECT_EQ(lay_out_cyclic(step.buffers, step.event_count, step.obstacles, kShortSearch), layout);
    alternating += layout.turns == 2 ? 1 : 0;

    // Where they are now they do not overlap.
    for (std::size_t id = 0; id < step.buffers.size(); id += 3) {
      const std::int64_t offset_bytes = layout.offset_bytes[0][id];
      if (offset_bytes != layout.offset_bytes.back()[id] || step.buffers[id].size_bytes == 0) continue;
      step.buffers[id].fixed_offset_bytes = offset_bytes;
      ++refixed;
    }
    lay_out_checked(step.buffers, step.event_count, step.obstacles, kShortSearch);
  }
  EXPECT_GE(alternating, 20);
  EXPECT_GE(refixed, 400);
}

TEST(Cyclic, LeavesOutNothingElseOnRandomSteps) {
  for (std::uint32_t seed = 1; seed < 40; seed += 2) {
    SCOPED_TRACE(seed);
    const RandomStep step(seed);
    CyclicLimits limits = kShortSearch;
    limits.may_alternate = false;
    EXPECT_EQ(lay_out_checked(step.buffers, step.event_count, step.obstacles, limits).turns, 1);
  }
}

struct Mutation {
  const char* name;
  std::function<void(CyclicLayout&)> spoil;
  const char* fault;
};

class BadCyclicLayout : public testing::TestWithParam<Mutation> {};

TEST_P(BadCyclicLayout, IsNamed) {
  Buffers buffers = loop_variable();
  buffers.push_back(aligned(carried(buffer("gradient", 2, 1, 3)), 4));
  buffers.push_back(fixed(buffer("late", 3, 4, 2), 40));
  buffers.push_back(buffer("empty", 0, 1, 0));
  const std::vector<Obstacle> obstacles = {{.offset_bytes = 50, .size_bytes = 4, .end_event = 1}};
  CyclicLayout layout{.turns = 2,
                      .offset_bytes = {{0, 20, 12, 40, 0}, {0, 30, 16, 40, 0}},
                      .arena_bytes = 54,
                      .bound_bytes = 54,
                      .status = Status::kOptimal};
  ASSERT_EQ(find_overlap(buffers, 4, obstacles, layout), std::nullopt);
  GetParam().spoil(layout);
  EXPECT_EQ(find_overlap(buffers, 4, obstacles, layout), GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadCyclicLayout,
    testing::Values(Mutation{"Turns", [](CyclicLayout& l) { l.turns = 3; }, "3 turns: there are one or two"},
                    Mutation{"ShortTurns", [](CyclicLayout& l) { l.offset_bytes.pop_back(); },
                             "offsets for 1 turns, there are 2"},
                    Mutation{"ShortOffsets", [](CyclicLayout& l) { l.offset_bytes[1].pop_back(); },
                             "4 offsets in turn 1, there are 5 buffers"},
                    Mutation{"NoSlot", [](CyclicLayout& l) { l.offset_bytes[1][1] = kNoSlot; },
                             "buffer 'next' has no slot in turn 1"},
                    Mutation{"Negative", [](CyclicLayout& l) { l.offset_bytes[0][0] = -10; },
                             "buffer 'hidden' lies at -10, its alignment is 1"},
                    Mutation{"Crooked", [](CyclicLayout& l) { l.offset_bytes[0][2] = 14; },
                             "buffer 'gradient' lies at 14, its alignment is 4"},
                    Mutation{"NotFixed", [](CyclicLayout& l) { l.offset_bytes[1][3] = 44; },
                             "buffer 'late' lies at 44, but is fixed at 40"},
                    Mutation{"NotEmpty", [](CyclicLayout& l) { l.offset_bytes[0][4] = 3; },
                             "buffer 'empty' is empty, but lies at 3"},
                    Mutation{"AboveArena", [](CyclicLayout& l) { l.offset_bytes[0][1] = 47; },
                             "buffer 'next' ends at 55, above the arena's 54"},
                    Mutation{"ObstacleAboveArena", [](CyclicLayout& l) { l.arena_bytes = 53; },
                             "an obstacle ends at 54, above the arena's 53"},
                    Mutation{"SameTurn", [](CyclicLayout& l) { l.offset_bytes[0][1] = 9; },
                             "buffer 'next' of step 0 at 9 overlaps buffer 'hidden' of step 0 at 0 at event 1"},
                    Mutation{"OtherTurn", [](CyclicLayout& l) { l.offset_bytes[1][1] = 25; },
                             "buffer 'next' of step 1 at 25 overlaps buffer 'next' of step 0 at 20 at event 1"},
                    // Only the third step has the first turn's offsets after the second's.
                    Mutation{"BackToTheFirst", [](CyclicLayout& l) { l.offset_bytes[1][2] = 8; },
                             "buffer 'hidden' of step 2 at 0 overlaps buffer 'gradient' of step 1 at 8 at event 0"},
                    Mutation{"Padding", [](CyclicLayout& l) { l.offset_bytes[0][1] = 15; },
                             "buffer 'gradient' of step 0 at 12 overlaps buffer 'next' of step 0 at 15 at event 2"},
                    Mutation{"Obstacle", [](CyclicLayout& l) { l.offset_bytes[0][0] = 44; },
                             "buffer 'hidden' of step 0 at 44 overlaps the obstacle at 50 at event 0"},
                    Mutation{"CarriedIntoObstacle", [](CyclicLayout& l) { l.offset_bytes[1][2] = 48; },
                             "buffer 'gradient' of step 1 at 48 overlaps the obstacle at 50 at event 0"},
                    Mutation{"BoundTooLow",
                             [](CyclicLayout& l) {
                               l.bound_bytes = 25;
                               l.status = Status::kFeasible;
                             },
                             "the bound is 25, but 26 B are live at once"},
                    Mutation{"BoundTooHigh", [](CyclicLayout& l) { l.bound_bytes = 55; },
                             "the arena of 54 B is below the bound of 55"},
                    Mutation{"Status", [](CyclicLayout& l) { l.status = Status::kFeasible; },
                             "status feasible, arena 54, bound 54"}),
    [](const auto& instance) { return instance.param.name; });

class CyclicGraphs : public testing::TestWithParam<const char*> {};

TEST_P(CyclicGraphs, FitInLittleMoreThanTheirBound) {
  const Problem problem = read_step(std::string(STOWAGE_TEST_DATA "/graphs/") + GetParam() + ".json.gz");
  for (const ZeroGrad zero_grad : {ZeroGrad::kAtBegin, ZeroGrad::kBeforeBackward}) {
    const Loop loop = make_loop(problem, zero_grad);
    EXPECT_GT(loop.gradient_bytes, 0);
    const CyclicLayout layout = lay_out_checked(loop.buffers, loop.event_count);
    EXPECT_EQ(layout.turns, 1);  // only the loss is live twice
    EXPECT_LE(layout.arena_bytes * 1000, layout.bound_bytes * 1005);
    const CyclicLayout in_turns = lay_out_checked(loop.buffers, loop.event_count, {}, {.worth = 0});
    EXPECT_EQ(in_turns.turns, 2);
    EXPECT_LE(in_turns.arena_bytes * 1000, in_turns.bound_bytes * 1005);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CyclicGraphs,
                         testing::Values("resnet18-bs32-sgdm", "vgg16-bs1-sgdm", "vit_b_16-bs32-sgdm"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace stowage::solver
