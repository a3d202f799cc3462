// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/step_record.h"
#include "solver/cyclic.h"
#include "solver/plan.h"

namespace stowage {

/// Where tensors lie that a step leaves to the next, as gradients until `zero_grad`. All phases of a device have them
/// at the same place, since any may follow any.
struct CarriedSlots {
  std::vector<std::int64_t> size_bytes;
  std::vector<std::int64_t> offset_bytes;

  bool operator==(const CarriedSlots&) const = default;
};

struct StepPlan {
  std::shared_ptr<StepTable> table;
  CarriedSlots carried;          ///< of this phase
  std::int64_t peak_bytes = 0;   ///< largest sum live at once of what has a slot, what was carried in included
  std::int64_t bound_bytes = 0;  ///< no arena is smaller: the same of sizes as they are aligned
  solver::Status status = solver::Status::kFeasible;
};

struct StepPlanOptions {
  std::int64_t alignment_bytes = 64;
  /// What another phase has already decided; empty: this one decides.
  CarriedSlots carried;
  /// Offsets that no slot is to lie across; ascending.
  std::vector<std::int64_t> cuts;
  /// Whether the step follows itself, so that what is live twice at once can have two places by turns, and what it
  /// found in the arena was its own.
  bool follows_itself = true;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

/// Makes the lifetimes of `record` long enough for `other`, which is alike, too. While the step after the other has not
/// ended, nobody knows of what it left: it is not `complete`.
void join_lifetimes(StepRecord& record, const StepRecord& other, bool complete);

/// Addresses for a step that repeats. What outlives the next step has none.
StepPlan plan_step(const StepRecord& record, const StepPlanOptions& options);

/// Largest sum live at once in a step that repeats, of all that it allocates; and of what may have a slot.
std::int64_t eager_peak_bytes(const StepRecord& record);
std::int64_t slotted_peak_bytes(const StepRecord& record);

/// Whether the next step has freed it at the latest.
bool may_have_slot(const StepAllocation& allocation);

/// When it was freed, in the step's own events: the next step may have more of them.
std::int32_t free_event_of(const StepAllocation& each, const StepRecord& record);

/// An allocation that may have a slot, as the solver sees it.
solver::CyclicBuffer to_buffer(const StepRecord& record, std::size_t index, std::int64_t alignment_bytes);

/// Lives on, but less than a whole step.
bool is_carried(const solver::CyclicBuffer& buffer);

/// As people see it, and the store.
std::string digest_text(StepDigest digest);

/// Fills in the digests of lanes and table, from the sizes.
void number_lanes(StepTable& table);

/// What there is to follow in a plan as text, for another process, and back: table and carried slots. Throws
/// `std::invalid_argument` for text that is none, or has offsets that are not aligned.
std::string to_text(const StepPlan& plan);
StepPlan to_plan(const std::string& text, std::int64_t alignment_bytes);

}  // namespace stowage
