// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tests/drycuda/activity.h"

namespace drycuda {

enum class Counter : std::uint8_t {
  kDriverMallocs,
  kDriverFrees,
  kDriverFreesWhileCapturing,
  kLaunches,
  kGraphLaunches,
  kCopies,
  kSets,
  kSynchronizations,
  kStreamWaits,
  kOutOfMemory,
  kDefaultStubs,
  kViolations,
};

void count(Counter counter);
/// Counts a violation and keeps its text.
void report_violation(const std::string& text);

std::uint32_t next_correlation();
/// Passes what the device did to the observer, if there is one. Hold no lock.
void observe(const Activity& activity);

}  // namespace drycuda

/// Called by every generated stub: the call is one that dry CUDA does not model.
extern "C" void drycuda_default_stub(const char* name);
