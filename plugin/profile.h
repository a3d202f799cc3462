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

/// Slots are aligned as PyTorch aligns CPU memory (c10/core/alignment.h), so that kernels see the same alignment.
inline constexpr std::int64_t kAlignmentBytes = 64;

/// `size_bytes` rounded up to the alignment of slots.
constexpr std::int64_t round_up(std::int64_t size_bytes) {
  return (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

/// A graph ready to be profiled: a copy of it that tells an `Observation`.
class Profiler {
 public:
  explicit Profiler(const GraphFacts& facts);

  /// Runs the graph once on `stack` (its inputs; afterwards its outputs) and returns what happened: op times, the
  /// storage behind every value, each allocation and free. The key, name and execution number are the caller's to
  /// fill in. What the graph throws passes through, and nothing is recorded.
  /// `why_not` says why the run cannot be planned from; empty if it can.
  profiler::Run run(torch::jit::Stack& stack, PlannedAllocator& allocator, std::string& why_not);

 private:
  const GraphFacts& facts_;
  torch::jit::Code code_;
  std::unique_ptr<profiler::Backend> backend_;
};

}  // namespace stowage
