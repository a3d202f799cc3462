// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "plugin/dependencies.h"
#include "plugin/planned_allocator.h"
#include "plugin/torch_headers.h"
#include "profiler/backend.h"
#include "profiler/record.h"

namespace stowage {

/// A graph ready to be profiled: a copy of it that tells an `Observation`.
class Profiler {
 public:
  explicit Profiler(const GraphFacts& facts);

  /// Runs the graph once on `stack` (its inputs; afterwards its outputs) and returns what happened on `device`: op
  /// times, the storage behind every value, each allocation and free. On CUDA, and given the run before this one, CUPTI
  /// measures too, and tensors that died in that run come from the driver, one by one, for CUPTI to see. The key, name
  /// and execution number are the caller's to fill in. What the graph throws passes through, and nothing is recorded.
  /// `why_not` says why no run like this can be planned from; empty if it can.
  profiler::Run run(torch::jit::Stack& stack, c10::Device device, const profiler::Run* previous, std::string& why_not);

 private:
  /// CUPTI, for a run after `previous` on a CUDA device where it can be had; else the CPU's.
  profiler::Backend& backend_for(c10::Device device, const profiler::Run* previous);

  const GraphFacts& facts_;
  torch::jit::Code code_;
  const std::unique_ptr<profiler::Backend> cpu_;
  std::unique_ptr<profiler::Backend> cuda_;  ///< made when first needed
};

}  // namespace stowage
