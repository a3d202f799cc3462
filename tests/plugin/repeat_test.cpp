// SPDX-License-Identifier: Apache-2.0
#include "plugin/repeat.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/irparser.h>

#include "plugin/bridge.h"
#include "plugin/copyable.h"
#include "plugin/cpu_allocator.h"
#include "plugin/profile.h"

namespace stowage {
namespace {

using testing::ElementsAre;

TORCH_LIBRARY(stowage_repeat_test, library) {
  library.def("declared(Tensor x) -> Tensor", [](const at::Tensor& tensor) { return tensor.clone(); });
  library.def("opaque", [](const at::Tensor& tensor) { return tensor.clone(); });
}

GraphFacts facts_of(const std::string& text) {
  auto graph = std::make_shared<torch::jit::Graph>();
  std::unordered_map<std::string, torch::jit::Value*> values;
  torch::jit::parseIR(text, graph.get(), values);
  for (const auto& [name, value] : values) value->setDebugName(name);
  return read_facts(graph);
}

/// conv-like, in place, a view, and a use of both ends.
constexpr char kChain[] = R"IR(
graph(%x : Tensor):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::relu_(%a)
  %v : Tensor = aten::transpose(%b, %zero, %one)
  %c : Tensor = aten::mm(%x, %v)
  %d : Tensor = aten::mm(%c, %v)
  return (%d))IR";

TEST(RepeatedGraph, EachExecutionTakesWhatTheLatestMade) {
  const auto graph = repeated_graph(facts_of(kChain), {0, 1, 2, 3, 0, 1, 2, 4});
  EXPECT_EQ(graph->toString(false), R"IR(graph(%x : Tensor):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::relu_(%a)
  %v : Tensor = aten::transpose(%b, %zero, %one)
  %c : Tensor = aten::mm(%x, %v)
  %a.run2 : Tensor = aten::exp(%x)
  %b.run2 : Tensor = aten::relu_(%a.run2)
  %v.run2 : Tensor = aten::transpose(%b.run2, %zero, %one)
  %d : Tensor = aten::mm(%c, %v.run2)
  return (%d)
)IR");
}

TEST(RepeatedGraph, ReturnsWhatFirstExecutionsMade) {
  const auto graph = repeated_graph(facts_of(R"IR(
graph(%x : Tensor):
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::sin(%a)
  return (%a, %b))IR"),
                                    {0, 0, 0, 1});
  EXPECT_EQ(graph->toString(false), R"IR(graph(%x : Tensor):
  %a : Tensor = aten::exp(%x)
  %a.run2 : Tensor = aten::exp(%x)
  %a.run3 : Tensor = aten::exp(%x)
  %b : Tensor = aten::sin(%a.run3)
  return (%a, %b)
)IR");
}

TEST(RepeatedGraph, ValuesInSubBlocksAreTheLatestToo) {
  const auto graph = repeated_graph(facts_of(R"IR(
graph(%x : Tensor, %c : bool):
  %a : Tensor = aten::exp(%x)
  %y : Tensor = prim::If(%c)
    block0():
      %s : Tensor = aten::sin(%a)
      -> (%s)
    block1():
      -> (%a)
  return (%y))IR"),
                                    {0, 0, 1});
  EXPECT_EQ(graph->toString(false), R"IR(graph(%x : Tensor,
      %c : bool):
  %a : Tensor = aten::exp(%x)
  %a.run2 : Tensor = aten::exp(%x)
  %y : Tensor = prim::If(%c)
    block0():
      %s : Tensor = aten::sin(%a.run2)
      -> (%s)
    block1():
      -> (%a.run2)
  return (%y)
)IR");
}

TEST(RepeatedGraph, WhatComesBehindAnArrivalTakesWhatCameBack) {
  const auto graph = repeated_graph_with_copies(facts_of(R"IR(
graph(%x : Tensor):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::exp(%x)
  %v : Tensor = aten::transpose(%a, %zero, %one)
  %b : Tensor = aten::mm(%x, %v)
  %c : Tensor = aten::sin(%b)
  %d : Tensor = aten::mm(%c, %v)
  return (%d))IR"),
                                                {{.op = 0},
                                                 {.op = 1},
                                                 {.op = 2},
                                                 {.op = 0, .point = "stowage::offload"},
                                                 {.op = 3},
                                                 {.op = 0, .point = "stowage::offloaded"},
                                                 {.op = 0, .point = "stowage::fetch"},
                                                 {.op = 0, .point = "stowage::arrive"},
                                                 {.op = 1},
                                                 {.op = 4}});
  EXPECT_EQ(graph->toString(false), R"IR(graph(%x : Tensor):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::exp(%x)
  %v : Tensor = aten::transpose(%a, %zero, %one)
  %b : Tensor = aten::mm(%x, %v)
  %a.host : Capsule = stowage::offload(%a)
  %c : Tensor = aten::sin(%b)
   = stowage::offloaded(%a, %a.host)
  %a.back : Tensor = stowage::fetch(%a.host)
   = stowage::arrive(%a.back, %a.host)
  %v.run2 : Tensor = aten::transpose(%a.back, %zero, %one)
  %d : Tensor = aten::mm(%c, %v.run2)
  return (%d)
)IR");
}

TEST(RepeatedGraph, RefusesPointsOfACopyThatAreOutOfOrder) {
  EXPECT_THROW(repeated_graph_with_copies(facts_of(kChain), {{.op = 0}, {.op = 0, .point = "stowage::fetch"}}),
               std::invalid_argument);
}

/// By op, which of its results may be copied.
std::vector<std::vector<std::size_t>> copyable_outputs(const std::string& text) {
  const GraphFacts facts = facts_of(text);
  torch::jit::Stack stack{at::rand({300, 300})};
  std::string why_not;
  at::NoGradGuard no_grad;
  install_cpu_allocator();
  const profiler::Run run = Profiler(facts).run(stack, c10::kCPU, /*previous=*/nullptr, why_not);
  remove_cpu_allocator();
  std::vector<std::vector<std::size_t>> outputs(facts.ops.size());
  for (const auto& value : copyable_values(facts, run)) {
    if (value) outputs[static_cast<std::size_t>(value->op)].push_back(value->output);
  }
  return outputs;
}

TEST(Copyable, IsWhatIsReachedThroughOneValueAndItsViewsAlone) {
  using Outputs = std::vector<std::size_t>;
  // The relu returns what the exp made; the list holds the sine, but is made again as a view would be; the last is an
  // output.
  EXPECT_THAT(copyable_outputs(R"IR(
graph(%x : Tensor):
  %one : int = prim::Constant[value=1]()
  %no : bool = prim::Constant[value=0]()
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::relu_(%a)
  %s : Tensor = aten::sin(%b)
  %v : Tensor = aten::transpose(%s, %zero, %one)
  %l : Tensor[] = prim::ListConstruct(%s, %v)
  %c : Tensor = aten::cat(%l, %zero)
  %d : Tensor = aten::tan(%c)
  %m : Tensor, %i : Tensor = aten::max(%d, %zero, %no)
  %e : Tensor = aten::exp(%m)
  %f : Tensor = aten::add(%e, %i, %one)
  return (%f))IR"),
              ElementsAre(Outputs{}, Outputs{}, Outputs{0}, Outputs{}, Outputs{}, Outputs{0}, Outputs{0}, Outputs{0, 1},
                          Outputs{0}, Outputs{}));
}

std::string batch_norm(const std::string& kind, const std::string& training = "1") {
  return R"IR(
graph(%x : Tensor, %w : Tensor, %b : Tensor, %mean : Tensor, %var : Tensor):
  %train : bool = prim::Constant[value=)IR" +
         training + R"IR(]()
  %m : float = prim::Constant[value=0.1]()
  %y : Tensor, %s : Tensor, %i : Tensor = aten::)IR" +
         kind + R"IR((%x, %w, %b, %mean, %var, %train, %m, %m)
  %z : Tensor = aten::exp(%y)
  return (%z, %s, %i))IR";
}

/// Runs the batch norm once, or twice and then uses the second: all outputs, and the statistics afterwards.
std::vector<at::Tensor> run_batch_norm(const std::string& kind, const std::vector<std::int32_t>& executions) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({4, 5, 6, 7}) * 3;
  const at::Tensor w = at::randn({5});
  const at::Tensor b = at::randn({5});
  const at::Tensor mean = at::randn({5});
  const at::Tensor var = at::rand({5});
  const GraphFacts facts = facts_of(batch_norm(kind));
  torch::jit::Stack stack{x, w, b, mean, var};
  at::NoGradGuard no_grad;
  torch::jit::InterpreterState(torch::jit::Code(repeated_graph(facts, executions), "batch_norm")).run(stack);
  std::vector<at::Tensor> seen{mean, var};
  for (const c10::IValue& value : stack) seen.push_back(value.toTensor());
  return seen;
}

TEST(RepeatedGraph, ABatchNormThatRunsAgainMakesTheSameBitsAndUpdatesItsStatisticsOnce) {
  for (const char* kind : {"native_batch_norm", "_native_batch_norm_legit"}) {
    const std::vector<at::Tensor> once = run_batch_norm(kind, {0, 1});
    const std::vector<at::Tensor> twice = run_batch_norm(kind, {0, 0, 1});
    ASSERT_EQ(once.size(), twice.size());
    for (std::size_t value = 0; value < once.size(); ++value) EXPECT_TRUE(at::equal(once[value], twice[value])) << kind;
  }
}

TEST(RepeatedGraph, RefusesWhatIsNoScheduleOfTheGraph) {
  EXPECT_THROW(repeated_graph(facts_of(kChain), {0, 1, 2, 3}), std::invalid_argument);     // one is missing
  EXPECT_THROW(repeated_graph(facts_of(kChain), {1, 0, 2, 3, 4}), std::invalid_argument);  // made too late
}

std::vector<bool> repeatable(const GraphFacts& facts) {
  std::vector<bool> found;
  for (const OpFacts& op : facts.ops) found.push_back(op.repeatable);
  return found;
}

TEST(Repeatable, DrawsEffectsBranchesAndOpsOfOthersAreNot) {
  EXPECT_THAT(repeatable(facts_of(R"IR(
graph(%x : Tensor, %c : bool):
  %p : float = prim::Constant[value=0.5]()
  %t : bool = prim::Constant[value=1]()
  %a : Tensor = aten::exp(%x)
  %d : Tensor = aten::dropout(%a, %p, %t)
  %e : Tensor = stowage_repeat_test::declared(%d)
  %f : Tensor = prim::If(%c)
    block0():
      -> (%e)
    block1():
      -> (%d)
  prim::Print(%f)
  %g : Tensor = aten::exp(%f)
  return (%g))IR")),
              ElementsAre(true, false, false, false, false, true));
}

TEST(Repeatable, NothingBeforeABarrierIs) {
  EXPECT_THAT(repeatable(facts_of(R"IR(
graph(%x : Tensor):
  %a : Tensor = aten::exp(%x)
  %b : Tensor = stowage_repeat_test::opaque(%a)
  %c : Tensor = aten::exp(%b)
  return (%c))IR")),
              ElementsAre(false, false, true));
}

TEST(Repeatable, OnlyATrainingBatchNormLeavesItsStatisticsOut) {
  EXPECT_THAT(facts_of(batch_norm("native_batch_norm")).ops[0].statistics, ElementsAre(3, 4));
  EXPECT_THAT(facts_of(batch_norm("native_batch_norm", "0")).ops[0].statistics, ElementsAre());
}

profiler::Run profile(const std::string& text, torch::jit::Stack stack) {
  const GraphFacts facts = facts_of(text);
  std::string why_not;
  install_cpu_allocator();
  at::NoGradGuard no_grad;
  const profiler::Run run = Profiler(facts).run(stack, c10::kCPU, /*previous=*/nullptr, why_not);
  remove_cpu_allocator();
  EXPECT_EQ(why_not, "");
  return run;
}

std::vector<std::string> repeatable_in_run(const std::string& text, torch::jit::Stack stack) {
  std::vector<std::string> found;
  for (const profiler::OpRecord& op : profile(text, std::move(stack)).ops) {
    if (op.repeatable) found.push_back(op.name);
  }
  return found;
}

TEST(Repeatable, WritersOfWhatWasThereAndMakersOfOutputsAreNot) {
  EXPECT_THAT(repeatable_in_run(R"IR(
graph(%x : Tensor):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::relu_(%a)
  %n : Tensor = aten::add_(%x, %one, %one)
  %c : Tensor = aten::exp(%b)
  return (%c))IR",
                                {at::randn({64})}),
              ElementsAre("a", "b"));
}

TEST(Repeatable, WhatABranchMayHoldIsNotMadeAgain) {
  const std::string text = R"IR(
graph(%x : Tensor, %c : bool):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::exp(%x)
  %y : Tensor = prim::If(%c)
    block0():
      -> (%a)
    block1():
      -> (%b)
  %z : Tensor = aten::add_(%y, %one, %one)
  %s : Tensor = aten::sin(%a)
  %u : Tensor = aten::mul(%s, %b)
  return (%u))IR";
  EXPECT_THAT(repeatable_in_run(text, {at::randn({64}), true}), ElementsAre("z", "s"));
}

TEST(Repeatable, TheProblemNamesTheViewsThatAnOpTakes) {
  const solver::Problem problem = to_problem(profile(kChain, {at::randn({16, 16})}));
  EXPECT_THAT(problem.ops[1].views, ElementsAre());   // exp makes its own
  EXPECT_THAT(problem.ops[2].views, ElementsAre(1));  // what relu_ returns is exp's
  EXPECT_THAT(problem.ops[3].views, ElementsAre(2));
  EXPECT_THAT(problem.ops[4].views, ElementsAre(2));
}

}  // namespace
}  // namespace stowage
