// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_run.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plugin/devices.h"
#include "solver/cyclic.h"

namespace stowage {
namespace {

using profiler::AllocationRecord;
using profiler::kNone;
using profiler::PlannedRun;
using profiler::PlanRecord;
using profiler::PointKind;
using profiler::Run;
using profiler::TensorKind;

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

std::vector<profiler::OpRecord> op_records(const StepOps& all) {
  std::vector<profiler::OpRecord> records;
  std::map<std::string, int> count;
  for (const StepOp& op : all.ops) {
    const std::string name(op.kind.substr(op.kind.rfind(':') + 1));
    records.push_back({.name = fmt::format("{}.{}", name, count[name]++),
                       .kind = std::string(op.kind),
                       .scope = std::string(op.scope),
                       .source = {},
                       .start_ns = op.start_ns,
                       .duration_ns = op.duration_ns});
  }
  return records;
}

Run to_run(const StepRecord& record, StepOps ops, std::int64_t alignment_bytes) {
  const std::vector<std::int32_t> op_of = assign_ops(ops, record);
  Run run;
  run.kind = profiler::RunKind::kStep;
  run.clock = "steady_clock";
  run.created_unix_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  run.alignment_bytes = alignment_bytes;
  run.duration_ns = ops.duration_ns;
  run.peak_bytes = eager_peak_bytes(record);
  run.ops = op_records(ops);
  std::vector<std::int32_t> made(run.ops.size(), 0);
  for (std::size_t at = 0; at < record.allocations.size(); ++at) {
    const StepAllocation& each = record.allocations[at];
    AllocationRecord allocation;
    allocation.tensor = static_cast<std::int32_t>(at);
    allocation.op = op_of[at];
    allocation.index = made[index(allocation.op)]++;
    allocation.requested_bytes = each.size_bytes;
    allocation.rounded_bytes = round_up(each.size_bytes, alignment_bytes);
    allocation.allocate_event = each.allocate_event;
    allocation.lane = each.lane;
    TensorKind kind = TensorKind::kOutput;
    if (each.freed_in == FreedIn::kSameStep) {
      allocation.free_event = free_event_of(each, record);
      allocation.free_op = std::max(op_at(ops, allocation.free_event), allocation.op);
      kind = allocation.free_op == allocation.op ? TensorKind::kWorkspace : TensorKind::kIntermediate;
    } else if (each.freed_in == FreedIn::kNextStep) {
      const std::int32_t free_event = free_event_of(each, record);
      run.carried.push_back({allocation.tensor, op_at(ops, free_event), free_event});
    }
    const std::string& op_name = run.ops[index(allocation.op)].name;
    run.tensors.push_back({.name = allocation.index == 0 ? op_name : fmt::format("{}/{}", op_name, allocation.index),
                           .kind = kind,
                           .size_bytes = each.size_bytes,
                           .dtype = {},
                           .shape = {}});
    run.allocations.push_back(std::move(allocation));
  }
  return run;
}

StepRecord to_step_record(const Run& run) {
  StepRecord record;
  std::vector<std::int32_t> next_free(run.allocations.size(), kNone);
  for (const profiler::CarriedRecord& carried : run.carried) next_free[index(carried.allocation)] = carried.free_event;
  for (std::size_t at = 0; at < run.allocations.size(); ++at) {
    const AllocationRecord& each = run.allocations[at];
    StepAllocation allocation{
        .lane = each.lane, .size_bytes = each.requested_bytes, .allocate_event = each.allocate_event};
    if (each.free_event != kNone || next_free[at] != kNone) {
      allocation.freed_in = each.free_event != kNone ? FreedIn::kSameStep : FreedIn::kNextStep;
      allocation.free_event = std::max(each.free_event, next_free[at]);
    }
    if (at > 0 && each.allocate_event <= record.allocations.back().allocate_event) {
      throw std::invalid_argument(fmt::format("allocation {} comes before the one before it", at));
    }
    if (each.tensor != static_cast<std::int32_t>(at)) throw std::invalid_argument("tensors are in another order");
    if (each.requested_bytes < kLeastStepBytes || each.lane > static_cast<std::int32_t>(at)) {
      throw std::invalid_argument(fmt::format("allocation {} is none of a step", at));
    }
    record.event_count = std::max({record.event_count, each.allocate_event + 1, allocation.free_event + 1});
    record.allocations.push_back(allocation);
  }
  if (record.allocations.empty()) throw std::invalid_argument("it allocates nothing");
  return record;
}

/// Checks the slots, and hands them to the table.
void fill_plan(StepPlan& plan, const StepRecord& record, const PlannedRun& planned) {
  const std::int64_t alignment_bytes = planned.run.alignment_bytes;
  std::vector<const profiler::SlotRecord*> slot_of(record.allocations.size());
  for (const profiler::SlotRecord& slot : planned.plan.slots) slot_of[index(slot.tensor)] = &slot;
  StepTable& table = *plan.table;
  const auto& slots = planned.plan.slots;
  table.turns = !slots.empty() && slots.front().other_offset_bytes ? 2 : 1;
  table.arena_bytes = planned.plan.arena_bytes;
  solver::CyclicLayout layout{.turns = table.turns,
                              .offset_bytes = std::vector<std::vector<std::int64_t>>(index(table.turns)),
                              .arena_bytes = table.arena_bytes,
                              .bound_bytes = planned.plan.arena_bound_bytes,
                              .status = table.arena_bytes == planned.plan.arena_bound_bytes
                                            ? solver::Status::kOptimal
                                            : solver::Status::kFeasible};
  std::vector<solver::CyclicBuffer> buffers;
  for (std::size_t at = 0; at < record.allocations.size(); ++at) {
    const StepAllocation& each = record.allocations[at];
    if (index(each.lane) >= table.lanes.size()) table.lanes.resize(index(each.lane) + 1);
    StepTable::Entry& entry = table.lanes[index(each.lane)].emplace_back();
    entry.size_bytes = each.size_bytes;
    if (slot_of[at] == nullptr) continue;
    const profiler::SlotRecord& slot = *slot_of[at];
    if (!may_have_slot(each) || slot.size_bytes != round_up(each.size_bytes, alignment_bytes) ||
        slot.other_offset_bytes.has_value() != (table.turns == 2)) {
      throw std::invalid_argument(fmt::format("the slot of allocation {} is none for it", at));
    }
    entry.slot_bytes = slot.size_bytes;
    entry.offset_bytes = {slot.offset_bytes};
    if (slot.other_offset_bytes) entry.offset_bytes.push_back(*slot.other_offset_bytes);
    for (std::size_t turn = 0; turn < index(table.turns); ++turn) {
      layout.offset_bytes[turn].push_back(entry.offset_bytes[turn]);
    }
    buffers.push_back(to_buffer(record, at, alignment_bytes));
    if (table.turns == 1 && is_carried(buffers.back())) {
      plan.carried.size_bytes.push_back(each.size_bytes);
      plan.carried.offset_bytes.push_back(slot.offset_bytes);
    }
  }
  if (const auto fault = solver::find_overlap(buffers, record.event_count, {}, layout)) {
    throw std::invalid_argument(*fault);
  }
  number_lanes(table);
  plan.status = layout.status;
}

}  // namespace

PlannedRun to_planned_run(const StepPhase& phase, const StepRecord& record, const StepOps& ops,
                          std::int64_t alignment_bytes) {
  PlannedRun planned{.run = to_run(record, ops, alignment_bytes), .plan = {}};
  const Run& run = planned.run;
  PlanRecord& plan = planned.plan;
  plan.order.resize(run.ops.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  std::vector<std::size_t> position(phase.plan.table->lanes.size(), 0);
  for (const AllocationRecord& each : run.allocations) {
    const auto& lane = phase.plan.table->lanes[index(each.lane)];
    const StepTable::Entry& entry = lane[position[index(each.lane)]++];
    if (entry.slot_bytes == 0) continue;
    profiler::SlotRecord slot{
        .tensor = each.tensor, .offset_bytes = entry.offset_bytes[0], .size_bytes = entry.slot_bytes};
    if (entry.offset_bytes.size() == 2) slot.other_offset_bytes = entry.offset_bytes[1];
    plan.slots.push_back(slot);
    plan.points.push_back({PointKind::kPlace, each.op, each.tensor});
    if (each.free_op != kNone) plan.points.push_back({PointKind::kFree, each.free_op, each.tensor});
  }
  for (const profiler::CarriedRecord& each : run.carried) {
    plan.points.push_back({PointKind::kFree, each.free_op, each.allocation});
  }
  plan.peak_bytes = plan.program_peak_bytes = plan.bound_bytes = run.peak_bytes;
  plan.order_status = solver::to_string(solver::Status::kOptimal);
  plan.arena_bytes = phase.plan.table->arena_bytes;
  plan.arena_bound_bytes = phase.plan.bound_bytes;
  plan.layout_status = solver::to_string(phase.plan.status);
  plan.planning_ns = phase.planning_ns;
  return planned;
}

std::shared_ptr<StepPhase> to_phase(const PlannedRun& planned, std::int64_t alignment_bytes) {
  const Run& run = planned.run;
  if (run.kind != profiler::RunKind::kStep) throw std::invalid_argument("it is no step");
  if (run.alignment_bytes != alignment_bytes) {
    throw std::invalid_argument(fmt::format("slots are aligned to {} B, not {}", run.alignment_bytes, alignment_bytes));
  }
  auto phase = std::make_shared<StepPhase>();
  phase->record = to_step_record(run);
  phase->plan.table = std::make_shared<StepTable>();
  fill_plan(phase->plan, *phase->record, planned);
  phase->plan.peak_bytes = slotted_peak_bytes(*phase->record);
  phase->plan.bound_bytes = planned.plan.arena_bound_bytes;
  phase->digest = phase->plan.table->digest;
  if (const std::string digest = digest_text(phase->digest); digest != run.key.signature) {
    throw std::invalid_argument(fmt::format("its sizes have digest {}, not {}", digest, run.key.signature));
  }
  phase->allocations = static_cast<std::int64_t>(phase->record->allocations.size());
  for (const StepAllocation& each : phase->record->allocations) phase->bytes += each.size_bytes;
  phase->eager_peak_bytes = run.peak_bytes;
  phase->planning_ns = planned.plan.planning_ns;
  phase->recalled = true;
  return phase;
}

}  // namespace stowage
