// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include <ATen/Version.h>
#include <fmt/format.h>

#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/plan_memory.h"
#include "plugin/step_run.h"

namespace stowage {
namespace {

using profiler::PlannedRun;

constexpr char kRules[] = "1";  // by which steps are recorded and planned

/// Tells programs apart: plans of another would only take up memory. What begins alike is told apart as it runs.
std::string command_digest() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  StepDigest digest = 0;
  for (auto letter = std::istreambuf_iterator<char>(file); letter != std::istreambuf_iterator<char>(); ++letter) {
    digest = extend(digest, *letter);
  }
  return "step:" + digest_text(digest);
}

profiler::RunKey key_for(c10::Device device) {
  static const std::string command = command_digest();
  return {.graph_hash = command,
          .signature = {},
          .device = describe(device),
          .torch_version = TORCH_VERSION,
          .rules = kRules};
}

}  // namespace

PlannedRun to_remember(c10::Device device, const StepPhase& phase, const StepRecord& record, const StepOps& ops,
                       std::int64_t step) {
  PlannedRun planned = to_planned_run(phase, record, ops, alignment_bytes(device));
  planned.run.key = key_for(device);
  planned.run.key.signature = digest_text(phase.digest);
  planned.run.name = fmt::format("step on {}", device.str());
  planned.run.execution = static_cast<std::int32_t>(step);
  return planned;
}

std::vector<std::shared_ptr<StepPhase>> recall_steps(c10::Device device) {
  std::vector<std::shared_ptr<StepPhase>> phases;
  if (!has_plan_memory()) return phases;
  std::vector<PlannedRun> found = recall_all(key_for(device), options().max_step_plans);
  std::stable_sort(found.begin(), found.end(),
                   [](const PlannedRun& a, const PlannedRun& b) { return a.run.execution < b.run.execution; });
  for (const PlannedRun& planned : found) {
    try {
      phases.push_back(to_phase(planned, alignment_bytes(device)));
    } catch (const std::invalid_argument& failure) {
      note(fmt::format("cannot use a plan of a {} from the store: {}; such steps are planned anew", planned.run.name,
                       failure.what()));
    }
  }
  return phases;
}

}  // namespace stowage
