// SPDX-License-Identifier: Apache-2.0
#include "plugin/signature.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace stowage {
namespace {

std::string digest(torch::jit::Stack inputs) {
  Signature signature;
  signature.read(inputs);
  return signature.digest();
}

TEST(Signature, IsTheSameForTheSameShapes) {
  EXPECT_EQ(digest({at::zeros({2, 3}), 1, true}), digest({at::ones({2, 3}), 1, true}));
}

TEST(Signature, ChangesWithWhatMayChangeAnAllocation) {
  const at::Tensor tensor = at::zeros({2, 3});
  const std::string base = digest({tensor, tensor.clone()});
  EXPECT_NE(digest({at::zeros({3, 2}), tensor}), base) << "shape";
  EXPECT_NE(digest({at::zeros({3, 2}).t(), tensor}), base) << "strides";
  EXPECT_NE(digest({tensor.to(at::kDouble), tensor}), base) << "dtype";
  EXPECT_NE(digest({tensor, tensor}), base) << "one storage for both";
  EXPECT_NE(digest({c10::IValue(), tensor}), base) << "None";
  EXPECT_NE(digest({1, true}), digest({2, true})) << "whole number";
  EXPECT_NE(digest({1, true}), digest({1, false})) << "switch";
}

TEST(Signature, ChangesWithInferenceMode) {
  const std::string base = digest({1});
  const c10::InferenceMode mode;
  EXPECT_NE(digest({1}), base);
}

TEST(GraphDigest, ChangesWithWhatATensorConstantHolds) {
  const auto digest_with = [](const at::Tensor& constant) {
    auto graph = std::make_shared<torch::jit::Graph>();
    graph->registerOutput(graph->insertConstant(constant));
    return graph_digest(graph);
  };
  const std::string base = digest_with(at::zeros({2, 3}));
  EXPECT_EQ(digest_with(at::zeros({2, 3})), base);
  EXPECT_NE(digest_with(at::ones({2, 3})), base);
  EXPECT_NE(digest_with(at::zeros({3, 2})), base);
  EXPECT_NE(digest_with(at::zeros({2, 3}, at::kInt)), base);
}

TEST(Signature, DoesNotChangeWithAFloat) { EXPECT_EQ(digest({0.1}), digest({0.2})); }

}  // namespace
}  // namespace stowage
