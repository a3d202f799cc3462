// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <cupti.h>

#include "profiler/cupti_decode.h"

namespace stowage::profiler {

inline CUpti_ActivityKernel10 kernel_record(std::uint32_t correlation, const char* name, std::uint64_t start_ns,
                                            std::uint64_t end_ns) {
  CUpti_ActivityKernel10 record{};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.correlationId = correlation;
  record.name = name;
  record.start = start_ns;
  record.end = end_ns;
  record.streamId = 7;
  return record;
}

inline CUpti_ActivityMemcpy6 copy_record(std::uint32_t correlation, CUpti_ActivityMemcpyKind kind,
                                         std::uint64_t bytes) {
  CUpti_ActivityMemcpy6 record{};
  record.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  record.correlationId = correlation;
  record.copyKind = static_cast<std::uint8_t>(kind);
  record.bytes = bytes;
  record.start = 1'010;
  record.end = 1'015;
  record.streamId = 7;
  return record;
}

inline CUpti_ActivityMemory4 memory_record(std::uint32_t correlation, CUpti_ActivityMemoryOperationType operation,
                                           std::uint64_t address, std::uint64_t bytes, std::uint64_t time_ns) {
  CUpti_ActivityMemory4 record{};
  record.kind = CUPTI_ACTIVITY_KIND_MEMORY2;
  record.memoryOperationType = operation;
  record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  record.correlationId = correlation;
  record.address = address;
  record.bytes = bytes;
  record.timestamp = time_ns;
  return record;
}

inline CUpti_ActivityExternalCorrelation id_record(std::uint32_t correlation, std::uint64_t id,
                                                   CUpti_ExternalCorrelationKind kind = kOpIdKind) {
  CUpti_ActivityExternalCorrelation record{};
  record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  record.externalKind = kind;
  record.externalId = id;
  record.correlationId = correlation;
  return record;
}

inline CUpti_ActivityAPI api_record(std::uint32_t correlation) {
  CUpti_ActivityAPI record{};
  record.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  record.correlationId = correlation;
  return record;
}

/// Sizes of the records above; 0 for other kinds.
inline std::size_t record_bytes(const CUpti_Activity* record) {
  std::uint32_t kind = 0;  // damaged, it may be no CUpti_ActivityKind
  std::memcpy(&kind, record, sizeof(kind));
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_MEMORY2:
      return sizeof(CUpti_ActivityMemory4);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    default:
      return 0;
  }
}

/// Steps through a buffer as CUPTI does, and trusts its kinds: a record may reach over the buffer's end.
inline CUptiResult next_by_kind(std::uint8_t* buffer, std::size_t valid_bytes, CUpti_Activity** record) {
  std::size_t offset = 0;
  if (*record != nullptr) {
    offset = static_cast<std::size_t>(reinterpret_cast<std::uint8_t*>(*record) - buffer);
    offset += record_bytes(*record);
  }
  if (offset >= valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  auto* const next = reinterpret_cast<CUpti_Activity*>(buffer + offset);
  if (valid_bytes - offset >= sizeof(CUpti_Activity) && record_bytes(next) == 0) return CUPTI_ERROR_INVALID_KIND;
  *record = next;
  return CUPTI_SUCCESS;
}

/// Records one after the other, as in a buffer of CUPTI's.
class RecordBytes {
 public:
  template <class... Records>
  explicit RecordBytes(const Records&... records) {
    (append(records), ...);
  }

  template <class Record>
  void append(const Record& record) {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(&record);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(record));
  }

  std::vector<std::uint8_t>& bytes() { return bytes_; }

  CuptiRecords decoded(NextRecord next = next_by_kind) {
    CuptiRecords records;
    decode(bytes_.data(), bytes_.size(), next, records);
    return records;
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

}  // namespace stowage::profiler
