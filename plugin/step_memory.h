// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/step_ops.h"
#include "plugin/step_planner.h"
#include "plugin/torch_headers.h"
#include "profiler/store.h"

namespace stowage {

/// The plan of a phase as the store is to have it: `record` is what it was planned from, `ops` those of the same step,
/// or none, `step` is its number in the process, from 1.
profiler::PlannedRun to_remember(c10::Device device, const StepPhase& phase, const StepRecord& record,
                                 const StepOps& ops, std::int64_t step);

/// What earlier processes left, in the order in which they met it: plans of steps on such a device, by the same
/// command. A broken one is left out, with a note.
std::vector<std::shared_ptr<StepPhase>> recall_steps(c10::Device device);

}  // namespace stowage
