// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "solver/cyclic.h"
#include "solver/lifetimes.h"
#include "solver/problem.h"

namespace stowage::solver {

struct Loop {
  std::vector<CyclicBuffer> buffers;
  std::int64_t event_count = 0;
  std::int64_t gradient_bytes = 0;
};

/// Where a training loop sets its gradients to none.
enum class ZeroGrad : std::uint8_t { kAtBegin, kBeforeBackward };

/// A recorded step as an eager loop runs it: in program order, gradients kept until the next step sets them to none,
/// outputs until the next step has its own.
inline Loop make_loop(const Problem& problem, ZeroGrad zero_grad) {
  std::vector<std::int32_t> order(problem.ops.size());
  std::iota(order.begin(), order.end(), 0);
  const Timeline timeline = play(problem, order, Reusing::kNone);
  std::set<std::string> gradients;
  std::int64_t backward_step = timeline.step_count;
  for (const Op& op : problem.ops) {
    if (op.kind.find("_backward") != std::string::npos && !op.events.empty()) {
      const Lifetime& lifetime = timeline.lifetimes[op.events.front().tensor];
      backward_step = std::min<std::int64_t>(backward_step, lifetime.first_step);
    }
    // The update of a momentum.
    if (op.kind != "aten.add_.Tensor" || op.reads.size() < 2 || !problem.tensors[op.writes.front()].persistent)
      continue;
    for (const std::int32_t tensor : op.reads) {
      if (!problem.tensors[tensor].persistent) gradients.insert(std::to_string(tensor));
    }
  }
  const auto count = static_cast<std::int64_t>(gradients.size());
  const std::int64_t zero_step = zero_grad == ZeroGrad::kAtBegin ? 0 : backward_step;
  const auto event_at = [&](std::int64_t step) { return step < zero_step ? step : step + count; };

  Loop loop;
  loop.event_count = timeline.step_count + 2 * count;
  std::int64_t next_free = zero_step;
  for (const Buffer& buffer : find_buffers(problem, timeline)) {
    CyclicBuffer cyclic{.id = buffer.id,
                        .allocate_event = event_at(buffer.lower),
                        .free_event = event_at(buffer.upper),
                        .size_bytes = buffer.size_bytes,
                        .alignment_bytes = buffer.alignment_bytes,
                        .fixed_offset_bytes = std::nullopt};
    if (gradients.contains(buffer.id)) {
      cyclic.carried = true;
      cyclic.free_event = next_free++;
      loop.gradient_bytes += buffer.size_bytes;
    } else if (problem.tensors[std::stoi(buffer.id)].output) {
      cyclic.carried = true;
      cyclic.free_event = cyclic.allocate_event + 1;
    }
    loop.buffers.push_back(std::move(cyclic));
  }
  return loop;
}

}  // namespace stowage::solver
