// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plugin/dependencies.h"
#include "plugin/observation.h"
#include "profiler/record.h"

namespace stowage {

/// Marks the ops of a graph that may run again as far as their nodes tell: `OpFacts::repeatable` and `statistics`.
void mark_repeatable(GraphFacts& facts);

/// The storages of an op: those that it used or held in this run, and those that it may in another.
struct OpStorages {
  TensorIds seen;
  TensorIds possible;  ///< `seen` is a part of it
  TensorIds seen_writes;
  TensorIds possible_writes;
};

/// Marks the ops of a run that may run again: their nodes allow it, they neither write what was there before the step,
/// but for running statistics, nor hold what outlives it, nor depend on writes that another run may have where this one
/// had none. `storages` is by op.
void mark_repeatable(profiler::Run& run, const GraphFacts& facts, const std::vector<OpStorages>& storages);

}  // namespace stowage
