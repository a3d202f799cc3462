// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/report.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>

#include "tests/drycuda/control.h"
#include "tests/drycuda/settings.h"

namespace drycuda {
namespace {

// In the order of `Counter`.
constexpr std::array<std::string_view, 12> kNames{"driver_mallocs", "driver_frees",     "driver_frees_while_capturing",
                                                  "launches",       "graph_launches",   "copies",
                                                  "sets",           "synchronizations", "stream_waits",
                                                  "out_of_memory",  "default_stubs",    "violations"};
constexpr std::size_t kKeptViolations = 100;

std::array<std::atomic<std::uint64_t>, kNames.size()> counts{};
std::atomic<std::uint32_t> correlations{0};
std::atomic<Observer> observer{nullptr};

// Never destroyed: CUDA is called until the process ends.
struct Texts {
  std::mutex mutex;
  std::string violations;
  std::size_t kept = 0;
  std::set<std::string> stubs;
};

Texts& texts() {
  static auto* const made = new Texts;
  return *made;
}

}  // namespace

void count(Counter counter) { counts[static_cast<std::size_t>(counter)].fetch_add(1, std::memory_order_relaxed); }

void report_violation(const std::string& text) {
  count(Counter::kViolations);
  const std::lock_guard lock(texts().mutex);
  if (texts().kept++ < kKeptViolations) texts().violations += text + '\n';
  if (settings().trace) std::fprintf(stderr, "drycuda: violation: %s\n", text.c_str());
}

std::uint32_t next_correlation() { return correlations.fetch_add(1, std::memory_order_relaxed) + 1; }

void observe(const Activity& activity) {
  if (const Observer current = observer.load(std::memory_order_acquire)) current(activity);
}

extern "C" {

void drycuda_default_stub(const char* name) {
  count(Counter::kDefaultStubs);
  if (!settings().trace) return;
  const std::lock_guard lock(texts().mutex);
  if (texts().stubs.insert(name).second) std::fprintf(stderr, "drycuda: default stub: %s\n", name);
}

void drycuda_set_observer(Observer next) { observer.store(next, std::memory_order_release); }

std::uint64_t drycuda_now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

std::uint64_t drycuda_count(const char* name) {
  const auto found = std::find(kNames.begin(), kNames.end(), std::string_view(name));
  return found == kNames.end() ? UINT64_MAX : counts[static_cast<std::size_t>(found - kNames.begin())].load();
}

const char* drycuda_counter_names() {
  static const std::string joined = [] {
    std::string text;
    for (const std::string_view name : kNames) text.append(text.empty() ? "" : " ").append(name);
    return text;
  }();
  return joined.c_str();
}

void drycuda_reset_counts() {
  for (std::atomic<std::uint64_t>& value : counts) value.store(0);
  const std::lock_guard lock(texts().mutex);
  texts().violations.clear();
  texts().kept = 0;
}

std::uint64_t drycuda_violations() { return counts[static_cast<std::size_t>(Counter::kViolations)].load(); }

std::size_t drycuda_violation_text(char* buffer, std::size_t size_bytes) {
  const std::lock_guard lock(texts().mutex);
  const std::string& text = texts().violations;
  if (size_bytes > 0) {
    const std::size_t length = std::min(text.size(), size_bytes - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size() + 1;
}

}  // extern "C"

}  // namespace drycuda
