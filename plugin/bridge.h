// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugin/planned_allocator.h"
#include "profiler/record.h"
#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage {

/// The problem that a profiled run poses. Op and tensor ids are the run's. Inputs and constants become persistent
/// tensors, outputs external ones.
solver::Problem to_problem(const profiler::Run& run);

/// A plan as it is remembered. `planning_ns` and `graph_text` are the caller's to fill in.
profiler::PlanRecord to_record(const profiler::Run& run, const solver::Plan& plan);

/// The plan that was remembered, to be validated against `to_problem(run)`; fields the solver's validator does not
/// need come back as they went in. Ids out of range are dropped, which the validator then reports.
solver::Plan to_plan(const profiler::Run& run, const profiler::PlanRecord& record);

/// The plan as the allocator needs it. Throws `std::invalid_argument` if the run's allocations contradict one another.
SlotTable to_slot_table(const profiler::Run& run, const profiler::PlanRecord& record);

/// The same table with every slot empty, so that it needs no arena: all goes upstream, counted as what it is.
SlotTable without_slots(SlotTable table);

}  // namespace stowage
