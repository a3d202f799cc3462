// SPDX-License-Identifier: Apache-2.0
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "profiler/check.h"
#include "profiler/row_text.h"
#include "profiler/rows.h"

namespace stowage::profiler {
namespace {

/// The rows of a run in a table, in order; `read` turns the columns of one into a record.
template <class Read>
auto read_rows(const Database& database, std::string_view sql, std::int64_t run_id, Read read) {
  std::vector<decltype(read(std::declval<Statement&>()))> records;
  Statement statement = database.prepare(sql);
  statement.bind(run_id);
  while (statement.step()) records.push_back(read(statement));
  return records;
}

std::size_t count_rows(const Database& database, std::string_view table, std::int64_t run_id) {
  Statement row = database.prepare(fmt::format("SELECT count(*) FROM {} WHERE run_id = ?", table));
  row.bind(run_id);
  row.step();
  return row.next<std::size_t>();
}

/// Ops, tensors and steps are their own index: a missing row would shift all later ones.
void require_dense(Statement& row, std::string_view what, std::int32_t expected) {
  const auto found = row.next<std::int32_t>();
  if (found != expected) throw Contradiction(fmt::format("{} {} is missing", what, expected));
}

std::optional<BudgetRecord> read_budget_row(const Database& database, std::int64_t run_id) {
  Statement row = database.prepare(
      "SELECT coalesce(limit_bytes, 0), coalesce(limit_ns, 0), unplanned_peak_bytes, unplanned_ns, predicted_ns, "
      "bound_ns, bound_peak_bytes, status FROM budgets WHERE run_id = ?");
  row.bind(run_id);
  if (!row.step()) return std::nullopt;
  return BudgetRecord{.limit_bytes = row.next<std::int64_t>(),
                      .limit_ns = row.next<std::int64_t>(),
                      .unplanned_peak_bytes = row.next<std::int64_t>(),
                      .unplanned_ns = row.next<std::int64_t>(),
                      .predicted_ns = row.next<std::int64_t>(),
                      .bound_ns = row.next<std::int64_t>(),
                      .bound_peak_bytes = row.next<std::int64_t>(),
                      .status = row.next_text()};
}

}  // namespace

void refuse_contradiction(const Run& run) {
  if (const auto found = find_contradiction(run)) throw Contradiction(*found);
}

void refuse_contradiction(const Database& database, std::int64_t run_id, const PlanRecord& plan) {
  const std::size_t op_count = count_rows(database, "ops", run_id);
  const std::size_t tensor_count = count_rows(database, "tensors", run_id);
  if (const auto found = find_contradiction(plan, op_count, tensor_count)) throw Contradiction(*found);
}

Run read_run_rows(const Database& database, std::int64_t run_id) {
  Statement row = database.prepare(
      "SELECT graph_hash, signature, device, torch_version, rules, name, clock, created_unix_ns, execution, "
      "dropped_records, alignment_bytes, complete, graph_text, duration_ns, peak_bytes, size_mismatches, kind FROM "
      "runs WHERE id = ?");
  row.bind(run_id);
  if (!row.step()) {
    throw StoreError(
        fmt::format("cannot read run {} of store '{}': it has no such run; list its runs with 'stowage info'", run_id,
                    database.path()));
  }
  Run run;
  run.key.graph_hash = row.next_text();
  run.key.signature = row.next_text();
  run.key.device = row.next_text();
  run.key.torch_version = row.next_text();
  run.key.rules = row.next_text();
  run.name = row.next_text();
  run.clock = row.next_text();
  run.created_unix_ns = row.next<std::int64_t>();
  run.execution = row.next<std::int32_t>();
  run.dropped_records = row.next<std::int64_t>();
  run.alignment_bytes = row.next<std::int64_t>();
  run.complete = row.next<std::int64_t>() != 0;
  run.graph_text = row.next_text();
  run.duration_ns = row.next<std::int64_t>();
  run.peak_bytes = row.next<std::int64_t>();
  run.size_mismatches = row.next<std::int64_t>();
  run.kind = from_text<RunKind>(kRunKinds, row.next_text());

  std::int32_t expected = 0;
  run.ops = read_rows(database,
                      "SELECT op, name, kind, scope, source, start_ns, duration_ns, repeatable, program_op "
                      "FROM ops WHERE run_id = ? ORDER BY op",
                      run_id, [&](Statement& op) {
                        require_dense(op, "op", expected++);
                        return OpRecord{.name = op.next_text(),
                                        .kind = op.next_text(),
                                        .scope = op.next_text(),
                                        .source = op.next_text(),
                                        .start_ns = op.next<std::int64_t>(),
                                        .duration_ns = op.next<std::int64_t>(),
                                        .repeatable = op.next<std::int64_t>() != 0,
                                        .program_op = op.next_or_none()};
                      });
  expected = 0;
  run.tensors = read_rows(
      database, "SELECT tensor, name, kind, size_bytes, dtype, shape FROM tensors WHERE run_id = ? ORDER BY tensor",
      run_id, [&](Statement& tensor) {
        require_dense(tensor, "tensor", expected++);
        return TensorRecord{.name = tensor.next_text(),
                            .kind = from_text<TensorKind>(kTensorKinds, tensor.next_text()),
                            .size_bytes = tensor.next<std::int64_t>(),
                            .dtype = tensor.next_text(),
                            .shape = tensor.next_text()};
      });
  run.uses = read_rows(database, "SELECT op, tensor, kind, position FROM uses WHERE run_id = ? ORDER BY use", run_id,
                       [](Statement& use) {
                         return UseRecord{.op = use.next<std::int32_t>(),
                                          .tensor = use.next<std::int32_t>(),
                                          .kind = from_text<UseKind>(kUseKinds, use.next_text()),
                                          .position = use.next_or_none()};
                       });
  run.dependencies =
      read_rows(database, "SELECT op, after_op, reason FROM dependencies WHERE run_id = ? ORDER BY dependency", run_id,
                [](Statement& dependency) {
                  return DependencyRecord{.op = dependency.next<std::int32_t>(),
                                          .after = dependency.next<std::int32_t>(),
                                          .reason = from_text<DependencyReason>(kReasons, dependency.next_text())};
                });
  run.allocations =
      read_rows(database,
                "SELECT tensor, op, index_in_op, requested_bytes, rounded_bytes, stream, allocate_event, free_op, "
                "free_event, source, lane "
                "FROM allocations WHERE run_id = ? ORDER BY allocation",
                run_id, [](Statement& allocation) {
                  return AllocationRecord{.tensor = allocation.next<std::int32_t>(),
                                          .op = allocation.next<std::int32_t>(),
                                          .index = allocation.next<std::int32_t>(),
                                          .requested_bytes = allocation.next<std::int64_t>(),
                                          .rounded_bytes = allocation.next<std::int64_t>(),
                                          .stream = allocation.next<std::int64_t>(),
                                          .allocate_event = allocation.next<std::int32_t>(),
                                          .free_op = allocation.next_or_none(),
                                          .free_event = allocation.next_or_none(),
                                          .source = from_text<AllocationSource>(kSources, allocation.next_text()),
                                          .lane = allocation.next<std::int32_t>()};
                });
  run.carried =
      read_rows(database, "SELECT allocation, free_op, free_event FROM carried WHERE run_id = ? ORDER BY allocation",
                run_id, [](Statement& carried) {
                  return CarriedRecord{.allocation = carried.next<std::int32_t>(),
                                       .free_op = carried.next<std::int32_t>(),
                                       .free_event = carried.next<std::int32_t>()};
                });
  run.reuses =
      read_rows(database, "SELECT op, tensor, of_tensor, position, layout FROM reuses WHERE run_id = ? ORDER BY reuse",
                run_id, [](Statement& reuse) {
                  return ReuseRecord{.op = reuse.next<std::int32_t>(),
                                     .output = reuse.next<std::int32_t>(),
                                     .input = reuse.next<std::int32_t>(),
                                     .position = reuse.next<std::int32_t>(),
                                     .layout = reuse.next<std::int64_t>()};
                });
  run.kernels = read_rows(
      database, "SELECT op, name, start_ns, duration_ns, stream FROM kernels WHERE run_id = ? ORDER BY kernel", run_id,
      [](Statement& kernel) {
        return KernelRecord{.op = kernel.next_or_none(),
                            .name = kernel.next_text(),
                            .start_ns = kernel.next<std::int64_t>(),
                            .duration_ns = kernel.next<std::int64_t>(),
                            .stream = kernel.next<std::int64_t>()};
      });
  run.copies = read_rows(
      database, "SELECT op, kind, size_bytes, start_ns, duration_ns, stream FROM copies WHERE run_id = ? ORDER BY copy",
      run_id, [](Statement& copy) {
        return CopyRecord{.op = copy.next_or_none(),
                          .kind = from_text<CopyKind>(kCopyKinds, copy.next_text()),
                          .size_bytes = copy.next<std::int64_t>(),
                          .start_ns = copy.next<std::int64_t>(),
                          .duration_ns = copy.next<std::int64_t>(),
                          .stream = copy.next<std::int64_t>()};
      });
  run.device_memory = read_rows(
      database,
      "SELECT op, kind, address, size_bytes, time_ns, allocation FROM device_memory WHERE run_id = ? ORDER BY change",
      run_id, [](Statement& change) {
        return DeviceMemoryRecord{.op = change.next_or_none(),
                                  .kind = from_text<DeviceMemoryRecord::Kind>(kMemoryKinds, change.next_text()),
                                  .address = static_cast<std::uint64_t>(change.next<std::int64_t>()),
                                  .size_bytes = change.next<std::int64_t>(),
                                  .time_ns = change.next<std::int64_t>(),
                                  .allocation = change.next_or_none()};
      });
  refuse_contradiction(run);
  return run;
}

std::optional<PlanRecord> read_plan_rows(const Database& database, std::int64_t run_id) {
  Statement row = database.prepare(
      "SELECT peak_bytes, program_peak_bytes, bound_bytes, order_status, arena_bytes, arena_bound_bytes, "
      "layout_status, "
      "planning_ns, graph_text, cut_bytes FROM plans WHERE run_id = ?");
  row.bind(run_id);
  if (!row.step()) return std::nullopt;
  PlanRecord plan;
  plan.peak_bytes = row.next<std::int64_t>();
  plan.program_peak_bytes = row.next<std::int64_t>();
  plan.bound_bytes = row.next<std::int64_t>();
  plan.order_status = row.next_text();
  plan.arena_bytes = row.next<std::int64_t>();
  plan.arena_bound_bytes = row.next<std::int64_t>();
  plan.layout_status = row.next_text();
  plan.planning_ns = row.next<std::int64_t>();
  plan.graph_text = row.next_text();
  plan.cut_bytes = row.next<std::int64_t>();
  plan.budget = read_budget_row(database, run_id);

  std::int32_t expected = 0;
  plan.order = read_rows(database, "SELECT step, op FROM plan_order WHERE run_id = ? ORDER BY step", run_id,
                         [&](Statement& step) {
                           require_dense(step, "step", expected++);
                           return step.next<std::int32_t>();
                         });
  plan.slots = read_rows(
      database, "SELECT tensor, offset_bytes, size_bytes, other_offset_bytes FROM slots WHERE run_id = ? ORDER BY slot",
      run_id, [](Statement& slot) {
        return SlotRecord{.tensor = slot.next<std::int32_t>(),
                          .offset_bytes = slot.next<std::int64_t>(),
                          .size_bytes = slot.next<std::int64_t>(),
                          .other_offset_bytes = slot.next_if_any()};
      });
  plan.points = read_rows(database, "SELECT kind, op, tensor, of_tensor FROM points WHERE run_id = ? ORDER BY point",
                          run_id, [](Statement& point) {
                            return PointRecord{.kind = from_text<PointKind>(kPointKinds, point.next_text()),
                                               .op = point.next<std::int32_t>(),
                                               .tensor = point.next<std::int32_t>(),
                                               .of = point.next_or_none()};
                          });
  refuse_contradiction(database, run_id, plan);
  return plan;
}

}  // namespace stowage::profiler
