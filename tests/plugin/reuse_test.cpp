// SPDX-License-Identifier: Apache-2.0
#include "plugin/reuse.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/irparser.h>

#include "plugin/options.h"
#include "tests/plugin/update_run.h"

namespace stowage {
namespace {

at::Tensor vector() { return at::zeros({64}); }

TEST(DiesWith, ATensorThatNobodyElseHolds) {
  const at::Tensor tensor = vector();
  EXPECT_TRUE(dies_with(tensor, 1));
  const at::Tensor copy = tensor;
  EXPECT_FALSE(dies_with(tensor, 1));
  EXPECT_TRUE(dies_with(tensor, 2));
}

TEST(DiesWith, NotWhileSomebodyHoldsTheStorage) {
  const at::Tensor tensor = vector();
  const c10::Storage storage = tensor.storage();
  EXPECT_FALSE(dies_with(tensor, 1));
}

TEST(DiesWith, NotWhileAnAliasLives) {
  for (const bool inference : {true, false}) {
    const c10::InferenceMode mode(inference);
    const at::NoGradGuard no_grad;
    const at::Tensor tensor = vector();
    for (const at::Tensor& alias : {tensor.view({8, 8}), tensor.detach(), tensor.slice(0, 3, 5), at::alias(tensor)}) {
      EXPECT_FALSE(dies_with(tensor, 1)) << inference;
      EXPECT_FALSE(dies_with(tensor, 2)) << inference;
      EXPECT_FALSE(dies_with(alias, 2)) << inference;
    }
    EXPECT_TRUE(dies_with(tensor, 1)) << inference;
  }
}

TEST(DiesWith, AViewWhoseBaseNobodyElseHolds) {
  const at::NoGradGuard no_grad;
  at::Tensor base = vector();
  at::Tensor view = base.view({8, 8});
  EXPECT_FALSE(dies_with(view, 1));
  base.reset();
  EXPECT_TRUE(dies_with(view, 1));
  view = view.t().view({4, 2, 8});
  EXPECT_TRUE(dies_with(view, 1)) << "a view of a view";
  const at::Tensor other = view[0];
  EXPECT_FALSE(dies_with(view, 1)) << "two views of one base";
}

TEST(DiesWith, NotWhenFollowedByAWeakReference) {
  const at::Tensor tensor = vector();
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(tensor.getIntrusivePtr());
  EXPECT_FALSE(dies_with(tensor, 1));
}

TEST(DiesWith, NotMemoryThatIsSharedCopyOnWriteOrBorrowed) {
  const at::Tensor tensor = vector();
  {
    const at::Tensor lazy = at::_lazy_clone(tensor);
    EXPECT_FALSE(dies_with(tensor, 1));
    EXPECT_FALSE(dies_with(lazy, 1));
  }
  std::vector<float> values(64);
  EXPECT_FALSE(dies_with(at::from_blob(values.data(), {64}), 1));
}

TEST(LayoutDigest, IsOfLayoutsNotOfValues) {
  const auto digest = [](const std::vector<c10::IValue>& inputs) { return layout_digest(inputs, 0).value(); };
  const std::int64_t base = digest({at::zeros({2, 3}), 1});
  EXPECT_EQ(digest({at::ones({2, 3}), 2}), base);
  EXPECT_NE(digest({at::zeros({3, 2}), 1}), base) << "sizes";
  EXPECT_NE(digest({at::zeros({3, 2}).t(), 1}), base) << "strides";
  EXPECT_NE(digest({at::zeros({2, 3}, at::kInt), 1}), base) << "dtype";
  EXPECT_NE(digest({at::zeros({3, 3}).slice(0, 1), 1}), base) << "offset";
  EXPECT_NE(digest({at::zeros({2, 3}), 1.0}), base) << "number";
  EXPECT_NE(digest({at::zeros({2, 3}), c10::IValue()}), base) << "None";
  EXPECT_NE(digest({at::zeros({2, 3}), 1, 1}), base) << "one more";
  EXPECT_NE(layout_digest({{at::zeros({2, 3}), 1}}, 1).value(), base) << "position";
  EXPECT_NE(digest({at::zeros({2, 3}), "floor"}), digest({at::zeros({2, 3}), "trunc"})) << "text";
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::ADInplaceOrView);
  EXPECT_NE(digest({at::zeros({2, 3}), 1}), base) << "dispatch state";
}

TEST(LayoutDigest, NothingIsKnownOfWhatOthersSeeOrOfOtherKinds) {
  const auto digest = [](const c10::IValue& input) { return layout_digest({input}, 0); };
  EXPECT_EQ(digest(std::vector<at::Tensor>{vector()}), std::nullopt) << "list";
  EXPECT_EQ(digest(vector().to_sparse()), std::nullopt) << "sparse";
  EXPECT_EQ(digest(at::empty({64}, at::kMeta)), std::nullopt) << "another device";
  const at::Tensor differentiated = vector().set_requires_grad(true);
  EXPECT_EQ(digest(differentiated), std::nullopt);
  const at::NoGradGuard no_grad;
  EXPECT_NE(digest(differentiated), std::nullopt) << "autograd does not record";
}

// --- candidates ----------------------------------------------------------------------------------------------------

bool may_reuse_of(const std::string& line) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(
      "graph(%x : Tensor, %y : Tensor):\n  %one : int = prim::Constant[value=1]()\n  " + line + "\n  return (%x)",
      graph.get());
  const GraphFacts facts = read_facts(graph);
  return may_reuse(facts.ops.front());
}

TEST(MayReuse, PointwiseOpsWithAFreshResult) {
  EXPECT_TRUE(may_reuse_of("%r : Tensor = aten::relu(%x)"));
  EXPECT_TRUE(may_reuse_of("%r : Tensor = aten::add(%x, %y, %one)"));
  EXPECT_FALSE(may_reuse_of("%r : Tensor = aten::relu_(%x)"));
  EXPECT_FALSE(may_reuse_of("%r : Tensor = aten::add(%x, %y, %one, %y)")) << "out=";
  EXPECT_FALSE(may_reuse_of("%r : Tensor = aten::mm(%x, %y)"));
  EXPECT_FALSE(may_reuse_of("%r : int = aten::add(%one, %one)"));
}

TEST(MayReuse, OpsThatTheUserNames) {
  EXPECT_FALSE(may_reuse_of("%r : Tensor = aten::cumsum(%x, %one, %one)"));
  set_option("reuse_ops", "mine::scale, aten::cos_sim,aten::mm");
  EXPECT_TRUE(may_reuse_of("%r : Tensor = aten::mm(%x, %y)"));
  EXPECT_FALSE(may_reuse_of("%r : Tensor = aten::mv(%x, %y)"));
  EXPECT_EQ(plan_rules(), "4, reuse_ops mine::scale, aten::cos_sim,aten::mm");
  set_option("reuse", "0");
  EXPECT_FALSE(may_reuse_of("%r : Tensor = aten::relu(%x)"));
  EXPECT_EQ(plan_rules(), "4, no reuse");
  set_option("reuse", "1");
  set_option("reuse_ops", "");
  EXPECT_EQ(plan_rules(), "4");
}

TEST(FindReusable, DenseTensorsThatFillTheirStorageAndShareItWithNoOther) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"IR(
graph(%x : Tensor, %y : Tensor, %z : Tensor):
  %r : Tensor = aten::addcmul(%x, %y, %z)
  return (%r))IR",
                      graph.get());
  const torch::jit::Node& node = *graph->nodes().begin().operator*();
  const auto positions = [&](const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
    std::vector<std::int32_t> found;
    for (const ReusableInput& input : find_reusable(node, std::vector<c10::IValue>{x, y, z})) {
      found.push_back(input.position);
    }
    return found;
  };
  using Positions = std::vector<std::int32_t>;
  const at::Tensor square = at::zeros({8, 8});
  EXPECT_EQ(positions(at::zeros({8, 8}), square, at::zeros({8})), (Positions{0, 1, 2}));
  EXPECT_EQ(positions(square, square.t(), at::zeros({8, 8})), Positions{2});
  EXPECT_EQ(
      positions(at::zeros({9, 8}).slice(0, 1), at::zeros({8, 16}).slice(1, 0, 8), at::zeros({8, 1}).expand({8, 8})),
      Positions{});
  EXPECT_EQ(positions(at::zeros({8, 8}).t(), at::zeros({0}), at::zeros({9, 8}).slice(0, 0, 8)), Positions{0});
}

TEST(ReusableInput, MatchesAResultOfTheSameLayout) {
  const ReusableInput input{.dtype = at::kFloat, .sizes = {2, 3}, .strides = {3, 1}};
  EXPECT_TRUE(input.matches(at::zeros({2, 3})));
  EXPECT_FALSE(input.matches(at::zeros({3, 2}).t()));
  EXPECT_FALSE(input.matches(at::zeros({2, 3}, at::kInt)));
  EXPECT_FALSE(input.matches(at::zeros({6})));
  EXPECT_FALSE(input.matches(at::zeros({4, 3}).slice(0, 2)));
  EXPECT_FALSE(input.matches(at::Tensor()));
}

TEST(KeepPossibleReuses, OfWhatLivesAndDiesInTheRun) {
  using profiler::TensorKind;
  profiler::Run run = update_run();
  // As if g were made from a tensor of its size.
  run.tensors[2].size_bytes = 64;
  const std::vector<profiler::ReuseRecord> reuse{{.op = 1, .output = 4, .input = 2}};
  const auto kept = [&](auto change) {
    profiler::Run changed = run;
    changed.reuses = reuse;
    change(changed);
    keep_possible_reuses(changed);
    return !changed.reuses.empty();
  };
  EXPECT_TRUE(kept([](auto&) {}));
  EXPECT_FALSE(kept([](auto& r) { r.tensors[2].size_bytes = 65; }));
  EXPECT_FALSE(kept([](auto& r) { r.tensors[2].kind = TensorKind::kInput; }));
  EXPECT_FALSE(kept([](auto& r) { r.tensors[2].kind = TensorKind::kOutput; }));
  EXPECT_FALSE(kept([](auto& r) { r.tensors[4].kind = TensorKind::kOutput; }));
  EXPECT_FALSE(kept([](auto& r) { r.allocations[1].op = 1; })) << "input of the op itself";
  EXPECT_FALSE(kept([](auto& r) { r.allocations[2].op = 2; })) << "output of another op";
  EXPECT_FALSE(kept([](auto& r) { r.allocations[3].op = 1; })) << "the op leaves two tensors";
}

}  // namespace
}  // namespace stowage
