// SPDX-License-Identifier: Apache-2.0
//
// The dry CUPTI: CUPTI's activity API as its headers describe it, over what the dry device does. Kinds that it never
// records may be enabled; buffers are given back on the thread that fills or flushes them.
#include <cstring>
#include <map>

#include <cupti.h>

#include "tests/drycuda/cupti_library.h"
#include "tests/drycuda/cupti_records.h"

using drycuda::cupti::library;
using drycuda::cupti::Library;
using drycuda::cupti::thread_state;

namespace {

bool is_kind(CUpti_ActivityKind kind) { return kind > CUPTI_ACTIVITY_KIND_INVALID && kind < CUPTI_ACTIVITY_KIND_COUNT; }

bool is_external(CUpti_ExternalCorrelationKind kind) {
  return kind > CUPTI_EXTERNAL_CORRELATION_KIND_INVALID && kind < CUPTI_EXTERNAL_CORRELATION_KIND_SIZE;
}

CUptiResult set_enabled(CUpti_ActivityKind kind, bool enable) {
  if (!is_kind(kind)) return CUPTI_ERROR_INVALID_KIND;
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  if (enable) {
    if (lib.faults.enable != CUPTI_SUCCESS) return lib.faults.enable;
    // One of them serializes kernels, the other does not.
    if (kind == CUPTI_ACTIVITY_KIND_KERNEL && lib.enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) {
      return CUPTI_ERROR_NOT_COMPATIBLE;
    }
    if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && lib.enabled[CUPTI_ACTIVITY_KIND_KERNEL]) {
      return CUPTI_ERROR_NOT_COMPATIBLE;
    }
  }
  lib.enabled[kind] = enable;
  if (kind == CUPTI_ACTIVITY_KIND_RUNTIME) lib.runtime.choose_all(enable);
  if (kind == CUPTI_ACTIVITY_KIND_DRIVER) lib.driver.choose_all(enable);
  lib.observe_if_needed();
  return CUPTI_SUCCESS;
}

struct Attribute {
  std::size_t size_bytes;
  std::uint64_t initial;
};

const std::map<CUpti_ActivityAttribute, Attribute> kAttributes = {
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, {sizeof(std::size_t), 3'200'000}},
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE_CDP, {sizeof(std::size_t), 8'388'608}},
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, {sizeof(std::size_t), 250}},
    {CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, {sizeof(std::uint8_t), 0}},
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE, {sizeof(std::size_t), 3}},
    {CUPTI_ACTIVITY_ATTR_MEM_ALLOCATION_TYPE_HOST_PINNED, {sizeof(std::uint8_t), 0}},
    {CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, {sizeof(std::uint8_t), 1}},
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE_DEVICE_GRAPHS, {sizeof(std::size_t), 16'777'216}},
};

CUptiResult check_attribute(CUpti_ActivityAttribute attribute, const std::size_t* size_bytes, const void* value) {
  const auto found = kAttributes.find(attribute);
  if (size_bytes == nullptr || value == nullptr || found == kAttributes.end()) return CUPTI_ERROR_INVALID_PARAMETER;
  return *size_bytes < found->second.size_bytes ? CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT : CUPTI_SUCCESS;
}

CUptiResult choose_call(drycuda::cupti::ApiFilter& filter, CUpti_CallbackId cbid, bool recorded) {
  const std::lock_guard lock(library().mutex);
  filter.choose(cbid, recorded);
  library().observe_if_needed();
  return CUPTI_SUCCESS;
}

}  // namespace

CUptiResult cuptiGetVersion(std::uint32_t* version) {
  if (version == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(std::uint64_t* timestamp) {
  if (timestamp == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const std::lock_guard lock(library().mutex);
  *timestamp = library().clock.now();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc callback) {
  if (callback == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const std::lock_guard lock(library().mutex);
  library().clock.set_callback(callback);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return set_enabled(kind, true); }
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return set_enabled(kind, false); }
// The dry device has one context.
CUptiResult cuptiActivityEnableContext(CUcontext, CUpti_ActivityKind kind) { return set_enabled(kind, true); }
CUptiResult cuptiActivityDisableContext(CUcontext, CUpti_ActivityKind kind) { return set_enabled(kind, false); }

CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId cbid, std::uint8_t enable) {
  return choose_call(library().runtime, cbid, enable != 0);
}

CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId cbid, std::uint8_t enable) {
  return choose_call(library().driver, cbid, enable != 0);
}

// These choose fields that the dry CUPTI leaves empty.
CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(std::uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableLatencyTimestamps(std::uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableAllocationSource(std::uint8_t) { return CUPTI_SUCCESS; }

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  if (request == nullptr || complete == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const std::lock_guard lock(library().mutex);
  library().buffers.set_callbacks(request, complete);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(std::uint32_t flag) {
  const std::lock_guard lock(library().mutex);
  if (!library().buffers.has_callbacks()) return CUPTI_ERROR_INVALID_OPERATION;
  library().buffers.flush((flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != 0);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlush(CUcontext, std::uint32_t, std::uint32_t flag) { return cuptiActivityFlushAll(flag); }

CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid_bytes, CUpti_Activity** record) {
  if (buffer == nullptr || record == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  std::size_t offset = 0;
  if (*record != nullptr) {
    offset = static_cast<std::size_t>(reinterpret_cast<std::uint8_t*>(*record) - buffer);
    offset += drycuda::cupti::record_size((*record)->kind);
  }
  if (offset >= valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  auto* next = reinterpret_cast<CUpti_Activity*>(buffer + offset);
  const std::size_t size_bytes = drycuda::cupti::record_size(next->kind);
  if (size_bytes == 0 || offset + size_bytes > valid_bytes) return CUPTI_ERROR_INVALID_KIND;
  *record = next;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  if (dropped == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const std::lock_guard lock(library().mutex);
  *dropped = library().buffers.take_dropped();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, std::uint64_t id) {
  if (!is_external(kind)) return CUPTI_ERROR_INVALID_PARAMETER;
  thread_state().external_ids[kind].push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, std::uint64_t* last) {
  if (!is_external(kind)) return CUPTI_ERROR_INVALID_PARAMETER;
  auto& ids = thread_state().external_ids[kind];
  if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (last != nullptr) *last = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetAttribute(CUpti_ActivityAttribute attribute, std::size_t* size_bytes, void* value) {
  if (const auto wrong = check_attribute(attribute, size_bytes, value); wrong != CUPTI_SUCCESS) return wrong;
  const std::lock_guard lock(library().mutex);
  const Attribute& described = kAttributes.at(attribute);
  const auto set = library().attributes.find(attribute);
  const std::uint64_t read = set != library().attributes.end() ? set->second : described.initial;
  *size_bytes = described.size_bytes;
  std::memcpy(value, &read, *size_bytes);  // little-endian
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, std::size_t* size_bytes, void* value) {
  if (const auto wrong = check_attribute(attribute, size_bytes, value); wrong != CUPTI_SUCCESS) return wrong;
  std::uint64_t written = 0;
  std::memcpy(&written, value, kAttributes.at(attribute).size_bytes);
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  lib.attributes[attribute] = written;
  if (attribute == CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER) lib.buffers.clear_new(written == 0);
  if (attribute == CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER) lib.buffer_per_thread = written != 0;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiFinalize() {
  const std::lock_guard lock(library().mutex);
  library().reset();
  return CUPTI_SUCCESS;
}
