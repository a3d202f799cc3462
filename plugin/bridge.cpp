// SPDX-License-Identifier: Apache-2.0
#include "plugin/bridge.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "plugin/devices.h"

namespace stowage {
namespace {

using profiler::DependencyReason;
using profiler::PlanRecord;
using profiler::PointKind;
using profiler::Run;
using profiler::TensorKind;
using profiler::UseKind;

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

bool in_range(std::int32_t id, std::size_t size) { return id >= 0 && index(id) < size; }

solver::Status status_from(const std::string& text) {
  for (const auto status : {solver::Status::kOptimal, solver::Status::kInfeasible, solver::Status::kTimedOut}) {
    if (text == solver::to_string(status)) return status;
  }
  return solver::Status::kFeasible;
}

/// By op, whether what it makes are views, or lists of them: it holds tensors and allocates none.
std::vector<bool> find_views(const Run& run) {
  std::vector<bool> is_view(run.ops.size(), false);
  for (const profiler::UseRecord& use : run.uses) {
    if (use.kind == UseKind::kResult) is_view[index(use.op)] = true;
  }
  for (const profiler::AllocationRecord& allocation : run.allocations) is_view[index(allocation.op)] = false;
  return is_view;
}

}  // namespace

solver::Problem to_problem(const Run& run) {
  solver::Problem problem;
  problem.name = run.name;
  for (const profiler::TensorRecord& record : run.tensors) {
    solver::Tensor tensor;
    tensor.name = record.name;
    tensor.size_bytes = record.size_bytes;
    tensor.alignment_bytes = run.alignment_bytes;
    tensor.persistent = record.kind == TensorKind::kInput || record.kind == TensorKind::kConstant;
    tensor.output = tensor.external = record.kind == TensorKind::kOutput;
    problem.tensors.push_back(std::move(tensor));
  }
  for (const profiler::OpRecord& record : run.ops) {
    solver::Op op;
    op.name = record.name;
    op.kind = record.kind;
    op.duration_ns = record.duration_ns;
    op.repeatable = record.repeatable;
    problem.ops.push_back(std::move(op));
  }
  for (const profiler::UseRecord& use : run.uses) {
    solver::Op& op = problem.ops[index(use.op)];
    std::vector<std::int32_t>& tensors = use.kind == UseKind::kWrite ? op.writes : op.reads;
    // A view of a tensor is a use of it; its allocation is an event.
    if (std::find(tensors.begin(), tensors.end(), use.tensor) == tensors.end()) tensors.push_back(use.tensor);
  }
  const std::vector<bool> is_view = find_views(run);
  for (const profiler::DependencyRecord& dependency : run.dependencies) {
    solver::Op& op = problem.ops[index(dependency.op)];
    const auto add = [&](std::vector<std::int32_t>& to) {
      if (std::find(to.begin(), to.end(), dependency.after) == to.end()) to.push_back(dependency.after);
    };
    add(op.after);
    if (dependency.reason == DependencyReason::kValue && is_view[index(dependency.after)]) add(op.views);
  }

  struct Timed {
    std::int32_t event;
    std::int32_t op;
    solver::Event what;
  };
  std::vector<Timed> events;
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    events.push_back({allocation.allocate_event, allocation.op, {solver::Event::Kind::kAllocate, allocation.tensor}});
    if (run.tensors[index(allocation.tensor)].kind == TensorKind::kWorkspace) {
      events.push_back({allocation.free_event, allocation.op, {solver::Event::Kind::kFree, allocation.tensor}});
    }
  }
  std::sort(events.begin(), events.end(), [](const Timed& a, const Timed& b) { return a.event < b.event; });
  for (const Timed& timed : events) problem.ops[index(timed.op)].events.push_back(timed.what);

  for (const profiler::ReuseRecord& reuse : run.reuses) {
    problem.ops[index(reuse.op)].reuses.push_back({.output = reuse.output, .input = reuse.input});
  }

  // An op's own allocation is no read of it: what allocates comes first anyhow.
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    std::erase(problem.ops[index(allocation.op)].reads, allocation.tensor);
  }
  return problem;
}

PlanRecord to_record(const Run& run, const solver::Plan& plan) {
  PlanRecord record;
  record.order = plan.order;
  std::vector<std::vector<std::int32_t>> placed(run.ops.size());
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    if (plan.offset_bytes[index(allocation.tensor)] != solver::kNoSlot) {
      placed[index(allocation.op)].push_back(allocation.tensor);
    }
  }
  for (const std::int32_t op : plan.order) {
    for (const std::int32_t tensor : placed[index(op)]) {
      record.slots.push_back({tensor, plan.offset_bytes[index(tensor)],
                              round_up(run.tensors[index(tensor)].size_bytes, run.alignment_bytes)});
      const std::int32_t reused = plan.reuse_of[index(tensor)];
      if (reused == solver::kNoReuse) {
        record.points.push_back({PointKind::kPlace, op, tensor});
      } else {
        record.points.push_back({PointKind::kReuse, op, tensor, reused});
      }
    }
    for (const std::int32_t tensor : plan.frees_after[index(op)]) {
      record.points.push_back({PointKind::kFree, op, tensor});
    }
  }
  record.peak_bytes = plan.peak_bytes;
  record.program_peak_bytes = plan.program_peak_bytes;
  record.bound_bytes = plan.bound_bytes;
  record.order_status = solver::to_string(plan.order_status);
  record.arena_bytes = plan.arena_bytes;
  record.cut_bytes = plan.cut_bytes;
  record.arena_bound_bytes = plan.arena_bound_bytes;
  record.layout_status = solver::to_string(plan.layout_status);
  return record;
}

solver::Plan to_plan(const Run& run, const PlanRecord& record) {
  solver::Plan plan;
  plan.order = record.order;
  plan.offset_bytes.assign(run.tensors.size(), solver::kNoSlot);
  plan.reuse_of.assign(run.tensors.size(), solver::kNoReuse);
  plan.frees_after.resize(run.ops.size());
  for (const profiler::SlotRecord& slot : record.slots) {
    if (in_range(slot.tensor, run.tensors.size())) plan.offset_bytes[index(slot.tensor)] = slot.offset_bytes;
  }
  for (const profiler::PointRecord& point : record.points) {
    if (point.kind == PointKind::kFree && in_range(point.op, run.ops.size())) {
      plan.frees_after[index(point.op)].push_back(point.tensor);
    }
    if (point.kind == PointKind::kReuse && in_range(point.tensor, run.tensors.size())) {
      plan.reuse_of[index(point.tensor)] = point.of;
    }
  }
  for (std::vector<std::int32_t>& frees : plan.frees_after) std::sort(frees.begin(), frees.end());
  plan.peak_bytes = record.peak_bytes;
  plan.program_peak_bytes = record.program_peak_bytes;
  plan.bound_bytes = record.bound_bytes;
  plan.order_status = status_from(record.order_status);
  plan.arena_bytes = record.arena_bytes;
  plan.cut_bytes = record.cut_bytes;
  plan.arena_bound_bytes = record.arena_bound_bytes;
  plan.layout_status = status_from(record.layout_status);
  return plan;
}

SlotTable to_slot_table(const Run& run, const PlanRecord& record) {
  std::vector<Slot> slot_of(run.tensors.size());
  for (const profiler::SlotRecord& slot : record.slots)
    slot_of[index(slot.tensor)] = {slot.offset_bytes, slot.size_bytes};
  for (const profiler::PointRecord& point : record.points) {
    if (point.kind == PointKind::kReuse) slot_of[index(point.tensor)].reuses = true;
  }

  SlotTable table;
  table.arena_bytes = record.arena_bytes;
  if (record.cut_bytes > 0) table.cuts = {record.cut_bytes};
  table.first_slot.assign(run.ops.size() + 1, 0);
  for (const profiler::AllocationRecord& allocation : run.allocations) ++table.first_slot[index(allocation.op) + 1];
  for (std::size_t op = 0; op < run.ops.size(); ++op) table.first_slot[op + 1] += table.first_slot[op];
  table.slots.resize(run.allocations.size());
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    const std::size_t op = index(allocation.op);
    const std::int32_t count = table.first_slot[op + 1] - table.first_slot[op];
    if (allocation.index >= count) {
      throw std::invalid_argument(fmt::format("op {} '{}' makes {} allocations, but has one of index {}", allocation.op,
                                              run.ops[op].name, count, allocation.index));
    }
    table.slots[index(table.first_slot[op] + allocation.index)] = slot_of[index(allocation.tensor)];
  }
  return table;
}

SlotTable without_slots(SlotTable table) {
  for (Slot& slot : table.slots) slot = {};
  table.arena_bytes = 0;
  table.cuts.clear();
  return table;
}

}  // namespace stowage
