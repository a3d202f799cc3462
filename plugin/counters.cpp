// SPDX-License-Identifier: Apache-2.0
#include "plugin/counters.h"

namespace stowage {

std::string_view to_string(Miss reason) {
  static constexpr std::array<std::string_view, kMissCount> kNames = {"escapes", "unplanned", "too_large",
                                                                      "busy",    "held",      "stream"};
  return kNames[static_cast<std::size_t>(reason)];
}

void Counters::add(const Counters& other) {
  auto add_count = [](Count& to, const Count& from) {
    to.allocations += from.allocations;
    to.bytes += from.bytes;
  };
  add_count(hits, other.hits);
  add_count(reused, other.reused);
  for (std::size_t reason = 0; reason < kMissCount; ++reason) add_count(misses[reason], other.misses[reason]);
  late_frees += other.late_frees;
}

}  // namespace stowage
