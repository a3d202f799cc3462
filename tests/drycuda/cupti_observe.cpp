// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <pthread.h>

#include "tests/drycuda/cupti_library.h"
#include "tests/drycuda/cupti_records.h"

namespace drycuda::cupti {
namespace {

/// How long an API call is said to have taken: the dry device tells only when it ends.
constexpr std::uint64_t kCallNs = 1'000;

std::uint64_t queue_of_this_thread() {
  return library().buffer_per_thread ? static_cast<std::uint64_t>(pthread_self()) : 0;
}

template <typename Record>
void append(const Record& record, std::uint64_t complete_ns) {
  library().buffers.append(queue_of_this_thread(), &record, sizeof(record), complete_ns);
}

/// The record of the API call, preceded by one for each kind of external id pushed on this thread. A call of the
/// runtime that calls the driver is recorded once: as the runtime's where that is enabled.
void record_call(const Activity& activity, Times times) {
  Library& lib = library();
  CUpti_ActivityKind kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  CUpti_CallbackId cbid = runtime_cbid(activity.kind);
  if (!lib.runtime.records(cbid)) {
    kind = CUPTI_ACTIVITY_KIND_DRIVER;
    cbid = driver_cbid(activity.kind);
    if (!lib.driver.records(cbid)) return;
  }
  if (lib.enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION]) {
    const auto& stacks = thread_state().external_ids;
    for (std::size_t external = 0; external < stacks.size(); ++external) {
      const auto& ids = stacks[external];
      if (ids.empty()) continue;
      append(external_record(activity.correlation, static_cast<CUpti_ExternalCorrelationKind>(external), ids.back()),
             0);
    }
  }
  append(api_record(activity.correlation, times, kind, cbid), 0);
}

void record_memory(const Activity& activity, Times times) {
  Library& lib = library();
  if (!lib.enabled[CUPTI_ACTIVITY_KIND_MEMORY2]) return;
  auto record = memory_record(activity, times);
  if (activity.kind == ActivityKind::kAllocate && lib.faults.wrong_size_of >= 0 && lib.faults.wrong_size_of-- == 0) {
    ++record.bytes;
  }
  append(record, 0);
}

void record_device(const Activity& activity, Times times) {
  Library& lib = library();
  if (activity.kind == ActivityKind::kKernel) {
    for (const auto kind : {CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL}) {
      if (!lib.enabled[kind]) continue;
      const auto name = lib.names.emplace(activity.name != nullptr ? activity.name : "").first;
      append(kernel_record(activity, times, kind, name->c_str()), activity.end_ns);
    }
  } else if (activity.kind == ActivityKind::kCopy && lib.enabled[CUPTI_ACTIVITY_KIND_MEMCPY]) {
    append(copy_record(activity, times), activity.end_ns);
  } else if (activity.kind == ActivityKind::kSet && lib.enabled[CUPTI_ACTIVITY_KIND_MEMSET]) {
    append(set_record(activity, times), activity.end_ns);
  }
}

void call_subscriber(const Activity& activity, CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  std::uint64_t correlation_data = 0;
  int returned = 0;
  CUpti_CallbackData data{};
  data.functionName = callback_name(domain, cbid);
  data.functionReturnValue = &returned;
  data.symbolName = activity.name;
  data.contextUid = activity.context;
  data.correlationData = &correlation_data;
  data.correlationId = activity.correlation;
  for (const auto site : {CUPTI_API_ENTER, CUPTI_API_EXIT}) {
    CUpti_Subscriber_st called;
    {
      const std::lock_guard lock(library().mutex);
      const CUpti_Subscriber_st* subscriber = library().subscriber;
      if (subscriber == nullptr) return;
      const auto filter = subscriber->enabled.find(domain);
      if (filter == subscriber->enabled.end() || !filter->second.records(cbid)) continue;
      called.callback = subscriber->callback;
      called.user_data = subscriber->user_data;
    }
    data.callbackSite = site;
    called.callback(called.user_data, domain, cbid, &data);
  }
}

}  // namespace

void observe(const Activity& activity) {
  const bool new_call = thread_state().last_call != activity.correlation;
  thread_state().last_call = activity.correlation;
  {
    const std::lock_guard lock(library().mutex);
    const Clock& clock = library().clock;
    const std::uint64_t now_ns = device_now_ns();
    if (new_call) record_call(activity, {clock.timestamp(now_ns - kCallNs), clock.timestamp(now_ns)});
    const Times times{clock.timestamp(activity.start_ns), clock.timestamp(activity.end_ns)};
    if (activity.kind == ActivityKind::kAllocate || activity.kind == ActivityKind::kFree) {
      record_memory(activity, times);
    } else {
      record_device(activity, times);
    }
  }
  if (new_call) call_subscriber(activity, CUPTI_CB_DOMAIN_RUNTIME_API, runtime_cbid(activity.kind));
}

}  // namespace drycuda::cupti
