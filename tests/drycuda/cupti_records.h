// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <cupti.h>

#include "tests/drycuda/activity.h"

namespace drycuda::cupti {

/// On the clock of the records.
struct Times {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
};

/// Size of the records of `kind` in bytes; 0 for a kind that is never recorded.
std::size_t record_size(CUpti_ActivityKind kind);

CUpti_ActivityMemory4 memory_record(const Activity& activity, Times times);
/// `kind` is KERNEL or CONCURRENT_KERNEL. Points to `name`, which must live as long as the process.
CUpti_ActivityKernel10 kernel_record(const Activity& activity, Times times, CUpti_ActivityKind kind, const char* name);
CUpti_ActivityMemcpy6 copy_record(const Activity& activity, Times times);
CUpti_ActivityMemset4 set_record(const Activity& activity, Times times);
/// Of this thread. `kind` is RUNTIME or DRIVER.
CUpti_ActivityAPI api_record(std::uint32_t correlation, Times times, CUpti_ActivityKind kind, CUpti_CallbackId cbid);
CUpti_ActivityExternalCorrelation external_record(std::uint32_t correlation, CUpti_ExternalCorrelationKind kind,
                                                  std::uint64_t id);

/// The API call that an activity is taken to come from: the dry device does not say.
CUpti_CallbackId runtime_cbid(ActivityKind kind);
CUpti_CallbackId driver_cbid(ActivityKind kind);

}  // namespace drycuda::cupti
