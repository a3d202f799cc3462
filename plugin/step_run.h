// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "plugin/step_ops.h"
#include "plugin/step_planner.h"
#include "profiler/store.h"

namespace stowage {

/// A planned step as the store has it. `record` is what the phase was planned from, `ops` those of the same step, or
/// none. The key, name and execution number are the caller's to fill in.
profiler::PlannedRun to_planned_run(const StepPhase& phase, const StepRecord& record, const StepOps& ops,
                                    std::int64_t alignment_bytes);

/// The phase back, ready to be followed. Throws `std::invalid_argument` for a run that is no such step, and for slots
/// that overlap while both are live in a step that repeats.
std::shared_ptr<StepPhase> to_phase(const profiler::PlannedRun& planned, std::int64_t alignment_bytes);

}  // namespace stowage
