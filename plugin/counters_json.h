// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "plugin/counters.h"

namespace stowage {

/// As `stowage.status()` shows them.
inline nlohmann::json to_json(const Count& counted) {
  return {{"allocations", counted.allocations}, {"bytes", counted.bytes}};
}

inline nlohmann::json to_json(const Counters& of) {
  nlohmann::json json{{"hits", to_json(of.hits)}, {"reused", to_json(of.reused)}, {"late_frees", of.late_frees}};
  for (std::size_t reason = 0; reason < kMissCount; ++reason) {
    json["misses"][std::string(to_string(static_cast<Miss>(reason)))] = to_json(of.misses[reason]);
  }
  return json;
}

}  // namespace stowage
