// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "profiler/record.h"

namespace stowage::profiler {

/// A store cannot be opened, read or written. The text names the file, the SQL where there is one, the cause and
/// the mend.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A run with the plan that was made for it.
struct PlannedRun {
  Run run;
  PlanRecord plan;

  bool operator==(const PlannedRun&) const = default;
};

/// The SQLite file that holds runs and plans; `schema.sql` documents it. Several processes may share a file: writers
/// wait for one another. All functions throw `StoreError`; a failed write leaves the file as it was.
/// Not thread safe: callers serialise.
class Store {
 public:
  enum class Mode : std::uint8_t { kReadOnly, kReadWrite };

  /// Opens `path` (":memory:" for tests). `kReadWrite` creates the file where it is missing and migrates an older
  /// schema forward; a newer schema is refused.
  explicit Store(const std::string& path, Mode mode = Mode::kReadOnly);
  ~Store();
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;

  const std::string& path() const;
  /// What the opener should be told, such as that write-ahead logging was refused; empty if nothing.
  const std::string& note() const;

  /// Writes a run, in one transaction. Returns its id.
  std::int64_t write_run(const Run& run);
  /// Writes the plan of a run, in one transaction, in place of an earlier one.
  void write_plan(std::int64_t run_id, const PlanRecord& plan);

  /// The newest complete, lossless run for `key` that has a plan.
  std::optional<PlannedRun> find_plan(const RunKey& key) const;
  /// The same for every signature beside the rest of `key`: the runs' ids, the newest first, at most `limit`.
  std::vector<std::int64_t> list_plans(const RunKey& key, std::int64_t limit) const;
  /// Throws for an id that is not there, and for a file whose rows contradict one another.
  Run read_run(std::int64_t run_id) const;
  std::optional<PlanRecord> read_plan(std::int64_t run_id) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stowage::profiler
