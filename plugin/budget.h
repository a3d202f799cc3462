// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// What the options `budget` and `slowdown` ask of a captured step.
struct Budget {
  std::optional<std::int64_t> limit_bytes;
  std::optional<double> share;     ///< of the unplanned peak, in place of `limit_bytes`
  std::optional<double> slowdown;  ///< how many times as long as unplanned the step may take

  bool is_any() const { return limit_bytes || share || slowdown; }
};

/// The options in force. Text that the options do not take is no budget.
Budget budget_in_force();

/// The same as part of a plan's key, such as "budget 0.5, slowdown 1.05"; empty: none.
std::string budget_text();

/// What a budgeted step may take for granted of the device's link to host memory: as the options say, or as measured on
/// CUDA; 0: it copies nothing.
std::int64_t offload_bytes_per_s(c10::Device device);

/// Whether a step that cannot be kept within its budget is to raise an error.
bool stops_over_budget();

// What each option takes; empty if it takes this text.
std::string budget_fault(const std::string& text);
std::string slowdown_fault(const std::string& text);
std::string over_budget_fault(const std::string& text);
std::string offload_bandwidth_fault(const std::string& text);

/// The limits of a step with this peak and these op times, in program order, and as yet no more than these.
profiler::BudgetRecord to_record(const Budget& budget, std::int64_t unplanned_peak_bytes, std::int64_t unplanned_ns);

/// What a planned step takes while it runs: its arena, and what it has outside of it.
std::int64_t needed_bytes(const profiler::Run& run, const profiler::PlanRecord& plan);

/// Whether a plan of the run is not yet what the budget asks for. Without a limit of bytes there may always be a
/// better.
bool needs_less(const profiler::BudgetRecord& budget, const profiler::Run& run, const profiler::PlanRecord& plan);

/// Whether the plan is within its budget; true where it has none.
bool is_met(const profiler::Run& run, const profiler::PlanRecord& plan);

/// One line that says how far the plan is above its budget.
std::string over_budget_text(const profiler::Run& run, const profiler::PlanRecord& plan);

/// What all ops take, one after the other.
std::int64_t ops_ns(const profiler::Run& run);

/// Ops that the run ran again.
std::int64_t repeated_ops(const profiler::Run& run);

/// What a step of the run copies to host memory, and as much back.
std::int64_t copied_bytes(const profiler::Run& run);

/// Tells the user, once, that loops and scripted modules have no budget.
void note_unbudgeted();

}  // namespace stowage
