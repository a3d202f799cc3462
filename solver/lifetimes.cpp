// SPDX-License-Identifier: Apache-2.0
#include "solver/lifetimes.h"

#include <algorithm>
#include <numeric>

namespace stowage::solver {

std::vector<std::vector<std::int32_t>> find_uses(const Problem& problem) {
  std::vector<std::vector<std::int32_t>> uses(problem.ops.size());
  for (std::size_t op_id = 0; op_id < problem.ops.size(); ++op_id) {
    const Op& op = problem.ops[op_id];
    std::vector<std::int32_t> touched = op.reads;
    touched.insert(touched.end(), op.writes.begin(), op.writes.end());
    std::vector<std::int32_t> workspace;
    for (const Event& event : op.events) {
      (event.kind == Event::Kind::kAllocate ? touched : workspace).push_back(event.tensor);
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const std::int32_t tensor : touched) {
      if (problem.tensors[tensor].persistent || problem.tensors[tensor].output) continue;
      if (std::find(workspace.begin(), workspace.end(), tensor) == workspace.end()) uses[op_id].push_back(tensor);
    }
  }
  return uses;
}

std::vector<std::int32_t> find_slotted(const Problem& problem) {
  std::vector<std::int32_t> slotted;
  for (std::int32_t id = 0; id < std::ssize(problem.tensors); ++id) {
    const Tensor& tensor = problem.tensors[id];
    if (!tensor.persistent && !tensor.external && tensor.size_bytes > 0) slotted.push_back(id);
  }
  return slotted;
}

std::vector<Buffer> find_buffers(const Problem& problem, const Timeline& timeline) {
  const std::vector<std::int32_t>& holder = timeline.first_holder;
  std::vector<std::int32_t> end_step(problem.tensors.size());  // by tensor, of all that it hands its memory to
  for (std::size_t id = 0; id < problem.tensors.size(); ++id) {
    end_step[holder[id]] = std::max(end_step[holder[id]], timeline.lifetimes[id].end_step);
  }
  std::vector<Buffer> buffers;
  for (const std::int32_t id : find_slotted(problem)) {
    if (holder[id] != id) continue;
    const Tensor& tensor = problem.tensors[id];
    const std::int64_t units = (tensor.size_bytes + tensor.alignment_bytes - 1) / tensor.alignment_bytes;
    buffers.push_back({.id = std::to_string(id),
                       .lower = timeline.lifetimes[id].first_step,
                       .upper = end_step[id],
                       .size_bytes = units * tensor.alignment_bytes,
                       .alignment_bytes = tensor.alignment_bytes,
                       .fixed_offset_bytes = std::nullopt});
  }
  return buffers;
}

InnerPeak find_inner_peak(const Problem& problem, const Op& op, bool reuses) {
  const std::int32_t reusing = reuses && !op.reuses.empty() ? op.reuses.front().output : -1;
  InnerPeak peak;
  std::int64_t live_bytes = 0;
  std::vector<std::int32_t> live;
  for (const Event& event : op.events) {
    const std::int64_t size_bytes = problem.tensors[event.tensor].size_bytes;
    if (event.kind == Event::Kind::kFree) {
      live_bytes -= size_bytes;
      std::erase(live, event.tensor);
    } else if (event.tensor != reusing) {
      live_bytes += size_bytes;
      live.push_back(event.tensor);
      if (live_bytes > peak.bytes) peak = {.bytes = live_bytes, .tensors = live};
    }
  }
  return peak;
}

std::vector<InnerSums> find_inner_sums(const Problem& problem) {
  std::vector<InnerSums> sums;
  sums.reserve(problem.ops.size());
  for (const Op& op : problem.ops) {
    InnerSums& of_op = sums.emplace_back();
    of_op.peak_bytes = find_inner_peak(problem, op, /*reuses=*/false).bytes;
    of_op.reusing_peak_bytes = find_inner_peak(problem, op, /*reuses=*/true).bytes;
    for (const Event& event : op.events) {
      const std::int64_t size_bytes = problem.tensors[event.tensor].size_bytes;
      of_op.growth_bytes += event.kind == Event::Kind::kAllocate ? size_bytes : -size_bytes;
    }
  }
  return sums;
}

Timeline play(const Problem& problem, const std::vector<std::int32_t>& order, Reusing reusing) {
  const auto uses = find_uses(problem);
  std::vector<std::int32_t> uses_left(problem.tensors.size());
  for (const auto& tensors : uses) {
    for (const std::int32_t tensor : tensors) ++uses_left[tensor];
  }

  Timeline timeline;
  timeline.lifetimes.resize(problem.tensors.size());
  timeline.reuse_of.assign(problem.tensors.size(), kNoReuse);
  timeline.first_holder.resize(problem.tensors.size());
  std::iota(timeline.first_holder.begin(), timeline.first_holder.end(), 0);
  timeline.frees_after.resize(problem.ops.size());
  std::int64_t live_bytes = 0;
  for (const Tensor& tensor : problem.tensors) live_bytes += tensor.persistent ? tensor.size_bytes : 0;
  timeline.peak_bytes = live_bytes;

  std::int32_t step = 0;
  const auto free = [&](std::int32_t tensor) {
    live_bytes -= problem.tensors[tensor].size_bytes;
    timeline.lifetimes[tensor].end_step = step++;
  };
  std::vector<char> handed_on(problem.tensors.size());
  const auto hand_on = [&](std::int32_t output, const std::vector<Reuse>& candidates) {
    const auto dying = std::find_if(candidates.begin(), candidates.end(), [&](const Reuse& candidate) {
      return candidate.output == output && uses_left[candidate.input] == 1;
    });
    if (reusing == Reusing::kNone || dying == candidates.end() || problem.tensors[output].size_bytes == 0) return;
    timeline.reuse_of[output] = dying->input;
    timeline.first_holder[output] = timeline.first_holder[dying->input];
    timeline.lifetimes[dying->input].end_step = step;
    handed_on[dying->input] = true;
    live_bytes -= problem.tensors[dying->input].size_bytes;
  };
  for (const std::int32_t op : order) {
    for (const Event& event : problem.ops[op].events) {
      if (event.kind == Event::Kind::kFree) {
        free(event.tensor);
        continue;
      }
      hand_on(event.tensor, problem.ops[op].reuses);
      timeline.lifetimes[event.tensor].first_step = step++;
      live_bytes += problem.tensors[event.tensor].size_bytes;
      if (live_bytes > timeline.peak_bytes) {
        timeline.peak_bytes = live_bytes;
        timeline.peak_op = op;
      }
    }
    for (const std::int32_t tensor : uses[op]) {
      if (--uses_left[tensor] > 0 || handed_on[tensor]) continue;
      timeline.frees_after[op].push_back(tensor);
      free(tensor);
    }
  }
  timeline.step_count = step;
  for (std::size_t tensor = 0; tensor < problem.tensors.size(); ++tensor) {
    if (problem.tensors[tensor].output && !problem.tensors[tensor].persistent) {
      timeline.lifetimes[tensor].end_step = step;
    }
  }
  return timeline;
}

}  // namespace stowage::solver
