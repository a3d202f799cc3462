// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "plugin/dependencies.h"
#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// Times a step's ops on the host's clock: unplanned, which is what a budget's times are held against, and then while
/// the program's plan is followed. A profiled run tells neither: it takes time itself, and memory is slow at its first
/// touch, which unplanned happens in each step and in an arena once.
class Timing {
 public:
  Timing(const GraphFacts& facts, const profiler::Run& run, const profiler::PlanRecord& plan);

  /// Whether the next run follows the plan.
  bool follows_plan() const { return runs_ >= kUnplannedRuns; }
  /// For the next run: a graph that tells the timing that is current on its thread.
  const torch::jit::Code& code() const { return follows_plan() ? planned_.code : unplanned_.code; }
  bool is_done() const { return runs_ == kUnplannedRuns + kPlannedRuns; }
  /// Of all ops, each in the fastest of its runs: what else ran meanwhile only makes an op slower.
  std::int64_t unplanned_ns() const;
  /// By op, likewise, while the plan is followed.
  const std::vector<std::int64_t>& planned_durations_ns() const { return planned_.durations_ns; }

  /// The op begins, which ends the one before; `profiler::kNone`: none does.
  void tick(std::int32_t op);

  /// While it lives, ticks of this thread go to the timing; then a run is over.
  class Current {
   public:
    explicit Current(Timing& timing);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    Timing& timing_;
  };

 private:
  struct Way {
    torch::jit::Code code;
    std::vector<std::int64_t> durations_ns;  ///< by op
  };

  static constexpr int kUnplannedRuns = 2;
  static constexpr int kPlannedRuns = 3;  ///< the first one touches the arena

  Way unplanned_;
  Way planned_;
  int runs_ = 0;
  std::int32_t op_ = profiler::kNone;  ///< that runs
  std::chrono::steady_clock::time_point begin_;
};

/// The operator by which a graph tells a timing.
torch::jit::RegisterOperators register_tick_operator();

}  // namespace stowage
