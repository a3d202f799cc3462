// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cupti.h>

#include "profiler/record.h"

namespace stowage::profiler {

/// Kind of the external correlation ids that name ops. torch.profiler uses CUSTOM0 and CUSTOM1.
inline constexpr CUpti_ExternalCorrelationKind kOpIdKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;

/// What CUPTI's buffers held, in the order in which it was read: not that in which it happened, as each thread may have
/// buffers of its own. Times are CUPTI's; 0 where it had none. A correlation id names the API call that caused a
/// record.
struct CuptiRecords {
  struct Kernel {
    std::uint32_t correlation = 0;
    std::string name;  ///< mangled
    std::uint64_t start_ns = 0;
    std::uint64_t end_ns = 0;
    std::uint32_t stream = 0;

    bool operator==(const Kernel&) const = default;
  };
  struct Copy {
    std::uint32_t correlation = 0;
    CopyKind kind = CopyKind::kOther;
    std::uint64_t size_bytes = 0;
    std::uint64_t start_ns = 0;
    std::uint64_t end_ns = 0;
    std::uint32_t stream = 0;

    bool operator==(const Copy&) const = default;
  };
  struct Memory {
    std::uint32_t correlation = 0;
    DeviceMemoryRecord::Kind kind = DeviceMemoryRecord::Kind::kAllocate;
    std::uint64_t address = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t time_ns = 0;

    bool operator==(const Memory&) const = default;
  };
  /// The API call was made while this id of kind `kOpIdKind` was on top.
  struct OpId {
    std::uint32_t correlation = 0;
    std::uint64_t id = 0;

    bool operator==(const OpId&) const = default;
  };

  std::vector<Kernel> kernels;
  std::vector<Copy> copies;
  std::vector<Memory> memory;
  std::vector<OpId> op_ids;
  std::int64_t skipped = 0;          ///< records of kinds that are not decoded: host memory, API calls, other clients'
  std::int64_t damaged_buffers = 0;  ///< read up to a record that is cut short or none; what followed is lost

  bool operator==(const CuptiRecords&) const = default;
};

/// `cuptiActivityGetNextRecord`: a newer CUPTI's records may be longer than ours, and it alone knows their sizes.
using NextRecord = CUptiResult (*)(std::uint8_t* buffer, std::size_t valid_bytes, CUpti_Activity** record);

/// Appends the records of a buffer, which may be of any kind. Reads nothing outside the buffer, whatever `next`
/// returns.
void decode(std::uint8_t* buffer, std::size_t valid_bytes, NextRecord next, CuptiRecords& records);

/// What ties records to a run.
struct CuptiRun {
  std::uint64_t first_id = 0;  ///< of op 0; op k has `first_id + k`
  std::int32_t op_count = 0;
  std::uint64_t start_ns = 0;  ///< when the run began, on CUPTI's clock
};

/// Writes the run's kernels, copies (both by start) and driver allocations (as they happened), each with its op and
/// with times since the run began. A kernel or copy without times gets 0 for both.
void resolve(const CuptiRecords& records, const CuptiRun& of, Run& run);

}  // namespace stowage::profiler
