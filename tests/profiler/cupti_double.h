// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/cupti_api.h"
#include "tests/profiler/cupti_records.h"

namespace stowage::profiler {

/// A CUPTI that does what the test says. One in the process, as the functions of CUPTI take no context.
struct CuptiDouble {
  std::uint32_t version = CUPTI_API_VERSION;
  std::map<std::string, CUptiResult> refusals;  ///< by call, such as "subscribe" or "enable 49"
  std::size_t dropped = 0;

  std::vector<std::string> calls;  ///< those that change what CUPTI does, in order
  bool subscribed = false;
  std::set<int> enabled;
  std::vector<std::uint64_t> ids;  ///< the stack of kind `kOpIdKind`
  CUpti_TimestampCallbackFunc clock = nullptr;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;

  std::uint8_t* buffer = nullptr;
  std::size_t buffer_bytes = 0;
  std::size_t used_bytes = 0;
  std::uint32_t correlation = 0;

  /// As CUPTI records it: not if its kind is not enabled; counted as dropped if there is no buffer.
  template <class Record>
  void record(const Record& what) {
    if (!enabled.contains(what.kind)) return;
    if (buffer != nullptr && buffer_bytes - used_bytes < sizeof(what)) give_back();
    if (buffer == nullptr) {
      std::size_t max_records = 9;
      request(&buffer, &buffer_bytes, &max_records);
      EXPECT_EQ(max_records, 0U);
      used_bytes = 0;
    }
    if (buffer == nullptr) {
      ++dropped;
      return;
    }
    std::memcpy(buffer + used_bytes, &what, sizeof(what));
    used_bytes += sizeof(what);
  }

  void give_back() {
    if (buffer != nullptr) complete(nullptr, 0, std::exchange(buffer, nullptr), buffer_bytes, used_bytes);
  }

  /// The program calls CUDA's runtime; returns the call's correlation id.
  std::uint32_t call() {
    ++correlation;
    if (!ids.empty() && enabled.contains(CUPTI_ACTIVITY_KIND_RUNTIME)) record(id_record(correlation, ids.back()));
    record(api_record(correlation));
    return correlation;
  }
  void allocate(std::uint64_t address, std::uint64_t bytes) {
    record(memory_record(call(), CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION, address, bytes, now()));
  }
  void launch(const char* name) {
    const std::uint32_t launched = call();
    record(kernel_record(launched, name, now(), now() + 1));
  }
  std::uint64_t now() const { return clock == nullptr ? 1 : clock(); }

  CUptiResult answer(const std::string& call) {
    calls.push_back(call);
    const auto found = refusals.find(call);
    return found == refusals.end() ? CUPTI_SUCCESS : found->second;
  }
};

inline CuptiDouble& cupti() {
  static CuptiDouble cupti;
  return cupti;
}

inline CuptiApi cupti_double_api() {
  return {
      .get_version =
          [](std::uint32_t* version) {
            *version = cupti().version;
            return CUPTI_SUCCESS;
          },
      .get_timestamp =
          [](std::uint64_t* time_ns) {
            *time_ns = cupti().now();
            return cupti().answer("timestamp");
          },
      .get_result_string =
          [](CUptiResult result, const char** text) {
            *text = result == CUPTI_ERROR_UNKNOWN ? "CUPTI_ERROR_UNKNOWN" : "CUPTI_ERROR_NAMED";
            return CUPTI_SUCCESS;
          },
      .subscribe =
          [](CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*) {
            const CUptiResult result = cupti().answer("subscribe");
            cupti().subscribed = result == CUPTI_SUCCESS;
            return result;
          },
      .unsubscribe =
          [](CUpti_SubscriberHandle) {
            cupti().subscribed = false;
            return cupti().answer("unsubscribe");
          },
      .register_timestamp_callback =
          [](CUpti_TimestampCallbackFunc clock) {
            cupti().clock = clock;
            return cupti().answer("clock");
          },
      .register_callbacks =
          [](CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
            cupti().request = request;
            cupti().complete = complete;
            return cupti().answer("buffers");
          },
      .enable =
          [](CUpti_ActivityKind kind) {
            const CUptiResult result = cupti().answer("enable " + std::to_string(kind));
            if (result == CUPTI_SUCCESS) cupti().enabled.insert(kind);
            return result;
          },
      .disable =
          [](CUpti_ActivityKind kind) {
            cupti().enabled.erase(kind);
            return cupti().answer("disable " + std::to_string(kind));
          },
      .flush_all =
          [](std::uint32_t flag) {
            cupti().give_back();
            return cupti().answer("flush " + std::to_string(flag));
          },
      .get_next_record = next_by_kind,
      .get_dropped_records =
          [](CUcontext, std::uint32_t, std::size_t* dropped) {
            *dropped = std::exchange(cupti().dropped, 0);
            return CUPTI_SUCCESS;
          },
      .push_external_id =
          [](CUpti_ExternalCorrelationKind kind, std::uint64_t id) {
            EXPECT_EQ(kind, kOpIdKind);
            const auto refusal = cupti().refusals.find("push");
            if (refusal != cupti().refusals.end()) return refusal->second;
            cupti().ids.push_back(id);
            return CUPTI_SUCCESS;
          },
      .pop_external_id =
          [](CUpti_ExternalCorrelationKind kind, std::uint64_t*) {
            EXPECT_EQ(kind, kOpIdKind);
            EXPECT_FALSE(cupti().ids.empty());
            cupti().ids.pop_back();
            return CUPTI_SUCCESS;
          },
  };
}

}  // namespace stowage::profiler
