// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti_decode.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>
#include <unordered_map>

#include <cxxabi.h>

namespace stowage::profiler {
namespace {

constexpr std::size_t kRecordAlignment = 8;  // ACTIVITY_RECORD_ALIGNMENT

/// An enum of a record, as a number: a damaged one may have a value that its type has not.
template <class Record>
std::uint32_t enum_at(const Record& record, std::size_t offset) {
  std::uint32_t value = 0;
  std::memcpy(&value, reinterpret_cast<const std::uint8_t*>(&record) + offset, sizeof(value));
  return value;
}

std::string text(const char* name) { return name == nullptr ? "" : name; }

CopyKind copy_kind(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
      return CopyKind::kHostToDevice;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
      return CopyKind::kDeviceToHost;
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOA:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOA:
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return CopyKind::kDeviceToDevice;
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return CopyKind::kPeerToPeer;
    default:
      return CopyKind::kOther;
  }
}

void append(const CUpti_ActivityKernel10& kernel, CuptiRecords& records) {
  records.kernels.push_back({.correlation = kernel.correlationId,
                             .name = text(kernel.name),
                             .start_ns = kernel.start,
                             .end_ns = kernel.end,
                             .stream = kernel.streamId});
}

void append(const CUpti_ActivityMemcpy6& copy, CuptiRecords& records) {
  records.copies.push_back({.correlation = copy.correlationId,
                            .kind = copy_kind(copy.copyKind),
                            .size_bytes = copy.bytes,
                            .start_ns = copy.start,
                            .end_ns = copy.end,
                            .stream = copy.streamId});
}

void append(const CUpti_ActivityMemcpyPtoP4& copy, CuptiRecords& records) {
  records.copies.push_back({.correlation = copy.correlationId,
                            .kind = CopyKind::kPeerToPeer,
                            .size_bytes = copy.bytes,
                            .start_ns = copy.start,
                            .end_ns = copy.end,
                            .stream = copy.streamId});
}

void append(const CUpti_ActivityMemset4& set, CuptiRecords& records) {
  records.copies.push_back({.correlation = set.correlationId,
                            .kind = CopyKind::kSet,
                            .size_bytes = set.bytes,
                            .start_ns = set.start,
                            .end_ns = set.end,
                            .stream = set.streamId});
}

void append(const CUpti_ActivityMemory4& memory, CuptiRecords& records) {
  using Kind = DeviceMemoryRecord::Kind;
  const std::uint32_t operation = enum_at(memory, offsetof(CUpti_ActivityMemory4, memoryOperationType));
  const std::uint32_t memory_kind = enum_at(memory, offsetof(CUpti_ActivityMemory4, memoryKind));
  const bool known = operation == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION ||
                     operation == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  if (!known || memory_kind != CUPTI_ACTIVITY_MEMORY_KIND_DEVICE) {
    ++records.skipped;
    return;
  }
  records.memory.push_back(
      {.correlation = memory.correlationId,
       .kind = operation == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE ? Kind::kFree : Kind::kAllocate,
       .address = memory.address,
       .size_bytes = memory.bytes,
       .time_ns = memory.timestamp});
}

void append(const CUpti_ActivityExternalCorrelation& external, CuptiRecords& records) {
  if (enum_at(external, offsetof(CUpti_ActivityExternalCorrelation, externalKind)) == kOpIdKind) {
    records.op_ids.push_back({.correlation = external.correlationId, .id = external.externalId});
  } else {
    ++records.skipped;
  }
}

/// False if the record ends after the buffer.
template <class Record>
bool append_whole(const std::uint8_t* bytes, std::size_t available_bytes, CuptiRecords& records) {
  if (available_bytes < sizeof(Record)) return false;
  Record record;
  std::memcpy(&record, bytes, sizeof(Record));
  append(record, records);
  return true;
}

bool append_record(const std::uint8_t* bytes, std::size_t available_bytes, CuptiRecords& records) {
  if (available_bytes < sizeof(CUpti_Activity)) return false;
  CUpti_Activity header;
  std::memcpy(&header, bytes, sizeof(header));
  switch (enum_at(header, offsetof(CUpti_Activity, kind))) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return append_whole<CUpti_ActivityKernel10>(bytes, available_bytes, records);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return append_whole<CUpti_ActivityMemcpy6>(bytes, available_bytes, records);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return append_whole<CUpti_ActivityMemcpyPtoP4>(bytes, available_bytes, records);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return append_whole<CUpti_ActivityMemset4>(bytes, available_bytes, records);
    case CUPTI_ACTIVITY_KIND_MEMORY2:
      return append_whole<CUpti_ActivityMemory4>(bytes, available_bytes, records);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return append_whole<CUpti_ActivityExternalCorrelation>(bytes, available_bytes, records);
    case CUPTI_ACTIVITY_KIND_INVALID:
      return false;
    default:
      ++records.skipped;
      return true;
  }
}

std::int64_t to_signed(std::uint64_t size_bytes) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(size_bytes, std::numeric_limits<std::int64_t>::max()));
}

/// Demangles each name once: a step launches few kernels, many times.
class Demangler {
 public:
  const std::string& operator()(const std::string& name) {
    const auto [known, is_new] = known_.try_emplace(name);
    if (is_new) {
      int status = 0;
      const std::unique_ptr<char, decltype(&std::free)> readable(
          abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
      known->second = status == 0 ? readable.get() : name;
    }
    return known->second;
  }

 private:
  std::unordered_map<std::string, std::string> known_;
};

struct Span {
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
};

}  // namespace

void decode(std::uint8_t* buffer, std::size_t valid_bytes, NextRecord next, CuptiRecords& records) {
  CUpti_Activity* record = nullptr;
  std::size_t read_bytes = 0;  // a record must begin after these
  while (read_bytes < valid_bytes) {
    const CUptiResult result = next(buffer, valid_bytes, &record);
    if (result == CUPTI_ERROR_MAX_LIMIT_REACHED) return;
    // Of what lies before the buffer, this is beyond its end.
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(record) - reinterpret_cast<std::uintptr_t>(buffer);
    const bool sound = result == CUPTI_SUCCESS && offset >= read_bytes && offset < valid_bytes &&
                       offset % kRecordAlignment == 0 && append_record(buffer + offset, valid_bytes - offset, records);
    if (!sound) {
      ++records.damaged_buffers;
      return;
    }
    read_bytes = offset + 1;
  }
}

void resolve(const CuptiRecords& records, const CuptiRun& of, Run& run) {
  std::unordered_map<std::uint32_t, std::int32_t> ops;
  for (const CuptiRecords::OpId& op_id : records.op_ids) {
    const std::uint64_t op = op_id.id - of.first_id;
    if (op < static_cast<std::uint64_t>(of.op_count)) ops[op_id.correlation] = static_cast<std::int32_t>(op);
  }
  const auto find_op = [&](std::uint32_t correlation) {
    const auto found = ops.find(correlation);
    return found == ops.end() ? kNone : found->second;
  };
  const auto since_start = [&](std::uint64_t time_ns) { return static_cast<std::int64_t>(time_ns - of.start_ns); };
  const auto span = [&](std::uint64_t start_ns, std::uint64_t end_ns) -> Span {
    if (start_ns == 0 || end_ns < start_ns) return {};
    return {.start_ns = since_start(start_ns), .duration_ns = to_signed(end_ns - start_ns)};
  };
  const auto starts_first = [](const auto& left, const auto& right) { return left.start_ns < right.start_ns; };

  run.kernels.clear();
  Demangler demangle;
  for (const CuptiRecords::Kernel& kernel : records.kernels) {
    const Span time = span(kernel.start_ns, kernel.end_ns);
    run.kernels.push_back({.op = find_op(kernel.correlation),
                           .name = demangle(kernel.name),
                           .start_ns = time.start_ns,
                           .duration_ns = time.duration_ns,
                           .stream = kernel.stream});
  }
  std::ranges::stable_sort(run.kernels, starts_first);

  run.copies.clear();
  for (const CuptiRecords::Copy& copy : records.copies) {
    const Span time = span(copy.start_ns, copy.end_ns);
    run.copies.push_back({.op = find_op(copy.correlation),
                          .kind = copy.kind,
                          .size_bytes = to_signed(copy.size_bytes),
                          .start_ns = time.start_ns,
                          .duration_ns = time.duration_ns,
                          .stream = copy.stream});
  }
  std::ranges::stable_sort(run.copies, starts_first);

  // Calls made within one tick of the clock are told apart by their correlation ids, which only grow.
  std::vector<const CuptiRecords::Memory*> memory;
  for (const CuptiRecords::Memory& change : records.memory) memory.push_back(&change);
  std::ranges::stable_sort(memory, {},
                           [](const auto* change) { return std::make_tuple(change->time_ns, change->correlation); });
  run.device_memory.clear();
  for (const CuptiRecords::Memory* change : memory) {
    run.device_memory.push_back({.op = find_op(change->correlation),
                                 .kind = change->kind,
                                 .address = change->address,
                                 .size_bytes = to_signed(change->size_bytes),
                                 .time_ns = since_start(change->time_ns)});
  }
}

}  // namespace stowage::profiler
