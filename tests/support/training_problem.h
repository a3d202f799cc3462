// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "solver/problem.h"
#include "tests/support/problems.h"

namespace stowage::solver {

/// A step in the shape of training, the same for the same seed on any machine: forward ops that read what one or two
/// before them made, backward ops in the opposite order that read what forward ones took or made, updates. Most ops may
/// run again; some make two tensors, write in place, take a view, or need workspace.
inline Problem training_problem(std::uint32_t seed, int forward_count) {
  std::mt19937 engine(seed);
  const auto below = [&engine](std::int32_t limit) {
    return static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(limit));
  };
  Problem problem{.name = "training " + std::to_string(seed), .ops = {}, .tensors = {persistent(1 + below(4))}};
  const auto add_tensor = [&](Tensor tensor) {
    problem.tensors.push_back(std::move(tensor));
    return static_cast<std::int32_t>(problem.tensors.size()) - 1;
  };
  const auto add_op = [&](Op next) {
    next.repeatable = below(8) != 0;
    next.duration_ns = 1 + below(20);
    if (below(6) == 0) {
      const std::int32_t workspace = add_tensor(bytes(1 + below(8)));
      next.events.insert(next.events.begin(), allocate(workspace));
      next.events.push_back(free(workspace));
    }
    problem.ops.push_back(std::move(next));
    return static_cast<std::int32_t>(problem.ops.size()) - 1;
  };

  struct Layer {
    std::int32_t entered, left, weight;
  };
  std::vector<Layer> layers;
  std::int32_t value = 0;
  for (int layer = 0; layer < forward_count; ++layer) {
    const std::int32_t weight = below(3) == 0 ? add_tensor(persistent(1 + below(4))) : -1;
    std::vector<std::int32_t> reads{value};
    if (!layers.empty() && below(4) == 0) reads.push_back(layers[below(static_cast<std::int32_t>(layers.size()))].left);
    const std::int32_t left = add_tensor(bytes(1 + below(16)));
    Op forward = op("forward", reads, {allocate(left)});
    if (below(5) == 0) forward.events.push_back(allocate(add_tensor(bytes(1 + below(16)))));
    if (layer > 0 && below(4) == 0) add_reuses(problem, forward, left);
    if (weight >= 0) forward.reads.push_back(weight);
    add_op(std::move(forward));
    if (below(6) == 0) add_op(op("in_place", {}, {}, {left}));
    layers.push_back({value, left, weight});
    value = left;
  }
  std::int32_t gradient = add_tensor(bytes(1 + below(8)));
  add_op(op("loss", {value}, {allocate(gradient), allocate(add_tensor(output(1)))}));
  for (std::size_t layer = layers.size(); layer-- > 0;) {
    Op backward = op("backward", {gradient, below(2) == 0 ? layers[layer].left : layers[layer].entered}, {});
    if (below(4) == 0) {
      Op view = op("view", {backward.reads.back()}, {});
      view.repeatable = true;
      problem.ops.push_back(std::move(view));
      backward.views = backward.after = {static_cast<std::int32_t>(problem.ops.size()) - 1};
    }
    gradient = add_tensor(layer == 0 ? output(2) : bytes(1 + below(16)));
    backward.events.push_back(allocate(gradient));
    add_op(std::move(backward));
    if (layers[layer].weight >= 0 && below(2) == 0) {
      add_op(op("update", {gradient}, {}, {layers[layer].weight}));
    }
  }
  return problem;
}

}  // namespace stowage::solver
