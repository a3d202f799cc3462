// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "profiler/record.h"
#include "profiler/store.h"

namespace stowage {

/// Opens the store that `options().store` names, for `recall` and `remember`; without a name there is none. Where it
/// cannot be opened or written, a note says so, once, and planning goes on without it. Each rank of a distributed run
/// has a file of its own: with RANK=1 and WORLD_SIZE=2, as torchrun sets them, 'profile.db' is 'profile.rank1.db'.
void open_plan_memory();
void close_plan_memory();

/// The file that runs and plans are kept in now; empty if there is none.
std::string plan_memory_path();

/// What an earlier run, maybe of another process, left for `key`. Thread safe.
std::optional<profiler::PlannedRun> recall(const profiler::RunKey& key);

/// Whether there is a store.
bool has_plan_memory();

/// What earlier runs left for `key` and whichever signature, the newest for each, newest first. What cannot be read is
/// left out, with a note. Thread safe.
std::vector<profiler::PlannedRun> recall_all(const profiler::RunKey& key, std::int64_t limit);

/// Writes a run that is not planned from to the store, if there is one. Thread safe.
void remember(const profiler::Run& run);

/// Writes a run and its plan to the store, if there is one. Thread safe.
void remember(const profiler::Run& run, const profiler::PlanRecord& plan);

/// What went wrong with the store; empty if nothing.
std::string plan_memory_error();

}  // namespace stowage
