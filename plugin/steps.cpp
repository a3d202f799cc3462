// SPDX-License-Identifier: Apache-2.0
#include "plugin/steps.h"

#include <charconv>
#include <list>
#include <mutex>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/region.h"
#include "plugin/step_planner.h"

namespace stowage {
namespace {

std::mutex g_mutex;  // guards the list; planners live forever, since threads hold on to them

std::list<StepPlanner>& planners() {
  static auto* list = new std::list<StepPlanner>();
  return *list;
}

StepPlanner& planner_of(c10::Device device) {
  std::lock_guard lock(g_mutex);
  for (StepPlanner& planner : planners()) {
    if (planner.device() == device) return planner;
  }
  return planners().emplace_back(device);
}

/// The calling thread's open step. `runs_as_is`: nobody follows it.
struct OpenStep {
  StepPlanner* planner = nullptr;
  bool is_open = false;
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
  if (t_step.is_open) throw std::invalid_argument("cannot open a step: this thread has one open; end it first");
  const c10::Device device = parse_device(text);
  t_step = {.planner = nullptr, .is_open = true};
  if (!is_planning() || !options().plan) return;
  if (const std::string why = why_unplanned(device); !why.empty()) {
    note(fmt::format("steps on {} are not planned: {}", device.str(), why));
    return;
  }
  StepPlanner& planner = planner_of(device);
  if (planner.begin()) {
    t_step.planner = &planner;
  } else {
    note(fmt::format("a step on {} runs unplanned: another thread has one open there", device.str()));
  }
}

std::string end_step(bool complete) {
  if (!t_step.is_open) throw std::invalid_argument("cannot end a step: this thread has none open");
  StepPlanner* planner = t_step.planner;
  t_step = {};
  const StepDigest waiting = planner == nullptr ? 0 : planner->end(complete);
  return waiting == 0 ? std::string() : fmt::format("{:016x}", waiting);
}

bool is_step_open() { return t_step.is_open; }

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

void forget_steps() {
  std::lock_guard lock(g_mutex);
  for (StepPlanner& planner : planners()) planner.forget();
}

}  // namespace stowage
