// SPDX-License-Identifier: Apache-2.0
#include "plugin/steps.h"

#include <atomic>
#include <charconv>
#include <list>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/region.h"
#include "plugin/step_planner.h"

namespace stowage {
namespace {

std::atomic<std::int64_t> g_era{0};  // which `disown_steps` ends
std::mutex g_mutex;                  // guards the list; planners live forever, since threads hold on to them

std::list<StepPlanner>& planners() {
  static auto* list = new std::list<StepPlanner>();
  return *list;
}

/// Null where nothing is planned; then why. What stands above our allocator later on is nobody's harm.
StepPlanner* planner_of(c10::Device device, std::string& why_not) {
  std::lock_guard lock(g_mutex);
  for (StepPlanner& planner : planners()) {
    if (planner.device() == device) return &planner;
  }
  why_not = why_unplanned(device);
  return why_not.empty() ? &planners().emplace_back(device) : nullptr;
}

/// The calling thread's step.
struct OpenStep {
  StepPlanner* planner = nullptr;  ///< null: the step runs as it is
  bool is_open = false;
  bool is_automatic = false;
  bool has_opened_own = false;  ///< the thread says itself where its steps begin
  std::int64_t era = 0;         ///< of `g_era`, in which all this is true

  ~OpenStep() {
    if (is_open && planner != nullptr) planner->abandon();
  }

  /// Called before the thread opens a step: in a new era its step of the last is over.
  void refresh() {
    if (std::exchange(era, g_era.load(std::memory_order_relaxed)) == g_era.load(std::memory_order_relaxed)) return;
    if (is_open) close(/*complete=*/false);
    has_opened_own = false;
  }

  void open(c10::Device device) {
    is_open = true;
    planner = nullptr;
    if (!is_planning() || !options().plan) return;
    std::string why_not;
    StepPlanner* of_device = planner_of(device, why_not);
    if (of_device == nullptr) {
      note(fmt::format("steps on {} are not planned: {}", device.str(), why_not));
    } else if (of_device->begin()) {
      planner = of_device;
    } else {
      note(fmt::format("a step on {} runs unplanned: another thread has one open there", device.str()));
    }
  }

  StepDigest close(bool complete) {
    is_open = false;
    return planner == nullptr ? 0 : planner->end(complete);
  }
};
thread_local OpenStep t_step;

c10::Device parse_device(const std::string& text) {
  if (text.empty()) return default_device();
  try {
    const c10::Device device(text);
    if (device.is_cpu()) return c10::kCPU;
    if (device.is_cuda()) return {c10::kCUDA, device.has_index() ? device.index() : default_device(c10::kCUDA).index()};
  } catch (const c10::Error&) {
    // Told below: PyTorch's message goes on for lines.
  }
  throw std::invalid_argument(fmt::format("cannot open a step on '{}': use 'cpu', 'cuda' or 'cuda:N'", text));
}

StepDigest parse_digest(const std::string& text) {
  StepDigest digest = 0;
  std::from_chars(text.data(), text.data() + text.size(), digest, 16);
  return digest;
}

}  // namespace

void begin_step(const std::string& text) {
  const c10::Device device = parse_device(text);
  t_step.refresh();
  if (t_step.is_open && !t_step.is_automatic) {
    throw std::invalid_argument("cannot open a step: this thread has one open; end it first");
  }
  if (t_step.is_open) t_step.close(/*complete=*/false);
  t_step.has_opened_own = true;
  t_step.is_automatic = false;
  t_step.open(device);
}

std::string end_step(bool complete) {
  if (!t_step.is_open || t_step.is_automatic) {
    throw std::invalid_argument("cannot end a step: this thread has none open");
  }
  const StepDigest waiting = t_step.close(complete);
  return waiting == 0 ? std::string() : digest_text(waiting);
}

AutomaticStep automatic_step() {
  if (t_step.is_open && !t_step.is_automatic) return AutomaticStep::kNotWanted;
  t_step.refresh();
  if (t_step.has_opened_own || !is_planning() || !options().plan) return AutomaticStep::kNotWanted;
  if (!t_step.is_open) return AutomaticStep::kNone;
  const bool is_after = t_step.planner != nullptr && t_step.planner->has_run_backward();
  return is_after ? AutomaticStep::kAfterBackward : AutomaticStep::kBeforeBackward;
}

void begin_automatic_step() {
  t_step.is_automatic = true;
  t_step.open(default_device());
}

void end_automatic_step(bool complete) {
  const StepDigest waiting = t_step.close(complete);
  if (waiting != 0 && t_step.planner != nullptr) t_step.planner->plan_now(waiting);
}

void plan_step_now(const std::string& digest) {
  std::lock_guard lock(g_mutex);
  for (StepPlanner& planner : planners()) planner.plan_now(parse_digest(digest));
}

std::string step_plan_text(const std::string& digest) {
  std::lock_guard lock(g_mutex);
  for (const StepPlanner& planner : planners()) {
    if (std::string text = planner.plan_text(parse_digest(digest)); !text.empty()) return text;
  }
  return {};
}

std::string adopt_step_plan(const std::string& text) {
  std::lock_guard lock(g_mutex);
  std::string why = "no step has been met here";
  for (StepPlanner& planner : planners()) {
    why = planner.adopt(text);
    if (why.empty()) break;
  }
  return why;
}

nlohmann::json steps_status() {
  std::lock_guard lock(g_mutex);
  nlohmann::json all = nlohmann::json::array();
  for (const StepPlanner& planner : planners()) all.push_back(planner.status());
  return all;
}

void disown_steps() { g_era.fetch_add(1, std::memory_order_relaxed); }

void forget_steps() {
  disown_steps();
  if (t_step.is_automatic) t_step.refresh();  // it holds the arena; those of other threads end when they open the next
  std::lock_guard lock(g_mutex);
  for (StepPlanner& planner : planners()) planner.forget();
}

}  // namespace stowage
