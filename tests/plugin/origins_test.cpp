// SPDX-License-Identifier: Apache-2.0
#include "plugin/origins.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/ir/irparser.h>

#include "plugin/repeat.h"
#include "plugin/signature.h"

namespace stowage {
namespace {

using testing::ElementsAre;
using torch::jit::Graph;

/// Of these ops no name tells the list.
constexpr char kSteps[] = R"IR(
graph(%x : Tensor):
  %dim : int = prim::Constant[value=1]()
  %a : Tensor = aten::exp(%x)
  %list : Tensor[] = prim::ListConstruct(%a, %x)
  %b : Tensor = aten::cat(%list, %dim)
  %c : Tensor = aten::relu_(%b)
  return (%c))IR";

constexpr char kOrigins[] = R"({"origins": [["layer1.0", "train.py", 12], ["optimizer.Größe", "", 0]],
                               "ops": {"a": 0, "b": 0, "c": 1, "gone": 1}})";

std::shared_ptr<Graph> steps() {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<std::string, torch::jit::Value*> values;
  torch::jit::parseIR(kSteps, graph.get(), values);
  for (const auto& [name, value] : values) value->setDebugName(name);
  return graph;
}

void take(Graph& graph, const std::string& origins) {
  torch::jit::Node* mark = graph.create(c10::Symbol::fromQualString("stowage::name"), 0);
  const auto bytes =
      at::from_blob(const_cast<char*>(origins.data()), static_cast<std::int64_t>(origins.size()), at::kByte);
  mark->t_(c10::Symbol::attr("origins"), bytes);
  take_origins(graph, *mark);
  mark->destroy();
}

std::vector<std::string> origins_of(const Graph& graph) {
  std::vector<std::string> texts;
  for (const torch::jit::Node* node : graph.nodes()) {
    if (node->kind() != torch::jit::prim::Constant) texts.push_back(scope_of(*node) + "|" + source_of(*node));
  }
  return texts;
}

TEST(Origins, AreTakenByNameOrFromWhatTakesTheOutput) {
  const auto graph = steps();
  take(*graph, kOrigins);
  EXPECT_THAT(origins_of(*graph), ElementsAre("layer1.0|train.py:12",  // exp
                                              "layer1.0|train.py:12",  // the list, as cat
                                              "layer1.0|train.py:12",  // cat
                                              "optimizer.Größe|"));    // relu_, which has no line
}

TEST(Origins, NeitherThePrintedGraphNorTheDigestShowsThem) {
  const auto graph = steps();
  const std::string text = graph->toString(false), digest = graph_digest(graph);
  take(*graph, kOrigins);
  EXPECT_EQ(graph->toString(false), text);
  EXPECT_EQ(graph_digest(graph), digest);
}

TEST(Origins, CopiesAndOpsThatRunAgainKeepThem) {
  const auto graph = steps();
  take(*graph, kOrigins);
  EXPECT_EQ(origins_of(*graph->copy()), origins_of(*graph));
  const auto repeated = repeated_graph(read_facts(graph), {0, 1, 2, 0, 3});
  EXPECT_THAT(origins_of(*repeated), ElementsAre("layer1.0|train.py:12", "layer1.0|train.py:12", "layer1.0|train.py:12",
                                                 "layer1.0|train.py:12", "optimizer.Größe|"));
}

TEST(Origins, AMarkWithoutThemLeavesAllAsItIs) {
  const auto graph = steps();
  torch::jit::Node* mark = graph->create(c10::Symbol::fromQualString("stowage::name"), 0);
  take_origins(*graph, *mark);
  mark->destroy();
  EXPECT_THAT(origins_of(*graph), ElementsAre("|", "|", "|", "|"));
}

TEST(Origins, WhatTorchScriptCompiledOrTracedHasItsOwnScope) {
  torch::jit::CompilationUnit unit;
  unit.define(std::nullopt, "def f(x):\n  return x.exp()\n", torch::jit::nativeResolver(), nullptr);
  EXPECT_THAT(origins_of(*torch::jit::toGraphFunction(unit.get_function("f")).graph()), ElementsAre("|<string>:2"));

  const auto graph = steps();
  torch::jit::Node* exp = *std::next(graph->nodes().begin());
  exp->setScope(exp->scope()->push(c10::Symbol::scope("net")));
  // As a trace has it: the whole text is the Python stack.
  auto stack = std::make_shared<torch::jit::Source>("train.py(12): forward\n", "train.py", 12);
  exp->setSourceRange(torch::jit::SourceRange(stack, 0, stack->size()));
  EXPECT_EQ(origins_of(*graph)[0], "net|train.py:12");
}

}  // namespace
}  // namespace stowage
