// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stowage {

/// Why an allocation inside a planned run went upstream.
enum class Miss : std::uint8_t {
  kEscapes,    ///< the plan says so: the tensor outlives the region
  kUnplanned,  ///< the op makes more allocations than its profile had
  kTooLarge,   ///< larger than its slot
  kBusy,       ///< its slot overlaps one that is still live
  kHeld,       ///< it was to take an input's memory, but nobody could say that only the op holds that input
  kStream,     ///< it is for another stream than the run's
};
inline constexpr std::size_t kMissCount = 6;
/// "escapes", "unplanned", "too_large", "busy", "held" or "stream".
std::string_view to_string(Miss reason);

struct Count {
  std::int64_t allocations = 0;
  std::int64_t bytes = 0;

  void add(std::int64_t size_bytes) { ++allocations, bytes += size_bytes; }
  bool operator==(const Count&) const = default;
};

/// What planned runs were served, summed over runs.
struct Counters {
  Count hits;
  Count reused;  ///< those of the hits that took the memory of an input still live
  std::array<Count, kMissCount> misses;
  /// Tensors still referenced at their free point: the slot stayed busy until they died.
  std::int64_t late_frees = 0;

  void add(const Counters& other);
  bool operator==(const Counters&) const = default;
};

}  // namespace stowage
