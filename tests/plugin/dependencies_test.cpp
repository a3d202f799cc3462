// SPDX-License-Identifier: Apache-2.0
#include "plugin/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/irparser.h>

namespace stowage {
namespace {

using profiler::DependencyReason;
using profiler::DependencyRecord;
using testing::ElementsAre;
using testing::IsEmpty;

/// An op that says nothing of aliases: its schema is inferred from the function.
TORCH_LIBRARY(stowage_test, library) {
  library.def("opaque", [](const at::Tensor& tensor) { return tensor; });
  library.def("declared(Tensor x) -> Tensor", [](const at::Tensor& tensor) { return tensor.clone(); });
}

GraphFacts facts_of(const std::string& text) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(text, graph.get());
  return read_facts(graph);
}

std::vector<std::string> names(const std::vector<const torch::jit::Value*>& values) {
  std::vector<std::string> found;
  for (const torch::jit::Value* value : values) found.push_back(value->debugName());
  return found;
}

std::vector<DependencyRecord> orderings_of(const GraphFacts& facts) {
  return orderings(facts, std::vector<bool>(facts.ops.size(), false));
}

TEST(Facts, InPlaceOpWritesWhatItReads) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %y : Tensor):
  %one : int = prim::Constant[value=1]()
  %z : Tensor = aten::add_(%x, %y, %one)
  return (%z))IR");
  ASSERT_EQ(facts.ops.size(), 1U);
  EXPECT_THAT(names(facts.ops[0].uses), ElementsAre("x", "y"));
  EXPECT_THAT(names(facts.ops[0].writes), ElementsAre("x"));
  EXPECT_FALSE(facts.ops[0].random || facts.ops[0].effect || facts.ops[0].barrier);
}

constexpr char kBatchNorm[] = R"IR(
graph(%x : Tensor, %w : Tensor, %b : Tensor, %mean : Tensor, %var : Tensor):
  %train : bool = prim::Constant[value={}]()
  %m : float = prim::Constant[value=0.1]()
  %y : Tensor, %s : Tensor, %i : Tensor = aten::native_batch_norm(%x, %w, %b, %mean, %var, %train, %m, %m)
  return (%y))IR";

std::string batch_norm(const std::string& training) {
  std::string text = kBatchNorm;
  return text.replace(text.find("{}"), 2, training);
}

TEST(Facts, TrainingBatchNormWritesItsRunningStatisticsThoughItsSchemaDoesNotSaySo) {
  EXPECT_THAT(names(facts_of(batch_norm("1")).ops[0].writes), ElementsAre("mean", "var"));
  EXPECT_THAT(names(facts_of(batch_norm("0")).ops[0].writes), IsEmpty());
}

TEST(Facts, RandomnessInsideAnIfIsSeen) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %c : bool):
  %p : float = prim::Constant[value=0.5]()
  %t : bool = prim::Constant[value=1]()
  %y : Tensor = prim::If(%c)
    block0():
      %d : Tensor = aten::dropout(%x, %p, %t)
      -> (%d)
    block1():
      -> (%x)
  return (%y))IR");
  EXPECT_TRUE(facts.ops[0].random);
  EXPECT_TRUE(facts.ops[0].has_blocks);
  EXPECT_THAT(names(facts.ops[0].uses), ElementsAre("c", "x"));
}

TEST(Facts, WriteInsideABlockMayWriteAllThatTheNodeUses) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %y : Tensor, %c : bool):
  %one : int = prim::Constant[value=1]()
  %z : Tensor = prim::If(%c)
    block0():
      %v : Tensor = aten::detach(%x)
      %w : Tensor = aten::add_(%v, %y, %one)
      -> (%w)
    block1():
      -> (%y)
  return (%z))IR");
  EXPECT_THAT(names(facts.ops[0].writes), ElementsAre("c", "x", "y"));
}

TEST(Facts, EffectsAndBarriers) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %l : Tensor[]):
  prim::Print(%x)
  %m : Tensor[] = aten::append(%l, %x)
  %y : Tensor = stowage_test::opaque(%x)
  %z : Tensor = stowage_test::declared(%y)
  return (%z))IR");
  std::vector<std::string> kinds;
  for (const OpFacts& op : facts.ops) kinds.push_back(op.barrier ? "barrier" : op.effect ? "effect" : "free");
  EXPECT_THAT(kinds, ElementsAre("effect", "barrier", "barrier", "free"));
  EXPECT_THAT(facts.not_understood, ElementsAre("stowage_test::opaque"));
}

TEST(LeftAlone, ForkIsRefusedAndSaysWhy) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"IR(
graph(%x : Tensor):
  %f : Future(Tensor) = prim::fork(%x)
  %y : Tensor = aten::wait(%f)
  return (%y))IR",
                      graph.get());
  EXPECT_EQ(why_left_alone(*graph->block()), "it contains prim::fork, which runs ops on other threads");
}

TEST(Orderings, ChainRandomDrawsAlsoThroughBlocks) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %y : Tensor, %c : bool):
  %p : float = prim::Constant[value=0.5]()
  %t : bool = prim::Constant[value=1]()
  %a : Tensor = aten::dropout(%x, %p, %t)
  %b : Tensor = prim::If(%c)
    block0():
      %d : Tensor = aten::dropout(%y, %p, %t)
      -> (%d)
    block1():
      -> (%y)
  %n : NoneType = prim::Constant()
  %e : Tensor = aten::bernoulli(%x, %n)
  return (%a, %b, %e))IR");
  EXPECT_THAT(orderings_of(facts), ElementsAre(DependencyRecord{1, 0, DependencyReason::kRandom},
                                               DependencyRecord{2, 1, DependencyReason::kRandom}));
}

TEST(Orderings, ValuesThatAreNoStoragesKeepTheirProducerFirst) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor):
  %d : int = prim::Constant[value=0]()
  %n : int = aten::size(%x, %d)
  %s : int[] = prim::ListConstruct(%n)
  %v : Tensor = aten::view(%x, %s)
  return (%v))IR");
  EXPECT_THAT(orderings_of(facts), ElementsAre(DependencyRecord{1, 0, DependencyReason::kValue},
                                               DependencyRecord{2, 1, DependencyReason::kValue}));
}

TEST(Orderings, NothingMovesAcrossABarrier) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %y : Tensor):
  %a : Tensor = aten::relu(%x)
  %b : Tensor = stowage_test::opaque(%y)
  %c : Tensor = aten::relu(%x)
  return (%a, %b, %c))IR");
  EXPECT_THAT(orderings_of(facts), ElementsAre(DependencyRecord{1, 0, DependencyReason::kBarrier},
                                               DependencyRecord{2, 1, DependencyReason::kBarrier}));
}

TEST(Orderings, EffectsKeepTheirPlaceAmongVisibleWrites) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %y : Tensor):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::add_(%x, %y, %one)
  prim::Print(%y)
  %b : Tensor = aten::add_(%x, %y, %one)
  %c : Tensor = aten::relu(%y)
  return (%c))IR");
  // Ops 0 and 2 write an input; op 3 changes nothing that anyone could see from the print.
  EXPECT_THAT(orderings(facts, {true, false, true, false}),
              ElementsAre(DependencyRecord{1, 0, DependencyReason::kEffect},
                          DependencyRecord{2, 1, DependencyReason::kEffect}));
}

TEST(Orderings, VisibleWritesKeepTheirPlaceAmongOpsThatMayRaise) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %y : Tensor, %i : Tensor):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::add_(%x, %y, %one)
  %b : Tensor = aten::index_select(%y, %zero, %i)
  %c : Tensor = aten::index_select(%y, %one, %i)
  %d : Tensor = aten::add_(%x, %y, %one)
  return (%b, %c))IR");
  EXPECT_THAT(
      orderings(facts, {true, false, false, true}),
      ElementsAre(DependencyRecord{1, 0, DependencyReason::kEffect}, DependencyRecord{2, 0, DependencyReason::kEffect},
                  DependencyRecord{3, 1, DependencyReason::kEffect},
                  DependencyRecord{3, 2, DependencyReason::kEffect}));
}

TEST(Facts, OutputMayHoldWhatItsSchemaNamesOrItsContainerHolds) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %y : Tensor, %n : int, %s : int[]):
  %one : int = prim::Constant[value=1]()
  %sum : Tensor = aten::add(%x, %y, %one)
  %in_place : Tensor = aten::add_(%x, %y, %one)
  %view : Tensor = aten::reshape(%x, %s)
  %pair : Tensor[] = prim::ListConstruct(%x, %y)
  %item : Tensor = aten::__getitem__(%pair, %n)
  return (%item))IR");
  using Values = std::vector<const torch::jit::Value*>;
  const auto inputs = facts.graph->inputs();
  std::vector<Values> held;
  for (const OpFacts& op : facts.ops) held.push_back(op.may_return.at(0));
  EXPECT_THAT(held, ElementsAre(Values{}, Values{inputs[0]}, Values{inputs[0]}, Values{inputs[0], inputs[1]},
                                Values{facts.ops[3].node->output()}));
}

TEST(Facts, WritesAreBarriersWhereAListChangesHands) {
  const GraphFacts facts = facts_of(R"IR(
graph(%x : Tensor, %l : Tensor[]):
  %one : int = prim::Constant[value=1]()
  %m : Tensor[] = aten::append(%l, %x)
  %y : Tensor = aten::relu(%x)
  %z : Tensor = aten::add_(%x, %y, %one)
  return (%z))IR");
  std::vector<bool> barriers;
  for (const OpFacts& op : facts.ops) barriers.push_back(op.barrier);
  EXPECT_THAT(barriers, ElementsAre(true, false, true));
}

}  // namespace
}  // namespace stowage
