// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "plugin/dependencies.h"
#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// Times the ops of a plan while it is followed, on the host's clock. A profiled run does not tell what an op takes in
/// the steady state of a plan: new memory is slow at its first touch, an arena's is not new.
class Timing {
 public:
  Timing(const GraphFacts& facts, const profiler::Run& run, const profiler::PlanRecord& plan);

  /// The planned graph, which tells the timing that is current on its thread.
  const torch::jit::Code& code() const { return code_; }
  bool is_done() const { return runs_ == kRuns; }
  /// By op, of the fastest run: what else ran meanwhile only makes an op slower.
  const std::vector<std::int64_t>& durations_ns() const { return durations_ns_; }

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
  /// The first one touches the arena.
  static constexpr int kRuns = 3;

  torch::jit::Code code_;
  std::vector<std::int64_t> durations_ns_;
  int runs_ = 0;
  std::int32_t op_ = profiler::kNone;  ///< that runs
  std::chrono::steady_clock::time_point begin_;
};

/// The operator by which a graph tells a timing.
torch::jit::RegisterOperators register_tick_operator();

}  // namespace stowage
