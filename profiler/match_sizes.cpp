// SPDX-License-Identifier: Apache-2.0
#include "profiler/match_sizes.h"

#include <cstddef>
#include <deque>
#include <map>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace stowage::profiler {
namespace {

using Kind = DeviceMemoryRecord::Kind;

/// A free belongs to the allocation last made at its address.
void match_frees(std::vector<DeviceMemoryRecord>& device_memory) {
  std::unordered_map<std::uint64_t, std::int32_t> live;
  for (DeviceMemoryRecord& change : device_memory) {
    if (change.kind == Kind::kAllocate) {
      live[change.address] = change.allocation;
    } else if (const auto found = live.find(change.address); found != live.end()) {
      change.allocation = found->second;
      live.erase(found);
    }
  }
}

}  // namespace

void match_sizes(Run& run, const std::vector<std::uint64_t>& addresses) {
  if (addresses.size() != run.allocations.size()) {
    throw std::invalid_argument(
        fmt::format("cannot compare sizes: {} addresses for {} allocations", addresses.size(), run.allocations.size()));
  }
  std::map<std::pair<std::int32_t, std::uint64_t>, std::deque<DeviceMemoryRecord*>> made;
  for (DeviceMemoryRecord& change : run.device_memory) {
    change.allocation = kNone;
    if (change.kind == Kind::kAllocate && change.op != kNone) made[{change.op, change.address}].push_back(&change);
  }

  run.size_mismatches = 0;
  for (std::size_t allocation = 0; allocation < addresses.size(); ++allocation) {
    AllocationRecord& record = run.allocations[allocation];
    record.source = AllocationSource::kAllocator;
    const auto found = made.find({record.op, addresses[allocation]});
    if (found == made.end() || found->second.empty()) continue;
    DeviceMemoryRecord& change = *found->second.front();
    found->second.pop_front();
    change.allocation = static_cast<std::int32_t>(allocation);
    if (change.size_bytes == record.requested_bytes) {
      record.source = AllocationSource::kCupti;
    } else {
      ++run.size_mismatches;
    }
  }
  match_frees(run.device_memory);
}

}  // namespace stowage::profiler
