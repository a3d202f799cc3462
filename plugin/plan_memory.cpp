// SPDX-License-Identifier: Apache-2.0
#include "plugin/plan_memory.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>

#include <fmt/format.h>

#include "plugin/note.h"
#include "plugin/options.h"

namespace stowage {
namespace {

struct PlanMemory {
  std::mutex mutex;
  std::optional<profiler::Store> store;
  std::string error;

  /// Runs `use` on the store, if there is one. After an error the store is not touched again.
  template <typename Use>
  void with_store(Use use) {
    std::lock_guard lock(mutex);
    if (!store) return;
    try {
      use(*store);
    } catch (const profiler::StoreError& failure) {
      fail(failure);
    }
  }

  void fail(const profiler::StoreError& failure) {
    store.reset();
    error = failure.what();
    note(fmt::format("{}; going on without a store: plans are not remembered", error));
  }
};

PlanMemory& memory() {
  static auto* instance = new PlanMemory();
  return *instance;
}

/// The whole number from 0 in an environment variable, or nothing.
std::optional<std::int64_t> number_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  const std::string_view text = value;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

/// `store`, or the file of this rank where there are several.
std::string file_of_rank(const std::string& store) {
  const std::optional<std::int64_t> rank = number_in("RANK");
  const bool is_file = store != ":memory:" && !store.starts_with("file:");
  if (!rank || number_in("WORLD_SIZE").value_or(1) < 2 || !is_file) return store;
  const std::filesystem::path path(store);
  const std::string name = fmt::format("{}.rank{}{}", path.stem().string(), *rank, path.extension().string());
  return (path.parent_path() / name).string();
}

}  // namespace

void open_plan_memory() {
  std::lock_guard lock(memory().mutex);
  memory().store.reset();
  memory().error.clear();
  if (options().store.empty()) return;
  // Closed at exit, so that the file is whole by itself: what is in its write-ahead log goes into it.
  static const int registered = std::atexit(close_plan_memory);
  (void)registered;
  try {
    memory().store.emplace(file_of_rank(options().store), profiler::Store::Mode::kReadWrite);
    if (!memory().store->note().empty()) note(memory().store->note());
  } catch (const profiler::StoreError& failure) {
    memory().fail(failure);
  }
}

void close_plan_memory() {
  std::lock_guard lock(memory().mutex);
  memory().store.reset();
}

std::string plan_memory_path() {
  std::lock_guard lock(memory().mutex);
  return memory().store ? memory().store->path() : "";
}

std::optional<profiler::PlannedRun> recall(const profiler::RunKey& key) {
  std::optional<profiler::PlannedRun> found;
  memory().with_store([&](profiler::Store& store) { found = store.find_plan(key); });
  return found;
}

bool has_plan_memory() {
  std::lock_guard lock(memory().mutex);
  return memory().store.has_value();
}

std::vector<profiler::PlannedRun> recall_all(const profiler::RunKey& key, std::int64_t limit) {
  std::vector<profiler::PlannedRun> found;
  memory().with_store([&](profiler::Store& store) {
    for (const std::int64_t run_id : store.list_plans(key, limit)) {
      try {
        found.push_back({.run = store.read_run(run_id), .plan = store.read_plan(run_id).value()});
      } catch (const profiler::StoreError& failure) {
        note(fmt::format("{}; its plan is not used", failure.what()));
      }
    }
  });
  return found;
}

void remember(const profiler::Run& run) {
  memory().with_store([&](profiler::Store& store) { store.write_run(run); });
}

void remember(const profiler::Run& run, const profiler::PlanRecord& plan) {
  memory().with_store([&](profiler::Store& store) { store.write_plan(store.write_run(run), plan); });
}

std::string plan_memory_error() {
  std::lock_guard lock(memory().mutex);
  return memory().error;
}

}  // namespace stowage
