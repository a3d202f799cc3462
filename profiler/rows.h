// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "profiler/record.h"
#include "profiler/sqlite.h"

namespace stowage::profiler {

// The rows of a run and of its plan, in a store's tables. All run within the caller's transaction, and throw
// `Contradiction` for records, or rows, that contradict one another.

Run read_run_rows(const Database& database, std::int64_t run_id);
/// Nothing where the run has no plan.
std::optional<PlanRecord> read_plan_rows(const Database& database, std::int64_t run_id);

/// Returns the run's id.
std::int64_t write_run_rows(Database& database, const Run& run);
/// In place of an earlier plan.
void write_plan_rows(Database& database, std::int64_t run_id, const PlanRecord& plan);

void refuse_contradiction(const Run& run);
/// The plan is of run `run_id`.
void refuse_contradiction(const Database& database, std::int64_t run_id, const PlanRecord& plan);

}  // namespace stowage::profiler
