// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "plugin/planned_allocator.h"

namespace stowage {

/// An op of a step as a thread ran it; ops inside it are part of it.
struct StepOp {
  std::string_view kind;   ///< such as "aten::linear"; its text lives forever, as that of `scope`
  std::string_view scope;  ///< the autograd node, or the `record_function`, that it ran in; may be empty
  Thread thread = nullptr;
  std::int32_t begin_event = 0;  ///< events of the step in [begin_event, end_event), by this thread, are the op's
  std::int32_t end_event = 0;
  std::int64_t start_ns = 0;  ///< since the watch began
  std::int64_t duration_ns = 0;
};

struct StepOps {
  std::vector<StepOp> ops;      ///< as they began
  std::vector<Thread> threads;  ///< by lane
  std::int64_t duration_ns = 0;
};

/// Watches which ops run in the allocator's open step, in the calling thread and in its backward, wherever that runs.
/// Ops that run already are not seen. It takes a callback of PyTorch's for each op, which slows small ones down. Does
/// nothing where a step is being watched, or where the step is another thread's.
void watch_ops(PlannedAllocator& allocator);

/// Ends the watch over the allocator's step, by the thread that began it. Nothing if there was none.
StepOps unwatch_ops(PlannedAllocator& allocator);

/// The op of each allocation of the step that was watched. `ops` gets one of kind "outside" for each row of allocations
/// that no op in it made.
std::vector<std::int32_t> assign_ops(StepOps& ops, const StepRecord& record);

/// The op that had begun last at an event; the first if none had.
std::int32_t op_at(const StepOps& ops, std::int32_t event);

}  // namespace stowage
