// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// What an op may do, as far as its node tells; sub-blocks and subgraphs are part of the op.
struct OpFacts {
  torch::jit::Node* node = nullptr;
  /// Inputs, and outer values used in sub-blocks. Constants are left out.
  std::vector<const torch::jit::Value*> uses;
  /// Those of `uses` whose storages the op may write.
  std::vector<const torch::jit::Value*> writes;
  /// By output: those of `uses` whose storages it may hold, in this run or in another where a branch, an index or a
  /// size that depends on data is another.
  std::vector<std::vector<const torch::jit::Value*>> may_return;
  bool has_blocks = false;  ///< an `if` or a loop
  bool random = false;      ///< draws from a random generator
  bool effect = false;      ///< prints, raises or asserts
  bool may_raise = false;   ///< raises on some data: an index out of range, a singular matrix
  bool barrier = false;     ///< not understood, or changes what no storage shows: nothing moves across it
  /// Run again on the same inputs, it makes the same bits and nothing else happens, but for what it writes of its
  /// inputs.
  bool repeatable = false;
  /// Inputs that are running statistics of a training batch norm. Its results do not depend on them: run again, it does
  /// without, so that they are updated once.
  std::vector<std::size_t> statistics;
};

/// A graph's top-level ops in program order; constants are not ops.
///
/// `torch::jit::AliasDb` (alias_analysis.cpp, 2.11) is not enough to tell what may move: it lets random ops pass one
/// another, does not see randomness inside an `if`, and takes all tensor inputs of a graph to alias one another. So
/// facts come from schemas, and aliases from the storages seen in the profiled run; those that another run may have are
/// added to order reads and writes. Where even these are not all (a list or an attribute that is changed may hold
/// anything later), every op that writes is a barrier.
struct GraphFacts {
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<OpFacts> ops;
  bool sets_grad_mode = false;  ///< so that autograd may record though it did not when the graph began
  /// Kinds that are barriers because nothing is known of them, each once.
  std::vector<std::string> not_understood;
};

/// Reads a graph's facts; holds on to the graph.
GraphFacts read_facts(std::shared_ptr<torch::jit::Graph> graph);

/// Whether a value of this type can hold tensors, directly or in a container.
bool holds_tensors(const c10::TypePtr& type);

/// Why the block must not be touched at all (fork, RPC, ...), or empty.
std::string why_left_alone(const torch::jit::Block& block);

/// The orderings that reads and writes do not show. `visible[op]`: op `op` writes a storage that was there before
/// the step; such ops, and random draws, keep their place relative to effects and to ops that may raise, so that what a
/// step that raises leaves behind is what it leaves unplanned.
std::vector<profiler::DependencyRecord> orderings(const GraphFacts& facts, const std::vector<bool>& visible);

}  // namespace stowage
