// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace stowage::profiler {
namespace {

constexpr int kMajor = CUPTI_API_VERSION / 10'000;

/// Sets `function` to the symbol; false where there is none.
template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::optional<CuptiApi> load_cupti_api(std::string& cause) {
  const std::string name = fmt::format("libcupti.so.{}", kMajor);
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    cause = fmt::format("{} is not loaded; build stowage against the torch that runs it", name);
    return std::nullopt;
  }
  CuptiApi api;
  const char* missing = nullptr;
  const auto require = [&](const char* symbol, auto& function) {
    if (missing == nullptr && !find(library, symbol, function)) missing = symbol;
  };
  require("cuptiGetVersion", api.get_version);
  require("cuptiGetTimestamp", api.get_timestamp);
  require("cuptiGetResultString", api.get_result_string);
  require("cuptiSubscribe", api.subscribe);
  require("cuptiUnsubscribe", api.unsubscribe);
  require("cuptiActivityRegisterTimestampCallback", api.register_timestamp_callback);
  require("cuptiActivityRegisterCallbacks", api.register_callbacks);
  require("cuptiActivityEnable", api.enable);
  require("cuptiActivityDisable", api.disable);
  require("cuptiActivityFlushAll", api.flush_all);
  require("cuptiActivityGetNextRecord", api.get_next_record);
  require("cuptiActivityGetNumDroppedRecords", api.get_dropped_records);
  require("cuptiActivityPushExternalCorrelationId", api.push_external_id);
  require("cuptiActivityPopExternalCorrelationId", api.pop_external_id);
  // Torch keeps its own handle: the functions stay.
  dlclose(library);
  if (missing == nullptr) return api;
  cause = fmt::format("{} has no '{}'; use the CUPTI that torch was installed with", name, missing);
  return std::nullopt;
}

std::string explain(const CuptiApi& api, const char* call, CUptiResult result) {
  const char* name = nullptr;
  if (api.get_result_string(result, &name) != CUPTI_SUCCESS || name == nullptr) name = "unknown result";
  const std::string what = fmt::format("{}: {} ({})", call, name, static_cast<int>(result));
  switch (result) {
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return what + ": another profiler (torch.profiler, Nsight) holds it; stop that";
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return what +
             ": the driver lets only administrators profile; load it with NVreg_RestrictProfilingToAdminUsers=0, or "
             "run as root or with CAP_SYS_ADMIN";
    default:
      return what + "; check that the driver and torch are of one CUDA version";
  }
}

}  // namespace stowage::profiler
