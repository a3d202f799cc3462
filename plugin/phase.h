// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "plugin/budget.h"
#include "plugin/dependencies.h"
#include "plugin/fitting.h"
#include "plugin/planned_allocator.h"
#include "plugin/signature.h"
#include "plugin/timing.h"
#include "plugin/torch_headers.h"
#include "plugin/verify.h"
#include "profiler/record.h"

namespace stowage {

/// Whether the thread is in a training step: then tensors of other regions and of autograd's own ops are live in every
/// run, and an arena that is held meanwhile costs more than it saves. The plan's order and its frees hold without one.
bool is_training();

/// A plan in force.
struct Planned {
  std::shared_ptr<const GraphFacts>
      facts;          ///< of the graph that was planned: the program, or one in which ops run again
  profiler::Run run;  ///< what the plan was made from
  profiler::PlanRecord plan;
  torch::jit::Code code;
  SlotTable table;
  SlotTable table_without_slots;  ///< of runs that take no arena
  PlannedAllocator* allocator = nullptr;
  bool recalled = false;
  bool empties = false;  ///< inputs, after their last use
  std::int64_t outside_bytes = 0;
  std::string over_budget;  ///< in one line; empty: it is not

  std::mutex mutex;                    ///< guards what follows
  std::unique_ptr<Verifier> verifier;  ///< made when first needed
  Counters total;
  Counters last;
  std::int64_t runs = 0;
  std::int64_t last_peak_bytes = 0;
  std::int64_t last_emptied_bytes = 0;  ///< of inputs that others still referred to
  std::string why_no_arena;             ///< the arena could not be had, for this reason
};

/// What became of one signature. Guarded by its region.
struct Phase {
  Signature signature;
  c10::Device device = c10::kCPU;
  profiler::RunKey key;
  std::string budget_text;  ///< the options when the phase began
  Budget budget;            ///< none where budgets do not hold
  std::int64_t profiled_runs = 0;
  std::optional<profiler::Run> previous;
  std::shared_ptr<Planned> timed;    ///< the program's plan, while ops are timed for a budget
  std::unique_ptr<Timing> timing;    ///< of those
  std::unique_ptr<Fitting> fitting;  ///< while graphs are profiled in which ops run again
  std::int64_t unplanned_ns = 0;     ///< of all ops together
  std::int64_t planning_ns = 0;      ///< so far
  std::string why_unplanned;         ///< not to be planned, for this reason
  std::shared_ptr<Planned> planned;

  /// As `stowage.status()` shows it.
  nlohmann::json status() const;
};

}  // namespace stowage
