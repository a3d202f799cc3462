// SPDX-License-Identifier: Apache-2.0
#include "plugin/rewrite.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/irparser.h>

#include "tests/plugin/update_run.h"

namespace stowage {
namespace {

GraphFacts facts_of(const std::string& text) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(text, graph.get());
  return read_facts(graph);
}

TEST(Rewrite, MovesNodesAndWritesPoints) {
  const GraphFacts facts = facts_of(kUpdateGraph);
  EXPECT_EQ(planned_copy(facts, update_run(), update_plan())->toString(/*print_source_locations=*/false),
            R"IR(graph(%x : Tensor,
      %p : Tensor):
  %2 : int = prim::Constant[value=1]()
  %3 : NoneType = prim::Constant()
   = stowage::place[op=0, slots=[0, 1], offsets=[640, 0]]()
  %4 : Tensor = aten::exp(%x)
   = stowage::place[op=2]()
  %6 : Tensor = aten::sum(%4, %3)
   = stowage::free[slots=[1]](%4)
   = stowage::place[op=1, slots=[2], offsets=[0]]()
  %5 : Tensor = aten::mul(%x, %x)
  %7 : Tensor = aten::add_(%p, %5, %2)
   = stowage::free[slots=[2]](%5)
  return (%6)
)IR");
}

constexpr char kChainGraph[] = R"IR(
graph(%x : Tensor):
  %none : NoneType = prim::Constant()
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::mul(%a, %a)
  %v : Tensor = aten::t(%x)
  %s : Tensor = aten::sum(%b, %none)
  return (%s))IR";

/// A run of it: b may be written over a.
profiler::Run chain_run() {
  using profiler::kNone;
  using profiler::TensorKind;
  using profiler::UseKind;
  profiler::Run run;
  run.name = "chain";
  run.ops = {{"a", "aten::exp", "", "", 0, 10},
             {"b", "aten::mul", "", "", 10, 20},
             {"v", "aten::t", "", "", 20, 1},
             {"s", "aten::sum", "", "", 30, 30}};
  run.tensors = {{"x", TensorKind::kInput, 64, "Float", "[4, 4]"},
                 {"a", TensorKind::kIntermediate, 64, "Float", "[4, 4]"},
                 {"b", TensorKind::kIntermediate, 64, "Float", "[4, 4]"},
                 {"s", TensorKind::kOutput, 4, "Float", "[]"}};
  run.uses = {{0, 0, UseKind::kRead, kNone}, {0, 1, UseKind::kResult, 0},   {1, 1, UseKind::kRead, kNone},
              {1, 2, UseKind::kResult, 0},   {2, 0, UseKind::kRead, kNone}, {2, 0, UseKind::kResult, 0},
              {3, 2, UseKind::kRead, kNone}, {3, 3, UseKind::kResult, 0}};
  const auto source = profiler::AllocationSource::kAllocator;
  run.allocations = {{1, 0, 0, 64, 64, 0, 0, 1, 2, source},
                     {2, 1, 0, 64, 64, 0, 1, 3, 4, source},
                     {3, 3, 0, 4, 64, 0, 3, kNone, kNone, source}};
  run.reuses = {{.op = 1, .output = 2, .input = 1, .position = 0, .layout = -7}};
  return run;
}

profiler::PlanRecord chain_plan() {
  using profiler::PointKind;
  profiler::PlanRecord plan;
  plan.order = {0, 1, 2, 3};
  plan.slots = {{1, 0, 64}, {2, 0, 64}};
  plan.points = {{PointKind::kPlace, 0, 1}, {PointKind::kReuse, 1, 2, 1}, {PointKind::kFree, 3, 2}};
  plan.arena_bytes = 64;
  return plan;
}

TEST(Rewrite, PermitsReuseForOneOpAlone) {
  EXPECT_EQ(planned_copy(facts_of(kChainGraph), chain_run(), chain_plan())->toString(/*print_source_locations=*/false),
            R"IR(graph(%x : Tensor):
  %1 : NoneType = prim::Constant()
   = stowage::place[op=0, slots=[0], offsets=[0]]()
  %2 : Tensor = aten::exp(%x)
   = stowage::place[op=1]()
   = stowage::reuse[op=1, slot=1, of=0, position=0, layout=-7](%2, %2)
  %3 : Tensor = aten::mul(%2, %2)
   = stowage::place[op=2]()
  %4 : Tensor = aten::t(%x)
   = stowage::place[op=3]()
  %5 : Tensor = aten::sum(%3, %1)
   = stowage::free[slots=[1]](%3)
  return (%5)
)IR");
}

TEST(Rewrite, PermitsNoReuseOfWhatIsUsedOrReturnedAfterwards) {
  const auto text = [](const std::string& graph, profiler::PlanRecord plan) {
    return planned_copy(facts_of(graph), chain_run(), plan)->toString(/*print_source_locations=*/false);
  };
  std::string used = kChainGraph;
  used.replace(used.find("aten::t(%x)"), 11, "aten::t(%a)");
  EXPECT_EQ(text(used, chain_plan()).find("stowage::reuse"), std::string::npos);
  std::string returned = kChainGraph;
  returned.replace(returned.find("return (%s)"), 11, "return (%a)");
  EXPECT_EQ(text(returned, chain_plan()).find("stowage::reuse"), std::string::npos);
  std::string other = kChainGraph;
  other.replace(other.find("aten::mul"), 9, "aten::mm");
  EXPECT_EQ(text(other, chain_plan()).find("stowage::reuse"), std::string::npos) << "not pointwise";
}

TEST(Rewrite, LeavesTheProgramAsItWas) {
  const GraphFacts facts = facts_of(kUpdateGraph);
  const std::string before = facts.graph->toString();
  planned_copy(facts, update_run(), update_plan());
  EXPECT_EQ(facts.graph->toString(), before);
}

TEST(Rewrite, RefusesAnOrderInWhichAValueIsUsedBeforeItIsMade) {
  profiler::PlanRecord plan = update_plan();
  plan.order = {2, 0, 1, 3};
  EXPECT_ANY_THROW(planned_copy(facts_of(kUpdateGraph), update_run(), plan));
}

TEST(Rewrite, RefusesARunOfOpsWithOtherResults) {
  profiler::Run run = update_run();
  run.uses[1].position = 7;  // of exp, which returns one
  try {
    planned_copy(facts_of(kUpdateGraph), run, update_plan());
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "op 0 'big' has 1 results, but the run has one at 7");
  }
}

}  // namespace
}  // namespace stowage
