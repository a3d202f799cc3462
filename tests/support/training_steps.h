// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/problems.h"

namespace stowage::solver {

/// A small training step, the same for the same seed on any machine: layers that multiply by a weight (slow), normalise
/// (fast; some write statistics), add what is two layers back in place, or drop out at random; then backward, which
/// reads what each layer took or made, some of it through a view, and updates each weight.
inline Problem training_step(std::uint32_t seed, int layers) {
  std::mt19937 engine(seed);
  const auto below = [&engine](int limit) { return static_cast<int>(engine() % static_cast<std::uint32_t>(limit)); };
  Problem problem{.name = "training " + std::to_string(seed), .ops = {}, .tensors = {persistent(5)}};
  const auto add = [&](Tensor tensor) {
    problem.tensors.push_back(std::move(tensor));
    return static_cast<std::int32_t>(problem.tensors.size()) - 1;
  };
  const auto run = [&](Op next) {
    problem.ops.push_back(std::move(next));
    return static_cast<std::int32_t>(problem.ops.size()) - 1;
  };
  struct Layer {
    std::int32_t saved = 0;
    std::int32_t view = -1;
    std::int32_t weight = 0;
  };
  std::vector<Layer> done;
  std::vector<std::int32_t> values = {0};
  for (int layer = 0; layer < layers; ++layer) {
    const std::int32_t input = values.back();
    const std::int32_t weight = add(persistent(1 + below(3)));
    const std::int32_t made = add(bytes(4 + below(12)));
    Layer entry{.saved = made, .view = -1, .weight = weight};
    switch (below(5)) {
      case 0:
      case 1:
        run(timed(op("multiply", {input, weight}, {allocate(made)}), 20 + below(20)));
        if (below(2) == 0) entry.saved = input;
        break;
      case 2: {
        const std::int32_t statistics = add(persistent(1));
        run(timed(op("normalise", {input, statistics}, {allocate(made)}, {statistics}), 2));
        run(timed(op("clip", {made}, {}, {made}), 1));
        break;
      }
      case 3:
        run(timed(op("shift", {input}, {allocate(made)}), 2));
        if (values.size() > 2) run(timed(op("add", {made, values[values.size() - 2]}, {}, {made}), 1));
        break;
      default:
        run(op("drop_out", {input}, {allocate(made)}));
        problem.ops.back().duration_ns = 2;
        break;
    }
    values.push_back(made);
    if (entry.saved != 0 && below(3) == 0) entry.view = run(timed(op("view", {entry.saved}, {}), 0));
    done.push_back(entry);
  }
  std::int32_t gradient = add(bytes(6));
  const std::int32_t loss = add(output(1));
  run(op("loss", {values.back()}, {allocate(gradient), allocate(loss)}));
  for (auto layer = done.rbegin(); layer != done.rend(); ++layer) {
    const std::int32_t next = add(bytes(4 + below(8)));
    Op backward = op("backward", {gradient, layer->saved, layer->weight}, {allocate(next)});
    backward.duration_ns = 30;
    if (layer->view >= 0) backward.after = backward.views = {layer->view};
    run(std::move(backward));
    run(op("update", {next, layer->weight}, {}, {layer->weight}));
    gradient = next;
  }
  return problem;
}

}  // namespace stowage::solver
