// SPDX-License-Identifier: Apache-2.0
#include "plugin/snapshot.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace stowage {
namespace {

/// Inputs of a graph with that many.
Snapshot take(const torch::jit::Stack& inputs, torch::jit::Graph& graph) {
  for (std::size_t input = 0; input < inputs.size(); ++input) graph.addInput();
  return Snapshot(inputs, graph);
}

TEST(Snapshot, BringsBackBytesOfEveryStorage) {
  torch::jit::Graph graph;
  const at::Tensor base = at::arange(12);
  const at::Tensor held = at::ones({3});
  Snapshot snapshot = take({base.slice(0, 0, 4), c10::List<at::Tensor>({held})}, graph);
  base.zero_();  // all of it: a view can be written beyond its elements
  held.zero_();
  EXPECT_EQ(snapshot.why_lost(), "");
  snapshot.restore();
  EXPECT_TRUE(base.equal(at::arange(12)));
  EXPECT_TRUE(held.equal(at::ones({3})));
}

TEST(Snapshot, BringsBackShapes) {
  torch::jit::Graph graph;
  const at::Tensor tensor = at::arange(6).view({2, 3});
  Snapshot snapshot = take({tensor}, graph);
  tensor.t_().unsqueeze_(0);
  snapshot.restore();
  EXPECT_TRUE(tensor.equal(at::arange(6).view({2, 3})));
}

TEST(Snapshot, BringsBackContainersAndWhatTheyHeld) {
  torch::jit::Graph graph;
  const at::Tensor first = at::ones({3});
  c10::List<at::Tensor> list({first});
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("first", first);
  Snapshot snapshot = take({list, dict}, graph);
  first.zero_();
  list.set(0, at::zeros({2}));
  list.push_back(first);
  dict.clear();
  dict.insert("second", first);
  snapshot.restore();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_TRUE(list.get(0).is_same(first) && first.equal(at::ones({3})));
  EXPECT_TRUE(dict.size() == 1 && dict.at("first").is_same(first));
}

TEST(Snapshot, BringsBackGenerators) {
  torch::jit::Graph graph;
  at::Generator own = at::detail::createCPUGenerator(3);
  Snapshot snapshot = take({own}, graph);
  const auto before = snapshot.states();
  const at::Tensor drawn = at::rand({4}, own);
  const at::Tensor drawn_by_default = at::rand({4});
  EXPECT_NE(snapshot.states()[0].digest, before[0].digest);
  snapshot.restore();
  EXPECT_EQ(snapshot.states()[0].digest, before[0].digest);
  EXPECT_TRUE(at::rand({4}, own).equal(drawn));
  EXPECT_TRUE(at::rand({4}).equal(drawn_by_default));
}

TEST(Snapshot, SaysWhatItCannotBringBack) {
  torch::jit::Graph graph;
  const at::Tensor tensor = at::ones({3});
  const Snapshot grown = take({tensor}, graph);
  const std::string name = graph.inputs()[0]->debugName();
  tensor.resize_({1000});
  EXPECT_EQ(grown.why_lost(), "the run gives '" + name + "' other memory");

  torch::jit::Graph second;
  const Snapshot replaced = take({tensor}, second);
  tensor.set_(at::ones({5}));
  EXPECT_EQ(replaced.why_lost(), "the run gives '" + second.inputs()[0]->debugName() + "' another storage");

  torch::jit::Graph third;
  const Snapshot sparse = take({at::eye(3).to_sparse()}, third);
  EXPECT_EQ(sparse.why_lost(),
            "the bytes of '" + third.inputs()[0]->debugName() + "' cannot be kept: it is no plain tensor on the CPU");
}

}  // namespace
}  // namespace stowage
