// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/step_ops.h"
#include "plugin/step_planner.h"
#include "plugin/torch_headers.h"

namespace stowage {

/// Writes the plan of a phase to the store, if there is one: `record` is what it was planned from, `ops` those of the
/// same step, or none.
void remember_step(c10::Device device, const StepPhase& phase, const StepRecord& record, const StepOps& ops,
                   std::int64_t step);

/// What earlier processes left, in the order in which they met it: plans of steps on such a device, by the same
/// command. A broken one is left out, with a note.
std::vector<std::shared_ptr<StepPhase>> recall_steps(c10::Device device);

}  // namespace stowage
