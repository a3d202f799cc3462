// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "profiler/record.h"

namespace stowage::profiler {

/// The first thing in a run that contradicts the rest, such as "use 3 names op 9 of 4"; nothing if ids are in range and
/// frees follow their allocations.
std::optional<std::string> find_contradiction(const Run& run);

/// The same for the plan of a run with so many ops and tensors: its order is a permutation, its slots lie in the arena.
std::optional<std::string> find_contradiction(const PlanRecord& plan, std::size_t op_count, std::size_t tensor_count);

}  // namespace stowage::profiler
