// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <cupti.h>

namespace stowage::profiler {

/// The functions of CUPTI that stowage calls, so that tests can give others.
struct CuptiApi {
  decltype(&::cuptiGetVersion) get_version = nullptr;
  decltype(&::cuptiGetTimestamp) get_timestamp = nullptr;
  decltype(&::cuptiGetResultString) get_result_string = nullptr;
  decltype(&::cuptiSubscribe) subscribe = nullptr;
  decltype(&::cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&::cuptiActivityRegisterTimestampCallback) register_timestamp_callback = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) get_dropped_records = nullptr;
  decltype(&::cuptiActivityPushExternalCorrelationId) push_external_id = nullptr;
  decltype(&::cuptiActivityPopExternalCorrelationId) pop_external_id = nullptr;
};

/// The CUPTI that torch has loaded, of the major version that this was built with; it is not loaded for stowage's sake.
/// Otherwise nothing, and `cause` says why and how to mend it.
std::optional<CuptiApi> load_cupti_api(std::string& cause);

/// "cuptiSubscribe: CUPTI_ERROR_UNKNOWN (999)", and where it is known what it means and how to mend it.
std::string explain(const CuptiApi& api, const char* call, CUptiResult result);

}  // namespace stowage::profiler
