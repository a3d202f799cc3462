// SPDX-License-Identifier: Apache-2.0
#include "plugin/ending.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/irparser.h>

#include "plugin/emptying.h"

namespace stowage {
namespace {

using Steps = std::vector<std::vector<Ending>>;

std::shared_ptr<torch::jit::Graph> parse(const std::string& text) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(text, graph.get());
  return graph;
}

constexpr char kReluBackward[] = R"IR(
graph(%grad : Tensor, %result : Tensor, %zero : int):
  %scaled : Tensor = aten::neg(%grad)
  %mask : Tensor = aten::gt(%result, %zero)
  %typed : Tensor = aten::type_as(%mask, %result)
  %out : Tensor = aten::mul(%scaled, %typed)
  return (%out))IR";

TEST(Ending, IsTheLastReadOfTheBytes) {
  const GraphFacts facts = read_facts(parse(kReluBackward));
  // `type_as`, the third op, asks the result for its type alone.
  EXPECT_EQ(find_endings(facts, {0, 1, 2, 3}, {true, true, false}).inputs, (Steps{{{0, 0}}, {{1, 2}}, {}, {}}));
}

TEST(Ending, FollowsThePlannedOrder) {
  const GraphFacts facts = read_facts(parse(kReluBackward));
  EXPECT_EQ(find_endings(facts, {1, 2, 0, 3}, {true, true, false}).inputs, (Steps{{{1, 1}}, {}, {{0, 2}}, {}}));
}

TEST(Ending, IsNotForInputsThatMayNotEnd) {
  const GraphFacts facts = read_facts(parse(kReluBackward));
  EXPECT_EQ(find_endings(facts, {0, 1, 2, 3}, {}).inputs, (Steps{{}, {}, {}, {}}));
  EXPECT_EQ(find_endings(facts, {0, 1, 2, 3}, {false, true, false}).inputs, (Steps{{}, {{1, 2}}, {}, {}}));
}

TEST(Ending, IsNotForInputsThatTheGraphReturns) {
  const GraphFacts facts = read_facts(parse(R"IR(
graph(%x : Tensor):
  %y : Tensor = aten::neg(%x)
  return (%y, %x))IR"));
  EXPECT_EQ(find_endings(facts, {0}, {true}).inputs, (Steps{{}}));
}

TEST(Ending, WaitsForViews) {
  const GraphFacts facts = read_facts(parse(R"IR(
graph(%x : Tensor):
  %v : Tensor = aten::t(%x)
  %y : Tensor = aten::neg(%x)
  %z : Tensor = aten::exp(%v)
  return (%y, %z))IR"));
  EXPECT_EQ(find_endings(facts, {0, 1, 2}, {true}).inputs, (Steps{{}, {}, {{0, 1}}}));
}

TEST(Ending, LooksAgainWhereWhatABranchMayReturnIsUsedLast) {
  const GraphFacts facts = read_facts(parse(R"IR(
graph(%x : Tensor, %c : bool):
  %v : Tensor = prim::If(%c)
    block0():
      %t : Tensor = aten::t(%x)
      -> (%t)
    block1():
      -> (%x)
  %y : Tensor = aten::neg(%v)
  %z : Tensor = aten::exp(%v)
  return (%y, %z))IR"));
  const Endings endings = find_endings(facts, {0, 1, 2}, {true, false});
  EXPECT_EQ(endings.inputs, (Steps{{{0, 0}}, {}, {}}));
  EXPECT_EQ(endings.aliases, (std::vector<bool>{false, false, true}));
}

TEST(OuterUses, EndInTheBranchThatUsesThemLast) {
  const auto graph = parse(R"IR(
graph(%grad : Tensor, %saved : Tensor, %kept : Tensor, %c : bool):
  %before : bool = prim::AutogradAllNonZero(%grad, %saved, %kept)
  %made : Tensor = aten::neg(%kept)
  %r : Tensor = prim::If(%c)
    block0():
      %a : Tensor = aten::add_all(%grad, %saved, %kept, %made)
      -> (%a)
    block1():
      %b : Tensor = aten::add_all(%grad, %saved)
      -> (%b)
  %after : Tensor = aten::neg(%kept)
  return (%r, %after))IR");
  const torch::jit::Node* branch = nullptr;
  for (const torch::jit::Node* node : graph->nodes()) {
    if (node->kind() == torch::jit::prim::If) branch = node;
  }
  const torch::jit::Node* region = *branch->blocks()[0]->nodes().begin();
  EXPECT_EQ(outer_uses(*region),
            (std::vector<OuterUse>{{true, true, 0}, {true, true, 1}, {false, true, 2}, {true, true, -1}}));
}

TEST(OuterUses, GoOnInALoop) {
  const auto graph = parse(R"IR(
graph(%x : Tensor, %n : int, %go : bool):
  %r : Tensor = prim::Loop(%n, %go, %x)
    block0(%i : int, %y : Tensor):
      %a : Tensor = aten::mul(%y, %x)
      -> (%go, %a)
  return (%r))IR");
  const torch::jit::Node* loop = *graph->nodes().begin();
  const torch::jit::Node* region = *loop->blocks()[0]->nodes().begin();
  // The next round needs %x again; the interpreter moves %y, which this one is the last to use.
  EXPECT_EQ(outer_uses(*region), (std::vector<OuterUse>{{true, false, -1}, {false, true, 0}}));
}

TEST(OuterUses, AreMovedWhereTheRegionIsTheWholeGraph) {
  const auto graph = parse(R"IR(
graph(%x : Tensor, %y : Tensor):
  %a : Tensor = aten::mul(%x, %y)
  return (%a, %y))IR");
  EXPECT_EQ(outer_uses(**graph->nodes().begin()), (std::vector<OuterUse>{{true, false, 0}, {false, false, 1}}));
}

}  // namespace
}  // namespace stowage
