// SPDX-License-Identifier: Apache-2.0
#include "profiler/store.h"

#include <string_view>

#include <fmt/format.h>

#include "profiler/open.h"
#include "profiler/rows.h"
#include "profiler/sqlite.h"

namespace stowage::profiler {

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
  impl_->writing(fmt::format("run '{}'", run.name), [&] { run_id = write_run_rows(database, run); });
  return run_id;
}

void Store::write_plan(std::int64_t run_id, const PlanRecord& plan) {
  Database& database = impl_->database;
  impl_->writing(fmt::format("the plan of run {}", run_id), [&] { write_plan_rows(database, run_id, plan); });
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

std::vector<std::int64_t> Store::list_plans(const RunKey& key, std::int64_t limit) const {
  return impl_->reading("its plans", [&] {
    Statement row = impl_->database.prepare(
        "SELECT max(id) FROM runs INDEXED BY runs_by_key JOIN plans ON run_id = id "
        "WHERE graph_hash = ? AND device = ? AND torch_version = ? AND rules = ? AND complete = 1 "
        "AND dropped_records = 0 GROUP BY signature ORDER BY max(id) DESC LIMIT ?");
    row.bind(key.graph_hash, key.device, key.torch_version, key.rules, limit);
    std::vector<std::int64_t> ids;
    while (row.step()) ids.push_back(row.next<std::int64_t>());
    return ids;
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
