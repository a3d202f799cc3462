// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/dependencies.h"
#include "profiler/record.h"

namespace stowage {

/// A result of an op.
struct OpOutput {
  std::int32_t op = 0;
  std::size_t output = 0;
};

/// By tensor of the run, the one value through which ops reach it, but for views that are made again: what is taken
/// through that value after a copy of the tensor has come back is the copy. Nothing where there is no such value, or
/// the tensor has no slot, or an op with branches uses it, which may do with it what the run does not show.
std::vector<std::optional<OpOutput>> copyable_values(const GraphFacts& facts, const profiler::Run& run);

}  // namespace stowage
