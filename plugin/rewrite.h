// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "plugin/dependencies.h"
#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// A copy of the graph that does what the plan says: nodes in planned order, and the points written between them,
///
///     stowage::place[op=7, slots=[3], offsets=[4096]]()   before op 7: its allocations come from slot 3, at 4096
///     stowage::reuse[op=7, slot=5, of=3, ...](%conv)      before op 7: its result comes to lie in slot 5, on its input
///                                                         in slot 3, if nobody else holds that and all is as profiled
///     stowage::free[slots=[1]](%relu)                     after the last use of what slot 1 holds
///     stowage::empty[step=4, inputs=[2], ...](%saved)     after step 4, the last to read input 2: see `Emptying`
///
/// Slots are numbered in the order in which they are taken. `may_end`, by input, says which of them the run may give
/// up; empty: none. The plan has been validated against the run, and the run is one of this graph; throws
/// `std::invalid_argument` where its results are not those of the graph's ops.
std::shared_ptr<torch::jit::Graph> planned_copy(const GraphFacts& facts, const profiler::Run& run,
                                                const profiler::PlanRecord& plan,
                                                const std::vector<bool>& may_end = {});

/// Whether a node of such a copy is a point, not an op.
bool is_point(const torch::jit::Node& node);

/// The operators of the points.
torch::jit::RegisterOperators register_point_operators();

}  // namespace stowage
