// SPDX-License-Identifier: Apache-2.0
#include "plugin/plan_memory.h"

#include <cstdlib>
#include <mutex>

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
    memory().store.emplace(options().store, profiler::Store::Mode::kReadWrite);
    if (!memory().store->note().empty()) note(memory().store->note());
  } catch (const profiler::StoreError& failure) {
    memory().fail(failure);
  }
}

void close_plan_memory() {
  std::lock_guard lock(memory().mutex);
  memory().store.reset();
}

std::optional<profiler::PlannedRun> recall(const profiler::RunKey& key) {
  std::optional<profiler::PlannedRun> found;
  memory().with_store([&](profiler::Store& store) { found = store.find_plan(key); });
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
