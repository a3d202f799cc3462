// SPDX-License-Identifier: Apache-2.0
#include "plugin/steady_state.h"

#include <algorithm>

#include <fmt/format.h>

namespace stowage {

using profiler::Run;

namespace {

/// Whether two runs made the same allocation, from whichever source its size is known.
bool is_same(const profiler::AllocationRecord& before, profiler::AllocationRecord after) {
  after.source = before.source;
  return before == after;
}

}  // namespace

bool are_alike(const Run& before, const Run& after) {
  return before.uses == after.uses && std::equal(before.allocations.begin(), before.allocations.end(),
                                                 after.allocations.begin(), after.allocations.end(), is_same);
}

std::string why_in_doubt(const Run& run) {
  if (run.dropped_records > 0) {
    return fmt::format(
        "CUPTI dropped {} of its records; end what else records on the device meanwhile, such as torch.profiler, or "
        "free host memory",
        run.dropped_records);
  }
  if (run.size_mismatches > 0) {
    return fmt::format(
        "CUPTI and the allocator disagree on the size of {} of {} allocations; `stowage sql` on the view "
        "'size_sources' shows which",
        run.size_mismatches, run.allocations.size());
  }
  return {};
}

std::string difference(const Run& before, const Run& after) {
  const std::size_t common = std::min(before.allocations.size(), after.allocations.size());
  for (std::size_t each = 0; each < common; ++each) {
    const auto& a = before.allocations[each];
    const auto& b = after.allocations[each];
    if (is_same(a, b)) continue;
    return fmt::format("'{}' took {} B in one run and '{}' {} B in the next",
                       before.ops[static_cast<std::size_t>(a.op)].name, a.requested_bytes,
                       after.ops[static_cast<std::size_t>(b.op)].name, b.requested_bytes);
  }
  return fmt::format("{} allocations in one run and {} in the next", before.allocations.size(),
                     after.allocations.size());
}

}  // namespace stowage
