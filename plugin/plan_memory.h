// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "profiler/record.h"
#include "profiler/store.h"

namespace stowage {

/// Opens the store that `options().store` names, for `recall` and `remember`; without a name there is none. Where it
/// cannot be opened or written, a note says so, once, and planning goes on without it.
void open_plan_memory();
void close_plan_memory();

/// What an earlier run, maybe of another process, left for `key`. Thread safe.
std::optional<profiler::PlannedRun> recall(const profiler::RunKey& key);

/// Writes a run that is not planned from to the store, if there is one. Thread safe.
void remember(const profiler::Run& run);

/// Writes a run and its plan to the store, if there is one. Thread safe.
void remember(const profiler::Run& run, const profiler::PlanRecord& plan);

/// What went wrong with the store; empty if nothing.
std::string plan_memory_error();

}  // namespace stowage
