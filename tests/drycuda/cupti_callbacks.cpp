// SPDX-License-Identifier: Apache-2.0
//
// CUPTI's callback API: one subscriber at a time. It is called for the runtime's calls that the dry device reports,
// and for nothing else.
#include <algorithm>
#include <string>

#include <cupti.h>

#include "tests/drycuda/cupti_library.h"
#include "tests/drycuda/cupti_names.h"

using drycuda::cupti::library;
using Subscriber = CUpti_Subscriber_st;

namespace {

constexpr const char* kNamePrefix = "CUPTI for ";

CUptiResult subscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* user_data,
                      CUpti_SubscriberParams* parameters) {
  if (handle == nullptr || (parameters != nullptr && parameters->structSize == 0)) return CUPTI_ERROR_INVALID_PARAMETER;
  auto& lib = library();
  const std::lock_guard lock(lib.mutex);
  if (lib.faults.subscribe != CUPTI_SUCCESS) return lib.faults.subscribe;
  if (lib.subscriber != nullptr) {
    if (parameters != nullptr && parameters->oldSubscriberName != nullptr && parameters->oldSubscriberSize > 0) {
      const std::size_t length =
          lib.subscriber->name.copy(parameters->oldSubscriberName, parameters->oldSubscriberSize - 1);
      parameters->oldSubscriberName[length] = '\0';
    }
    return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  }
  auto* made = new Subscriber;
  made->callback = callback;
  made->user_data = user_data;
  if (parameters != nullptr && parameters->subscriberName != nullptr) {
    made->name = kNamePrefix + std::string(parameters->subscriberName).substr(0, CUPTI_SUBSCRIBER_NAME_MAX_LEN);
  }
  lib.subscriber = made;
  lib.observe_if_needed();
  *handle = made;
  return CUPTI_SUCCESS;
}

bool is_domain(CUpti_CallbackDomain domain) {
  return domain > CUPTI_CB_DOMAIN_INVALID && domain < CUPTI_CB_DOMAIN_SIZE;
}

/// Calls `change` on the subscriber if `handle` is its own.
template <typename Change>
CUptiResult with_subscriber(CUpti_SubscriberHandle handle, Change change) {
  const std::lock_guard lock(library().mutex);
  if (handle == nullptr || handle != library().subscriber) return CUPTI_ERROR_INVALID_PARAMETER;
  change(*library().subscriber);
  return CUPTI_SUCCESS;
}

template <std::size_t kSize>
const char* find_name(const drycuda::cupti::NumberedName (&names)[kSize], std::uint32_t number) {
  const auto found =
      std::find_if(std::begin(names), std::end(names), [number](const auto& name) { return name.number == number; });
  return found != std::end(names) ? found->text : nullptr;
}

}  // namespace

const char* drycuda::cupti::callback_name(CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) return find_name(kRuntimeCalls, cbid);
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) return find_name(kDriverCalls, cbid);
  return nullptr;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* user_data) {
  return subscribe(handle, callback, user_data, nullptr);
}

CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* user_data,
                              CUpti_SubscriberParams* parameters) {
  return subscribe(handle, callback, user_data, parameters);
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
  return with_subscriber(handle, [](Subscriber& subscriber) {
    library().subscriber = nullptr;
    delete &subscriber;
    library().observe_if_needed();
  });
}

CUptiResult cuptiEnableCallback(std::uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                                CUpti_CallbackId cbid) {
  if (!is_domain(domain)) return CUPTI_ERROR_INVALID_PARAMETER;
  return with_subscriber(handle, [&](Subscriber& subscriber) { subscriber.enabled[domain].choose(cbid, enable != 0); });
}

CUptiResult cuptiEnableDomain(std::uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain) {
  if (!is_domain(domain)) return CUPTI_ERROR_INVALID_PARAMETER;
  return with_subscriber(handle, [&](Subscriber& subscriber) { subscriber.enabled[domain].choose_all(enable != 0); });
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, std::uint32_t cbid, const char** name) {
  const char* found = drycuda::cupti::callback_name(domain, cbid);
  if (name == nullptr || found == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *name = found;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  const char* found = find_name(drycuda::cupti::kResults, result);
  if (text == nullptr || found == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *text = found;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetErrorMessage(CUptiResult result, const char** text) {
  const char* found = find_name(drycuda::cupti::kMessages, result);
  if (text == nullptr || found == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *text = found;
  return CUPTI_SUCCESS;
}
