// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/dependencies.h"
#include "plugin/torch_headers.h"

namespace stowage {

/// The graph with its ops in the order of `executions`, ids of `facts.ops`; an op that is there again runs again. What
/// runs takes of each value what the latest execution before it made; the graph returns what first executions did. A
/// batch norm that runs again does without running statistics. Results of an op's n-th execution are named
/// '%NAME.runN'. `executions` is what `solver::repeat` accepted; throws `std::invalid_argument` where an op never runs,
/// or takes what no earlier one made.
std::shared_ptr<torch::jit::Graph> repeated_graph(const GraphFacts& facts, const std::vector<std::int32_t>& executions);

/// An execution of an op, or a point at which the copy of a value begins or ends.
struct Execution {
  std::int32_t op = 0;     ///< of `GraphFacts::ops`; at a point, the op that made the value
  std::string point = {};  ///< the point's kind, such as "stowage::fetch"; empty: the op runs
  std::size_t output = 0;  ///< at a point: which of the op's

  bool operator==(const Execution&) const = default;
};

/// The same with points of copies (see `register_offload_operators`). What comes behind an arrival takes what came
/// back, named '%NAME.back'.
std::shared_ptr<torch::jit::Graph> repeated_graph_with_copies(const GraphFacts& facts,
                                                              const std::vector<Execution>& executions);

}  // namespace stowage
