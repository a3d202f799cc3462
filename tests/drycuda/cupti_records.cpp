// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/cupti_records.h"

#include <utility>

#include <pthread.h>
#include <unistd.h>

namespace drycuda::cupti {
namespace {

std::pair<CUpti_ActivityMemoryKind, CUpti_ActivityMemoryKind> ends_of(std::uint8_t copy_kind) {
  switch (copy_kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return {CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE};
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return {CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE};
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return {CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE};
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH:
      return {CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE};
    default:
      return {CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN, CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN};
  }
}

/// What the records of kernels, copies and fills have in common.
template <typename Record>
Record device_record(const Activity& activity, Times times, CUpti_ActivityKind kind) {
  Record record{};
  record.kind = kind;
  record.start = times.start;
  record.end = times.end;
  record.deviceId = activity.device;
  record.contextId = activity.context;
  record.streamId = activity.stream;
  record.correlationId = activity.correlation;
  record.channelID = CUPTI_INVALID_CHANNEL_ID;
  return record;
}

}  // namespace

std::size_t record_size(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_MEMORY2:
      return sizeof(CUpti_ActivityMemory4);
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(CUpti_ActivityExternalCorrelation);
    default:
      return 0;
  }
}

CUpti_ActivityMemory4 memory_record(const Activity& activity, Times times) {
  CUpti_ActivityMemory4 record{};
  record.kind = CUPTI_ACTIVITY_KIND_MEMORY2;
  record.memoryOperationType = activity.kind == ActivityKind::kAllocate
                                   ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION
                                   : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  record.correlationId = activity.correlation;
  record.address = activity.address;
  record.bytes = activity.size_bytes;
  record.timestamp = times.start;
  record.processId = static_cast<std::uint32_t>(getpid());
  record.deviceId = activity.device;
  record.contextId = activity.context;
  // The dry device knows no stream-ordered allocation.
  record.streamId = CUPTI_INVALID_STREAM_ID;
  return record;
}

CUpti_ActivityKernel10 kernel_record(const Activity& activity, Times times, CUpti_ActivityKind kind, const char* name) {
  auto record = device_record<CUpti_ActivityKernel10>(activity, times, kind);
  record.completed = times.end;
  record.gridX = record.gridY = record.gridZ = 1;
  record.blockX = record.blockY = record.blockZ = 1;
  record.clusterX = record.clusterY = record.clusterZ = 1;
  record.gridId = activity.correlation;
  record.name = name;
  record.queued = record.submitted = CUPTI_TIMESTAMP_UNKNOWN;
  return record;
}

CUpti_ActivityMemcpy6 copy_record(const Activity& activity, Times times) {
  auto record = device_record<CUpti_ActivityMemcpy6>(activity, times, CUPTI_ACTIVITY_KIND_MEMCPY);
  const auto [from, to] = ends_of(activity.copy_kind);
  record.copyKind = activity.copy_kind;
  record.srcKind = static_cast<std::uint8_t>(from);
  record.dstKind = static_cast<std::uint8_t>(to);
  record.flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
  record.bytes = activity.size_bytes;
  record.runtimeCorrelationId = activity.correlation;
  record.copyCount = 1;
  return record;
}

CUpti_ActivityMemset4 set_record(const Activity& activity, Times times) {
  auto record = device_record<CUpti_ActivityMemset4>(activity, times, CUPTI_ACTIVITY_KIND_MEMSET);
  record.bytes = activity.size_bytes;
  record.flags = CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC;
  record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  return record;
}

CUpti_ActivityAPI api_record(std::uint32_t correlation, Times times, CUpti_ActivityKind kind, CUpti_CallbackId cbid) {
  CUpti_ActivityAPI record{};
  record.kind = kind;
  record.cbid = cbid;
  record.start = times.start;
  record.end = times.end;
  record.processId = static_cast<std::uint32_t>(getpid());
  record.threadId = static_cast<std::uint32_t>(pthread_self());  // CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT
  record.correlationId = correlation;
  return record;
}

CUpti_ActivityExternalCorrelation external_record(std::uint32_t correlation, CUpti_ExternalCorrelationKind kind,
                                                  std::uint64_t id) {
  CUpti_ActivityExternalCorrelation record{};
  record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  record.externalKind = kind;
  record.externalId = id;
  record.correlationId = correlation;
  return record;
}

CUpti_CallbackId runtime_cbid(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::kAllocate:
      return CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020;
    case ActivityKind::kFree:
      return CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020;
    case ActivityKind::kKernel:
      return CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000;
    case ActivityKind::kCopy:
      return CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020;
    case ActivityKind::kSet:
      return CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020;
  }
  return CUPTI_RUNTIME_TRACE_CBID_INVALID;
}

CUpti_CallbackId driver_cbid(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::kAllocate:
      return CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2;
    case ActivityKind::kFree:
      return CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2;
    case ActivityKind::kKernel:
      return CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel;
    case ActivityKind::kCopy:
      return CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync;
    case ActivityKind::kSet:
      return CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async;
  }
  return CUPTI_DRIVER_TRACE_CBID_INVALID;
}

}  // namespace drycuda::cupti
