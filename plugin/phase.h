// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "plugin/planned_allocator.h"
#include "plugin/signature.h"
#include "plugin/torch_headers.h"
#include "plugin/verify.h"
#include "profiler/record.h"

namespace stowage {

/// A plan in force.
struct Planned {
  profiler::Run run;  ///< what the plan was made from
  profiler::PlanRecord plan;
  torch::jit::Code code;
  SlotTable table;
  SlotTable table_without_slots;  ///< of runs that take no arena
  PlannedAllocator* allocator = nullptr;
  bool recalled = false;
  bool empties = false;  ///< inputs, after their last use
  std::int64_t outside_bytes = 0;

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
  std::int64_t profiled_runs = 0;
  std::optional<profiler::Run> previous;
  std::string why_unplanned;  ///< not to be planned, for this reason
  std::shared_ptr<Planned> planned;

  /// As `stowage.status()` shows it.
  nlohmann::json status() const;
};

}  // namespace stowage
