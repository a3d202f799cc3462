// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/record.h"

namespace stowage::profiler {

/// Compares what the allocator recorded with what the driver did, in a run whose allocations bypassed the cache: a
/// block at the start of a cached segment would differ in size from that. `addresses[k]` is where `run.allocations[k]`
/// was made. The k-th allocation that an op made at an address is the k-th that the driver made there during that op;
/// one that the driver did not make (the cache served it) stays the allocator's. Sets `allocation` of the driver's
/// allocations and of their frees, `source` of the allocations whose requested size the driver's equals, and
/// `size_mismatches`: how many it does not equal.
void match_sizes(Run& run, const std::vector<std::uint64_t>& addresses);

}  // namespace stowage::profiler
