// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/settings.h"

#include <algorithm>
#include <cstdlib>

namespace drycuda {
namespace {

std::size_t number(const char* name, std::size_t fallback) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : fallback;
}

}  // namespace

const Settings& settings() {
  static const Settings read{
      .devices = static_cast<int>(std::clamp<std::size_t>(number("DRYCUDA_DEVICES", 1), 1, kMaxDevices)),
      .total_bytes = number("DRYCUDA_TOTAL_MIB", 81559) * kMebibyte,
      .context_bytes = number("DRYCUDA_CONTEXT_MIB", 512) * kMebibyte,
      .cudnn_workspace_bytes = number("DRYCUDA_CUDNN_WORKSPACE_BYTES", 0),
      .trace = number("DRYCUDA_TRACE", 0) != 0,
  };
  return read;
}

}  // namespace drycuda
