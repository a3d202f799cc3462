// SPDX-License-Identifier: Apache-2.0
#include "plugin/profile.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/irparser.h>

#include "plugin/cpu_allocator.h"
#include "plugin/observation.h"

namespace stowage {
namespace {

using profiler::AllocationSource;
using profiler::DependencyReason;
using profiler::DependencyRecord;
using profiler::kNone;
using profiler::TensorKind;
using profiler::UseKind;
using testing::Contains;
using testing::ElementsAre;
using testing::Not;

const torch::jit::RegisterOperators kObservationOperators = register_observation_operators();

class Profile : public testing::Test {
 protected:
  Profile() { install_cpu_allocator(); }
  ~Profile() override { remove_cpu_allocator(); }

  profiler::Run profile(const std::string& text, torch::jit::Stack inputs) {
    auto graph = std::make_shared<torch::jit::Graph>();
    std::unordered_map<std::string, torch::jit::Value*> values;
    torch::jit::parseIR(text, graph.get(), values);
    for (const auto& [name, value] : values) value->setDebugName(name);
    const GraphFacts facts = read_facts(graph);
    at::NoGradGuard no_grad;
    return Profiler(facts).run(inputs, c10::kCPU, /*previous=*/nullptr, why_not);
  }

  std::string why_not;
};

TEST_F(Profile, TellsStoragesUsesAndAllocations) {
  const profiler::Run run = profile(R"IR(
graph(%x : Tensor, %p : Tensor):
  %one : int = prim::Constant[value=1]()
  %dims : int[] = prim::Constant[value=[4, 2]]()
  %e : Tensor = aten::exp(%x)
  %v : Tensor = aten::view(%e, %dims)
  %q : Tensor = aten::add_(%p, %v, %one)
  %n : Tensor = aten::neg(%v)
  return (%n))IR",
                                    {at::zeros({2, 4}), at::ones({4, 2})});
  EXPECT_EQ(why_not, "");
  EXPECT_EQ(run.tensors, (std::vector<profiler::TensorRecord>{
                             {"x", TensorKind::kInput, 32, "Float", "[2, 4]"},
                             {"p", TensorKind::kInput, 32, "Float", "[4, 2]"},
                             {"e", TensorKind::kIntermediate, 32, "Float", "[2, 4]"},
                             {"n", TensorKind::kOutput, 32, "Float", "[4, 2]"},
                         }));
  EXPECT_EQ(run.uses, (std::vector<profiler::UseRecord>{
                          {0, 0, UseKind::kRead, kNone},
                          {0, 2, UseKind::kResult, 0},
                          {1, 2, UseKind::kRead, kNone},
                          {1, 2, UseKind::kResult, 0},  // the view is the same storage
                          {2, 1, UseKind::kRead, kNone},
                          {2, 2, UseKind::kRead, kNone},
                          {2, 1, UseKind::kWrite, kNone},
                          {2, 1, UseKind::kResult, 0},
                          {3, 2, UseKind::kRead, kNone},
                          {3, 3, UseKind::kResult, 0},
                      }));
  const auto source = AllocationSource::kAllocator;
  EXPECT_EQ(run.allocations, (std::vector<profiler::AllocationRecord>{
                                 {2, 0, 0, 32, 64, 0, 0, 3, 2, source},  // freed by its last use, after n was made
                                 {3, 3, 0, 32, 64, 0, 1, kNone, kNone, source},
                             }));
  EXPECT_THAT(run.dependencies, ElementsAre(DependencyRecord{1, 0, DependencyReason::kValue},
                                            DependencyRecord{2, 1, DependencyReason::kValue},
                                            DependencyRecord{3, 1, DependencyReason::kValue}));
  EXPECT_EQ(run.peak_bytes, 128);
}

TEST_F(Profile, InputsThatShareAStorageAreOneTensor) {
  const at::Tensor x = at::zeros({8});
  const profiler::Run run = profile(R"IR(
graph(%x : Tensor, %y : Tensor):
  %z : Tensor = aten::mul(%x, %y)
  return (%z))IR",
                                    {x, x.view({8})});
  EXPECT_THAT(run.uses, ElementsAre(profiler::UseRecord{0, 0, UseKind::kRead, kNone},
                                    profiler::UseRecord{0, 1, UseKind::kResult, 0}));
}

TEST_F(Profile, WhatIsInAListIsUsedWithTheList) {
  const profiler::Run run = profile(R"IR(
graph(%x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::exp(%x)
  %b : Tensor = aten::neg(%x)
  %l : Tensor[] = prim::ListConstruct(%a, %b)
  %c : Tensor = aten::cat(%l, %zero)
  return (%c))IR",
                                    {at::zeros({8})});
  EXPECT_THAT(run.uses, Contains(profiler::UseRecord{3, 1, UseKind::kRead, kNone}));
  EXPECT_THAT(run.uses, Contains(profiler::UseRecord{3, 2, UseKind::kRead, kNone}));
  EXPECT_EQ(run.tensors[1].kind, TensorKind::kIntermediate);
}

constexpr char kBranch[] = R"IR(
graph(%x : Tensor, %c : bool):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::exp(%x)
  %y : Tensor = prim::If(%c)
    block0():
      %d : Tensor = aten::neg(%a)
      -> (%d)
    block1():
      -> (%a)
  %t : Tensor = aten::t(%y)
  %r : Tensor = aten::sin(%t)
  %w : Tensor = aten::add_(%a, %one, %one)
  return (%r, %w))IR";

TEST_F(Profile, AViewOfWhatTheOtherBranchReturnsIsReadBeforeItIsWritten) {
  const DependencyRecord read_first{4, 3, DependencyReason::kValue};
  // In this run the view is of a new tensor; had the branch gone the other way, sin would read what add_ writes.
  const profiler::Run run = profile(kBranch, {at::zeros({2, 2}), true});
  EXPECT_THAT(run.uses, Not(Contains(profiler::UseRecord{3, 1, UseKind::kRead, kNone})));
  EXPECT_THAT(run.dependencies, Contains(read_first));
  // Now it does: the uses say so.
  const profiler::Run other = profile(kBranch, {at::zeros({2, 2}), false});
  EXPECT_THAT(other.uses, Contains(profiler::UseRecord{3, 1, UseKind::kRead, kNone}));
}

TEST_F(Profile, MemoryInTwoStoragesIsNotPlanned) {
  const at::Tensor x = at::zeros({8});
  profile(R"IR(
graph(%x : Tensor, %y : Tensor):
  %one : int = prim::Constant[value=1]()
  %z : Tensor = aten::add_(%x, %y, %one)
  return (%z))IR",
          {x, at::from_blob(x.data_ptr<float>() + 4, {1})});
  EXPECT_EQ(why_not, "'x' and 'y' share memory, but not a storage");
}

TEST_F(Profile, ATensorWithoutAStorageIsNotPlanned) {
  profile(R"IR(
graph(%x : Tensor):
  %z : Tensor = aten::neg(%x)
  return (%z))IR",
          {at::zeros({8}).to_sparse()});
  EXPECT_EQ(why_not, "'z' is a tensor without a storage");
}

TEST_F(Profile, WhatTheGraphThrowsPassesThroughAndEndsTheRun) {
  EXPECT_THROW(profile(R"IR(
graph(%x : Tensor, %y : Tensor):
  %a : Tensor = aten::exp(%x)
  %z : Tensor = aten::mm(%a, %y)
  return (%z))IR",
                       {at::zeros({2, 3}), at::zeros({2, 3})}),
               std::runtime_error);
  EXPECT_EQ(Session::current(), nullptr);
}

}  // namespace
}  // namespace stowage
