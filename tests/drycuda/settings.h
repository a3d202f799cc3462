// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace drycuda {

inline constexpr int kMaxDevices = 8;
inline constexpr std::size_t kMebibyte = std::size_t{1} << 20;
/// Memory is given to a process in pages of this size.
inline constexpr std::size_t kPageBytes = 2 * kMebibyte;
inline constexpr int kMultiprocessors = 132;
inline constexpr int kDriverVersion = 13000;
inline constexpr const char* kDeviceName = "NVIDIA H100 80GB HBM3 (dry)";

/// The environment variables DRYCUDA_*, as README.md lists them.
struct Settings {
  int devices;
  std::size_t total_bytes;
  std::size_t context_bytes;
  std::size_t cudnn_workspace_bytes;
  bool trace;
};

/// Read once, at first use.
const Settings& settings();

inline std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace drycuda
