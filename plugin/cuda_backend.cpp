// SPDX-License-Identifier: Apache-2.0
#include "plugin/cuda_backend.h"

#include <kineto/libkineto.h>

#include "profiler/cupti_backend.h"

namespace stowage {

std::unique_ptr<profiler::Backend> make_cuda_backend(std::string& why_not) {
  const auto is_registered = [] { return libkineto::api().isProfilerRegistered(); };  // when first used
  const auto is_active = [=] { return is_registered() && libkineto::api().activityProfiler().isActive(); };
  return profiler::make_cupti_backend({.is_subscribed = is_registered, .is_recording = is_active}, why_not);
}

}  // namespace stowage
