// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace drycuda {

enum class ActivityKind : std::uint8_t { kAllocate, kFree, kKernel, kCopy, kSet };

/// What the dry device did for one API call. Times are simulated, on the device's clock (`drycuda_now_ns`).
struct Activity {
  ActivityKind kind;
  std::uint32_t correlation;  ///< of the API call, unique in the process
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;      ///< as CUPTI numbers streams: 7 is the default stream
  std::uint64_t address;     ///< of the memory allocated, freed, written; 0 for a kernel
  std::uint64_t size_bytes;  ///< as requested
  std::uint64_t start_ns;
  std::uint64_t end_ns;
  std::uint8_t copy_kind;  ///< `CUpti_ActivityMemcpyKind`; 0 but for a copy
  const char* name;        ///< of the kernel, mangled; valid during the call
};

/// Called on the thread that made the API call, before that call returns, with no lock held.
using Observer = void (*)(const Activity& activity);

}  // namespace drycuda

/// One observer in the process; null removes it.
extern "C" void drycuda_set_observer(drycuda::Observer observer);
extern "C" std::uint64_t drycuda_now_ns();
