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
