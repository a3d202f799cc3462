// SPDX-License-Identifier: Apache-2.0
#include "plugin/repeat.h"

#include <stdexcept>
#include <string>
#include <unordered_map>

#include <fmt/format.h>

namespace stowage {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Symbol;
using torch::jit::Value;

/// Takes the running statistics from a clone of a batch norm.
void leave_out(Node& clone, const std::vector<std::size_t>& statistics, Value* none) {
  // This one requires them; its other overload has no such arguments.
  const bool has_none = clone.kind() == Symbol::fromQualString("aten::_native_batch_norm_legit");
  for (auto input = statistics.rbegin(); input != statistics.rend(); ++input) {
    if (has_none) {
      clone.removeInput(*input);
    } else {
      clone.replaceInput(*input, none);
    }
  }
}

/// Writes the points of copies.
class Copies {
 public:
  Copies(Graph& graph, std::unordered_map<const Value*, Value*>& latest) : graph_(graph), latest_(latest) {}

  void pass(const Execution& execution, Value* value) {
    Away& away = away_[value];
    const bool is_offload = execution.point == "stowage::offload";
    if (is_offload != (away.handle == nullptr)) throw std::invalid_argument("the points of a copy are out of order");
    if (is_offload) {
      away.source = latest_.at(value);
      away.handle = append(execution, {away.source}, 1)->output()->setType(c10::CapsuleType::get());
      if (value->hasDebugName()) away.handle->setDebugName(fmt::format("{}.host", value->debugName()));
    } else if (execution.point == "stowage::offloaded") {
      append(execution, {away.source, away.handle}, 0);
    } else if (execution.point == "stowage::fetch") {
      away.source = append(execution, {away.handle}, 1)->output()->setType(value->type());
      if (value->hasDebugName()) away.source->setDebugName(fmt::format("{}.back", value->debugName()));
    } else {
      append(execution, {away.source, away.handle}, 0);
      latest_[value] = away.source;
    }
  }

 private:
  struct Away {
    Value* source = nullptr;  ///< what is copied out, then what is copied back
    Value* handle = nullptr;
  };

  Node* append(const Execution& execution, at::ArrayRef<Value*> inputs, std::size_t outputs) {
    return graph_.appendNode(graph_.create(Symbol::fromQualString(execution.point), inputs, outputs));
  }

  Graph& graph_;
  std::unordered_map<const Value*, Value*>& latest_;
  std::unordered_map<const Value*, Away> away_;
};

}  // namespace

std::shared_ptr<Graph> repeated_graph(const GraphFacts& facts, const std::vector<std::int32_t>& executions) {
  std::vector<Execution> all;
  for (const std::int32_t op : executions) all.push_back({.op = op});
  return repeated_graph_with_copies(facts, all);
}

std::shared_ptr<Graph> repeated_graph_with_copies(const GraphFacts& facts, const std::vector<Execution>& executions) {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<const Value*, Value*> first;
  std::unordered_map<const Value*, Value*> latest;
  const auto map = [&](Value* value) {
    const auto found = latest.find(value);
    if (found == latest.end()) {
      throw std::invalid_argument(fmt::format("'{}' is taken before it is made", value->debugName()));
    }
    return found->second;
  };
  for (Value* input : facts.graph->inputs()) latest[input] = graph->addInput()->copyMetadata(input);
  for (Node* node : facts.graph->nodes()) {
    if (node->kind() != torch::jit::prim::Constant) continue;
    latest[node->output()] = graph->appendNode(graph->createClone(node, map))->output();
  }
  Value* none = graph->insertConstant(torch::jit::IValue());
  first = latest;

  Copies copies(*graph, latest);
  std::vector<int> runs(facts.ops.size(), 0);
  for (const Execution& execution : executions) {
    const std::int32_t op = execution.op;
    const OpFacts& each = facts.ops.at(static_cast<std::size_t>(op));
    if (!execution.point.empty()) {
      copies.pass(execution, each.node->outputs().at(execution.output));
      continue;
    }
    const int run = ++runs[static_cast<std::size_t>(op)];
    Node* clone = graph->appendNode(graph->createClone(each.node, map));
    if (run > 1) leave_out(*clone, each.statistics, none);
    for (std::size_t output = 0; output < clone->outputs().size(); ++output) {
      Value* original = each.node->outputs()[output];
      Value* made = clone->outputs()[output];
      if (run == 1) {
        first[original] = made;
      } else if (original->hasDebugName()) {
        made->setDebugName(fmt::format("{}.run{}", original->debugName(), run));
        first.at(original)->setDebugName(original->debugName());  // which the clone took from it
      }
      latest[original] = made;
    }
  }
  for (std::size_t op = 0; op < runs.size(); ++op) {
    if (runs[op] == 0) throw std::invalid_argument(fmt::format("op {} does not run", op));
  }
  for (Value* output : facts.graph->outputs()) graph->registerOutput(first.at(output));
  if (!none->hasUses()) none->node()->destroy();
  graph->lint();
  return graph;
}

}  // namespace stowage
