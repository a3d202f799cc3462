// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/upstream.h"

namespace stowage {

/// Smaller allocations are no business of a step: they cost more to place than they save.
inline constexpr std::int64_t kLeastStepBytes = 1024;

/// Names an allocation of a step: the step's number, from 1, and its index in the record. Number 0: of no step.
struct StepTag {
  std::uint32_t step = 0;
  std::int32_t index = 0;
};

/// When, seen from the step that allocated a tensor, it was freed.
enum class FreedIn : std::uint8_t {
  kNoStepYet,  ///< it lives, or outlived the next step
  kSameStep,
  kNextStep,
};

/// One allocation of a step. Events number the step's allocations and frees together, from 0.
struct StepAllocation {
  std::int32_t lane = 0;  ///< the thread: 0 opened the step, the others are numbered as they came
  std::int64_t size_bytes = 0;
  std::int32_t allocate_event = 0;
  FreedIn freed_in = FreedIn::kNoStepYet;
  std::int32_t free_event = 0;     ///< of the step that it was freed in
  std::int64_t offset_bytes = -1;  ///< where in the arena it was; -1: it came from upstream
  std::int32_t entry = -1;         ///< of its lane in the plan, whose slot it got

  bool operator==(const StepAllocation&) const = default;
};

/// What the step before left in the arena.
struct LeftBehind {
  std::int64_t offset_bytes = 0;
  std::int64_t size_bytes = 0;
  std::int32_t end_event = 0;  ///< at which it was freed, or the number of events

  bool operator==(const LeftBehind&) const = default;
};

/// What a step allocated and freed.
struct StepRecord {
  std::vector<StepAllocation> allocations;  ///< as they happened
  std::vector<LeftBehind> left_behind;      ///< by the step before
  std::int32_t event_count = 0;

  bool operator==(const StepRecord&) const = default;
};

/// The sizes of a step's allocations by lane as one number: steps with equal ones are alike.
using StepDigest = std::uint64_t;

/// `digest` goes on by one allocation. Begin with 0.
StepDigest extend(StepDigest digest, std::int64_t size_bytes);

/// Of a whole step. The order in which lanes took turns does not matter.
StepDigest digest_of(const StepRecord& record);

/// A plan as the allocator needs it.
struct StepTable {
  struct Entry {
    std::int64_t size_bytes = 0;
    std::int64_t slot_bytes = 0;             ///< 0: no slot
    std::vector<std::int64_t> offset_bytes;  ///< by turn
    StepDigest digest = 0;                   ///< of the lane up to and with this one
  };
  StepDigest digest = 0;
  std::vector<std::vector<Entry>> lanes;  ///< by lane, as they happened
  std::int32_t turns = 1;                 ///< steps take turns, each with offsets of its own
  std::int32_t next_turn = 0;             ///< guarded by the allocator's mutex
  std::int64_t arena_bytes = 0;
  std::vector<std::int64_t> cuts;  ///< no slot lies across one, so that the arena may be blocks; ascending
};

}  // namespace stowage
