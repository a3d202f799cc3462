// SPDX-License-Identifier: Apache-2.0
#include "profiler/store.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "profiler/check.h"
#include "profiler/open.h"
#include "profiler/schema_sql.h"
#include "profiler/sqlite.h"

namespace stowage::profiler {
namespace {

// --- enums are text in the file, in the order of their enumerators -----------------------------------------------

constexpr std::array<std::string_view, 5> kTensorKinds{"input", "constant", "intermediate", "workspace", "output"};
constexpr std::array<std::string_view, 3> kUseKinds{"read", "write", "result"};
constexpr std::array<std::string_view, 4> kReasons{"value", "random", "effect", "barrier"};
constexpr std::array<std::string_view, 2> kSources{"allocator", "cupti"};
constexpr std::array<std::string_view, 3> kPointKinds{"place", "reuse", "free"};

template <std::size_t count, class Enum>
std::string_view to_text(const std::array<std::string_view, count>& texts, Enum value) {
  return texts.at(static_cast<std::size_t>(value));
}

template <class Enum, std::size_t count>
Enum from_text(const std::array<std::string_view, count>& texts, const std::string& text) {
  const auto found = std::find(texts.begin(), texts.end(), text);
  if (found == texts.end()) throw Contradiction(fmt::format("'{}' is none of '{}'", text, fmt::join(texts, "', '")));
  return static_cast<Enum>(found - texts.begin());
}

// --- reading -----------------------------------------------------------------------------------------------------

/// The rows of a run in a table, in order; `read` turns the columns of one into a record.
template <class Read>
auto read_rows(const Database& database, std::string_view sql, std::int64_t run_id, Read read) {
  std::vector<decltype(read(std::declval<Statement&>()))> records;
  Statement statement = database.prepare(sql);
  statement.bind(run_id);
  while (statement.step()) records.push_back(read(statement));
  return records;
}

bool has_run(const Database& database, std::int64_t run_id) {
  Statement row = database.prepare("SELECT 1 FROM runs WHERE id = ?");
  row.bind(run_id);
  return row.step();
}

std::size_t count_rows(const Database& database, std::string_view table, std::int64_t run_id) {
  Statement row = database.prepare(fmt::format("SELECT count(*) FROM {} WHERE run_id = ?", table));
  row.bind(run_id);
  row.step();
  return row.next<std::size_t>();
}

void refuse_contradiction(const std::optional<std::string>& found) {
  if (found) throw Contradiction(*found);
}

/// Ops, tensors and steps are their own index: a missing row would shift all later ones.
void require_dense(Statement& row, std::string_view what, std::int32_t expected) {
  const auto found = row.next<std::int32_t>();
  if (found != expected) throw Contradiction(fmt::format("{} {} is missing", what, expected));
}

Run read_run_rows(const Database& database, std::int64_t run_id) {
  Statement row = database.prepare(
      "SELECT graph_hash, signature, device, torch_version, rules, name, clock, created_unix_ns, execution, "
      "dropped_records, complete, graph_text, duration_ns, peak_bytes FROM runs WHERE id = ?");
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
  run.complete = row.next<std::int64_t>() != 0;
  run.graph_text = row.next_text();
  run.duration_ns = row.next<std::int64_t>();
  run.peak_bytes = row.next<std::int64_t>();

  std::int32_t expected = 0;
  run.ops = read_rows(
      database, "SELECT op, name, kind, scope, source, start_ns, duration_ns FROM ops WHERE run_id = ? ORDER BY op",
      run_id, [&](Statement& op) {
        require_dense(op, "op", expected++);
        return OpRecord{.name = op.next_text(),
                        .kind = op.next_text(),
                        .scope = op.next_text(),
                        .source = op.next_text(),
                        .start_ns = op.next<std::int64_t>(),
                        .duration_ns = op.next<std::int64_t>()};
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
                "free_event, source "
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
                                          .source = from_text<AllocationSource>(kSources, allocation.next_text())};
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
  refuse_contradiction(find_contradiction(run));
  return run;
}

std::optional<PlanRecord> read_plan_rows(const Database& database, std::int64_t run_id) {
  Statement row = database.prepare(
      "SELECT peak_bytes, program_peak_bytes, bound_bytes, order_status, arena_bytes, arena_bound_bytes, "
      "layout_status, "
      "planning_ns, graph_text FROM plans WHERE run_id = ?");
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

  std::int32_t expected = 0;
  plan.order = read_rows(database, "SELECT step, op FROM plan_order WHERE run_id = ? ORDER BY step", run_id,
                         [&](Statement& step) {
                           require_dense(step, "step", expected++);
                           return step.next<std::int32_t>();
                         });
  plan.slots = read_rows(database, "SELECT tensor, offset_bytes, size_bytes FROM slots WHERE run_id = ? ORDER BY slot",
                         run_id, [](Statement& slot) {
                           return SlotRecord{.tensor = slot.next<std::int32_t>(),
                                             .offset_bytes = slot.next<std::int64_t>(),
                                             .size_bytes = slot.next<std::int64_t>()};
                         });
  plan.points = read_rows(database, "SELECT kind, op, tensor, of_tensor FROM points WHERE run_id = ? ORDER BY point",
                          run_id, [](Statement& point) {
                            return PointRecord{.kind = from_text<PointKind>(kPointKinds, point.next_text()),
                                               .op = point.next<std::int32_t>(),
                                               .tensor = point.next<std::int32_t>(),
                                               .of = point.next_or_none()};
                          });
  refuse_contradiction(
      find_contradiction(plan, count_rows(database, "ops", run_id), count_rows(database, "tensors", run_id)));
  return plan;
}

}  // namespace

// --- the front door ----------------------------------------------------------------------------------------------

class Store::Impl {
 public:
  Impl(const std::string& store_path, Mode store_mode)
      : path(store_path), mode(store_mode), database(open_store(path, mode, note)) {}

  /// Runs `read` on one state of the file, whatever other processes write meanwhile.
  template <class Read>
  auto reading(std::string_view what, Read read) {
    database.set_verb("read");
    const Transaction transaction(database, Transaction::Kind::kRead);
    try {
      return read();
    } catch (const Contradiction& contradiction) {
      throw StoreError(
          fmt::format("cannot read {} of store '{}': {}; the file is damaged: move it away and profile again", what,
                      path, contradiction.what()));
    }
  }

  /// Runs `write` in one transaction.
  template <class Write>
  void writing(std::string_view what, Write write) {
    if (mode == Mode::kReadOnly) {
      throw StoreError(fmt::format("cannot write store '{}': it is open for reading; open it for writing", path));
    }
    database.set_verb("write");
    Transaction transaction(database, Transaction::Kind::kWrite);
    try {
      write();
    } catch (const Contradiction& contradiction) {
      throw StoreError(
          fmt::format("cannot write {} to store '{}': {}; please report this", what, path, contradiction.what()));
    }
    transaction.commit();
  }

  std::string path;
  Mode mode;
  std::string note;
  Database database;
};

Store::Store(const std::string& path, Mode mode) : impl_(std::make_unique<Impl>(path, mode)) {}
Store::~Store() = default;
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;

const std::string& Store::path() const { return impl_->path; }
const std::string& Store::note() const { return impl_->note; }

std::int64_t Store::write_run(const Run& run) {
  Database& database = impl_->database;
  std::int64_t run_id = 0;
  impl_->writing(fmt::format("run '{}'", run.name), [&] {
    refuse_contradiction(find_contradiction(run));
    database
        .prepare(
            "INSERT INTO runs (graph_hash, signature, device, torch_version, rules, stowage_version, name, clock, "
            "created_unix_ns, execution, dropped_records, complete, graph_text, duration_ns, peak_bytes) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
        .run(run.key.graph_hash, run.key.signature, run.key.device, run.key.torch_version, run.key.rules,
             kStowageVersion, run.name, run.clock, run.created_unix_ns, run.execution, run.dropped_records,
             run.complete, run.graph_text, run.duration_ns, run.peak_bytes);
    run_id = database.last_insert_id();

    std::int64_t row = 0;
    Statement ops = database.prepare("INSERT INTO ops VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    for (const OpRecord& op : run.ops) {
      ops.run(run_id, row++, op.name, op.kind, op.scope, op.source, op.start_ns, op.duration_ns);
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
    Statement allocations = database.prepare("INSERT INTO allocations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    for (const AllocationRecord& allocation : run.allocations) {
      allocations.run(run_id, row++, allocation.tensor, allocation.op, allocation.index, allocation.requested_bytes,
                      allocation.rounded_bytes, allocation.stream, allocation.allocate_event,
                      or_null(allocation.free_op), or_null(allocation.free_event),
                      to_text(kSources, allocation.source));
    }
    row = 0;
    Statement reuses = database.prepare("INSERT INTO reuses VALUES (?, ?, ?, ?, ?, ?, ?)");
    for (const ReuseRecord& reuse : run.reuses) {
      reuses.run(run_id, row++, reuse.op, reuse.output, reuse.input, reuse.position, reuse.layout);
    }
  });
  return run_id;
}

void Store::write_plan(std::int64_t run_id, const PlanRecord& plan) {
  Database& database = impl_->database;
  impl_->writing(fmt::format("the plan of run {}", run_id), [&] {
    if (!has_run(database, run_id)) throw Contradiction("the store has no such run");
    refuse_contradiction(
        find_contradiction(plan, count_rows(database, "ops", run_id), count_rows(database, "tensors", run_id)));
    database.prepare("DELETE FROM plans WHERE run_id = ?").run(run_id);
    database.prepare("INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
        .run(run_id, plan.peak_bytes, plan.program_peak_bytes, plan.bound_bytes, plan.order_status, plan.arena_bytes,
             plan.arena_bound_bytes, plan.layout_status, plan.planning_ns, plan.graph_text);

    std::int64_t row = 0;
    Statement order = database.prepare("INSERT INTO plan_order VALUES (?, ?, ?)");
    for (const std::int32_t op : plan.order) order.run(run_id, row++, op);
    row = 0;
    Statement slots = database.prepare("INSERT INTO slots VALUES (?, ?, ?, ?, ?)");
    for (const SlotRecord& slot : plan.slots) {
      slots.run(run_id, row++, slot.tensor, slot.offset_bytes, slot.size_bytes);
    }
    row = 0;
    Statement points = database.prepare("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)");
    for (const PointRecord& point : plan.points) {
      points.run(run_id, row++, to_text(kPointKinds, point.kind), point.op, point.tensor, or_null(point.of));
    }
  });
}

std::optional<PlannedRun> Store::find_plan(const RunKey& key) const {
  return impl_->reading("a plan", [&]() -> std::optional<PlannedRun> {
    const Database& database = impl_->database;
    Statement row = database.prepare(
        "SELECT id FROM runs INDEXED BY runs_by_key JOIN plans ON run_id = id "
        "WHERE graph_hash = ? AND signature = ? AND device = ? AND torch_version = ? AND rules = ? AND complete = 1 "
        "AND dropped_records = 0 ORDER BY id DESC LIMIT 1");
    row.bind(key.graph_hash, key.signature, key.device, key.torch_version, key.rules);
    if (!row.step()) return std::nullopt;
    const auto run_id = row.next<std::int64_t>();
    return PlannedRun{.run = read_run_rows(database, run_id), .plan = read_plan_rows(database, run_id).value()};
  });
}

Run Store::read_run(std::int64_t run_id) const {
  return impl_->reading(fmt::format("run {}", run_id), [&] { return read_run_rows(impl_->database, run_id); });
}

std::optional<PlanRecord> Store::read_plan(std::int64_t run_id) const {
  return impl_->reading(fmt::format("the plan of run {}", run_id),
                        [&] { return read_plan_rows(impl_->database, run_id); });
}

}  // namespace stowage::profiler
