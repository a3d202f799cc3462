// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "profiler/sqlite.h"

namespace stowage::profiler {

// Enums are text in the file, in the order of their enumerators.

inline constexpr std::array<std::string_view, 2> kRunKinds{"graph", "step"};
inline constexpr std::array<std::string_view, 5> kTensorKinds{"input", "constant", "intermediate", "workspace",
                                                              "output"};
inline constexpr std::array<std::string_view, 3> kUseKinds{"read", "write", "result"};
inline constexpr std::array<std::string_view, 4> kReasons{"value", "random", "effect", "barrier"};
inline constexpr std::array<std::string_view, 2> kSources{"allocator", "cupti"};
inline constexpr std::array<std::string_view, 6> kCopyKinds{"host_to_device", "device_to_host", "device_to_device",
                                                            "peer_to_peer",   "other",          "set"};
inline constexpr std::array<std::string_view, 2> kMemoryKinds{"allocate", "free"};
inline constexpr std::array<std::string_view, 3> kPointKinds{"place", "reuse", "free"};

template <std::size_t count, class Enum>
std::string_view to_text(const std::array<std::string_view, count>& texts, Enum value) {
  return texts.at(static_cast<std::size_t>(value));
}

template <class Enum, std::size_t count>
Enum from_text(const std::array<std::string_view, count>& texts, const std::string& text) {
  const auto found = std::find(texts.begin(), texts.end(), text);
  if (found == texts.end()) throw Contradiction(fmt::format("'{}' is none of '{}'", text, fmt::join(texts, "', '")));
  return static_cast<Enum>(found - texts.begin());
}

}  // namespace stowage::profiler
