// SPDX-License-Identifier: Apache-2.0
#include "profiler/row_text.h"
#include "profiler/rows.h"
#include "profiler/schema_sql.h"

namespace stowage::profiler {
namespace {

bool has_run(const Database& database, std::int64_t run_id) {
  Statement row = database.prepare("SELECT 1 FROM runs WHERE id = ?");
  row.bind(run_id);
  return row.step();
}

}  // namespace

std::int64_t write_run_rows(Database& database, const Run& run) {
  refuse_contradiction(run);
  database
      .prepare(
          "INSERT INTO runs (graph_hash, signature, device, torch_version, rules, stowage_version, name, clock, "
          "created_unix_ns, execution, dropped_records, alignment_bytes, complete, graph_text, duration_ns, "
          "peak_bytes, size_mismatches, kind) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .run(run.key.graph_hash, run.key.signature, run.key.device, run.key.torch_version, run.key.rules, kStowageVersion,
           run.name, run.clock, run.created_unix_ns, run.execution, run.dropped_records, run.alignment_bytes,
           run.complete, run.graph_text, run.duration_ns, run.peak_bytes, run.size_mismatches,
           to_text(kRunKinds, run.kind));
  const std::int64_t run_id = database.last_insert_id();

  std::int64_t row = 0;
  Statement ops = database.prepare("INSERT INTO ops VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  for (const OpRecord& op : run.ops) {
    ops.run(run_id, row++, op.name, op.kind, op.scope, op.source, op.start_ns, op.duration_ns, op.repeatable,
            or_null(op.program_op));
  }
  row = 0;
  Statement tensors = database.prepare("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?)");
  for (const TensorRecord& tensor : run.tensors) {
    tensors.run(run_id, row++, tensor.name, to_text(kTensorKinds, tensor.kind), tensor.size_bytes, tensor.dtype,
                tensor.shape);
  }
  row = 0;
  Statement uses = database.prepare("INSERT INTO uses VALUES (?, ?, ?, ?, ?, ?)");
  for (const UseRecord& use : run.uses) {
    uses.run(run_id, row++, use.op, use.tensor, to_text(kUseKinds, use.kind), or_null(use.position));
  }
  row = 0;
  Statement dependencies = database.prepare("INSERT INTO dependencies VALUES (?, ?, ?, ?, ?)");
  for (const DependencyRecord& dependency : run.dependencies) {
    dependencies.run(run_id, row++, dependency.op, dependency.after, to_text(kReasons, dependency.reason));
  }
  row = 0;
  Statement allocations = database.prepare("INSERT INTO allocations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  for (const AllocationRecord& allocation : run.allocations) {
    allocations.run(run_id, row++, allocation.tensor, allocation.op, allocation.index, allocation.requested_bytes,
                    allocation.rounded_bytes, allocation.stream, allocation.allocate_event, or_null(allocation.free_op),
                    or_null(allocation.free_event), to_text(kSources, allocation.source), allocation.lane);
  }
  Statement carried = database.prepare("INSERT INTO carried VALUES (?, ?, ?, ?)");
  for (const CarriedRecord& each : run.carried) carried.run(run_id, each.allocation, each.free_op, each.free_event);
  row = 0;
  Statement reuses = database.prepare("INSERT INTO reuses VALUES (?, ?, ?, ?, ?, ?, ?)");
  for (const ReuseRecord& reuse : run.reuses) {
    reuses.run(run_id, row++, reuse.op, reuse.output, reuse.input, reuse.position, reuse.layout);
  }
  row = 0;
  Statement kernels = database.prepare("INSERT INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?)");
  for (const KernelRecord& kernel : run.kernels) {
    kernels.run(run_id, row++, or_null(kernel.op), kernel.name, kernel.start_ns, kernel.duration_ns, kernel.stream);
  }
  row = 0;
  Statement copies = database.prepare("INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  for (const CopyRecord& copy : run.copies) {
    copies.run(run_id, row++, or_null(copy.op), to_text(kCopyKinds, copy.kind), copy.size_bytes, copy.start_ns,
               copy.duration_ns, copy.stream);
  }
  row = 0;
  Statement device_memory = database.prepare("INSERT INTO device_memory VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  for (const DeviceMemoryRecord& change : run.device_memory) {
    device_memory.run(run_id, row++, or_null(change.op), to_text(kMemoryKinds, change.kind),
                      static_cast<std::int64_t>(change.address), change.size_bytes, change.time_ns,
                      or_null(change.allocation));
  }
  return run_id;
}

void write_plan_rows(Database& database, std::int64_t run_id, const PlanRecord& plan) {
  if (!has_run(database, run_id)) throw Contradiction("the store has no such run");
  refuse_contradiction(database, run_id, plan);
  database.prepare("DELETE FROM plans WHERE run_id = ?").run(run_id);
  database.prepare("INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .run(run_id, plan.peak_bytes, plan.program_peak_bytes, plan.bound_bytes, plan.order_status, plan.arena_bytes,
           plan.arena_bound_bytes, plan.layout_status, plan.planning_ns, plan.graph_text, plan.cut_bytes);
  if (const auto& budget = plan.budget) {
    database.prepare("INSERT INTO budgets VALUES (?, nullif(?, 0), nullif(?, 0), ?, ?, ?, ?, ?, ?)")
        .run(run_id, budget->limit_bytes, budget->limit_ns, budget->unplanned_peak_bytes, budget->unplanned_ns,
             budget->predicted_ns, budget->bound_ns, budget->bound_peak_bytes, budget->status);
  }

  std::int64_t row = 0;
  Statement order = database.prepare("INSERT INTO plan_order VALUES (?, ?, ?)");
  for (const std::int32_t op : plan.order) order.run(run_id, row++, op);
  row = 0;
  Statement slots = database.prepare("INSERT INTO slots VALUES (?, ?, ?, ?, ?, ?)");
  for (const SlotRecord& slot : plan.slots) {
    slots.run(run_id, row++, slot.tensor, slot.offset_bytes, slot.size_bytes, slot.other_offset_bytes);
  }
  row = 0;
  Statement points = database.prepare("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)");
  for (const PointRecord& point : plan.points) {
    points.run(run_id, row++, to_text(kPointKinds, point.kind), point.op, point.tensor, or_null(point.of));
  }
}

}  // namespace stowage::profiler
