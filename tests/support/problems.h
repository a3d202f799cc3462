// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "solver/dependencies.h"
#include "solver/lifetimes.h"
#include "solver/problem.h"

namespace stowage::solver {

inline Event allocate(std::int32_t tensor) { return {Event::Kind::kAllocate, tensor}; }
inline Event free(std::int32_t tensor) { return {Event::Kind::kFree, tensor}; }

/// A tensor without alignment, so that sums are easy to follow.
inline Tensor bytes(std::int64_t size_bytes) { return {.name = "", .size_bytes = size_bytes, .alignment_bytes = 1}; }
inline Tensor persistent(std::int64_t size_bytes) {
  Tensor tensor = bytes(size_bytes);
  tensor.persistent = true;
  return tensor;
}
inline Tensor output(std::int64_t size_bytes) {
  Tensor tensor = bytes(size_bytes);
  tensor.output = true;
  return tensor;
}

inline Op op(std::string name, std::vector<std::int32_t> reads, std::vector<Event> events,
             std::vector<std::int32_t> writes = {}, std::vector<std::int32_t> after = {}) {
  return {.name = std::move(name),
          .kind = "",
          .duration_ns = 0,
          .reads = std::move(reads),
          .writes = std::move(writes),
          .events = std::move(events),
          .after = std::move(after),
          .reuses = {}};
}

/// An op of given duration that may run again, or may not.
inline Op timed(Op next, std::int64_t duration_ns, bool repeatable = true) {
  next.duration_ns = duration_ns;
  next.repeatable = repeatable;
  return next;
}

/// `next` with candidates for reuse: its output may take any of `inputs`.
inline Op reusing(Op next, std::int32_t output, const std::vector<std::int32_t>& inputs) {
  for (const std::int32_t input : inputs) next.reuses.push_back({.output = output, .input = input});
  return next;
}

/// input -> a -> b -> c -> output
inline Problem chain() {
  return {.name = "chain",
          .ops = {op("a", {0}, {allocate(1)}), op("b", {1}, {allocate(2)}), op("c", {2}, {allocate(3)})},
          .tensors = {persistent(4), bytes(10), bytes(20), output(5)}};
}

/// Two branches from a source, each with a large middle, written interleaved: one after the other is better, and the
/// left one, which leaves less behind, must come first. The join needs the source too.
inline Problem diamond() {
  return {.name = "diamond",
          .ops = {op("source", {}, {allocate(0)}), op("left", {0}, {allocate(1)}), op("right", {0}, {allocate(2)}),
                  op("left_end", {1}, {allocate(3)}), op("right_end", {2}, {allocate(4)}),
                  op("join", {0, 3, 4}, {allocate(5)})},
          .tensors = {bytes(8), bytes(100), bytes(50), bytes(1), bytes(10), output(8)}};
}

/// Two gradients that are added, then scaled: the sum may take the place of either, and the scaled one that of the sum.
inline Problem reuse() {
  return {.name = "reuse",
          .ops = {op("left", {}, {allocate(0)}), op("right", {}, {allocate(1)}),
                  reusing(op("add", {0, 1}, {allocate(2)}), 2, {0, 1}),
                  reusing(op("scale", {2}, {allocate(3)}), 3, {2}), op("use", {1, 3}, {allocate(4)})},
          .tensors = {bytes(10), bytes(10), bytes(10), bytes(10), output(4)}};
}

/// A tensor that is read, overwritten, and read again.
inline Problem in_place() {
  return {.name = "in_place",
          .ops = {op("make", {}, {allocate(0)}), op("read", {0}, {allocate(1)}), op("overwrite", {0}, {}, {0}),
                  op("use", {0, 1}, {allocate(2)})},
          .tensors = {bytes(16), bytes(32), output(4)}};
}

/// Op 1 makes a view of tensor 0, which no storage shows; op 3 reads through it long after.
inline Problem view() {
  return {.name = "view",
          .ops = {op("make", {}, {allocate(0)}), op("view", {0}, {}), op("other", {}, {allocate(1)}),
                  op("read_view", {0, 1}, {allocate(2)}, {}, {1})},
          .tensors = {bytes(16), bytes(8), output(4)}};
}

/// Two random draws, the second of which would better come first; `ordered` forbids it.
inline Problem two_draws(bool ordered) {
  Problem problem{
      .name = "two_draws",
      .ops = {op("draw", {}, {allocate(0)}), op("draw_end", {0}, {allocate(1)}), op("draw_2", {}, {allocate(2)}),
              op("draw_2_end", {2}, {allocate(3)}), op("sum", {1, 3}, {allocate(4)})},
      .tensors = {bytes(10), bytes(40), bytes(100), bytes(1), output(4)}};
  if (ordered) problem.ops[2].after = {0};
  return problem;
}

/// Makes the output fit what the op reads last, and a candidate to take any input that fits.
inline void add_reuses(Problem& problem, Op& next, std::int32_t output_id) {
  if (next.reads.empty()) return;
  Tensor& output = problem.tensors[output_id];
  output.size_bytes = problem.tensors[next.reads.back()].size_bytes;
  output.alignment_bytes = problem.tensors[next.reads.back()].alignment_bytes;
  for (const std::int32_t id : next.reads) {
    const Tensor& input = problem.tensors[id];
    const bool is_alike = input.size_bytes == output.size_bytes && input.alignment_bytes == output.alignment_bytes;
    const bool is_written = std::find(next.writes.begin(), next.writes.end(), id) != next.writes.end();
    if (is_alike && !is_written && !input.output && !input.external && !output.external) {
      next.reuses.push_back({.output = output_id, .input = id});
    }
  }
}

/// A well formed problem with every feature in it, the same for the same seed on any machine.
inline Problem random_problem(std::uint32_t seed, int op_count) {
  std::mt19937 engine(seed);
  const auto below = [&engine](std::int64_t limit) {
    return static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(limit));
  };
  Problem problem{.name = "random " + std::to_string(seed), .ops = {}, .tensors = {persistent(3), persistent(0)}};
  const auto add_tensor = [&] {
    Tensor tensor = bytes(below(20));
    tensor.alignment_bytes = std::int64_t{1} << below(4);
    tensor.output = below(12) == 0;
    tensor.external = below(12) == 0;
    problem.tensors.push_back(tensor);
    return static_cast<std::int32_t>(problem.tensors.size()) - 1;
  };
  std::vector<std::int32_t> usable;
  for (std::int32_t id = 0; id < op_count; ++id) {
    Op next = op("op", {}, {});
    for (int count = below(3); count > 0 && !usable.empty(); --count) {
      const auto reach = std::min<std::int64_t>(std::ssize(usable), 8);
      next.reads.push_back(usable[usable.size() - 1 - below(reach)]);
    }
    if (below(6) == 0) next.writes.push_back(below(2));
    if (below(8) == 0 && !usable.empty()) next.writes.push_back(usable[below(std::ssize(usable))]);
    if (id > 0 && below(8) == 0) next.after.push_back(below(id));
    const bool has_workspace = below(3) == 0;
    const std::int32_t workspace = has_workspace ? add_tensor() : -1;
    if (has_workspace) next.events.push_back(allocate(workspace));
    for (int count = below(5) == 0 ? below(3) : 1; count > 0; --count) {
      usable.push_back(add_tensor());
      next.events.push_back(allocate(usable.back()));
    }
    if (below(2) == 0 && next.events.size() > (has_workspace ? 1 : 0)) add_reuses(problem, next, usable.back());
    if (has_workspace && !problem.tensors[workspace].output && below(3) > 0) next.events.push_back(free(workspace));
    problem.ops.push_back(next);
  }
  return problem;
}

/// The lowest peak of all orders, tried one by one.
class BruteForce {
 public:
  explicit BruteForce(const Problem& problem)
      : problem_(problem), dependencies_(find_dependencies(problem)), done_(problem.ops.size()) {}

  std::int64_t lowest_peak_bytes() {
    extend();
    return lowest_bytes_;
  }

 private:
  void extend() {
    if (order_.size() == problem_.ops.size())
      lowest_bytes_ = std::min(lowest_bytes_, play(problem_, order_).peak_bytes);
    for (std::int32_t id = 0; id < std::ssize(problem_.ops); ++id) {
      const auto& before = dependencies_.predecessors[id];
      if (done_[id] || !std::all_of(before.begin(), before.end(), [this](auto other) { return done_[other] != 0; })) {
        continue;
      }
      done_[id] = true;
      order_.push_back(id);
      extend();
      order_.pop_back();
      done_[id] = false;
    }
  }

  const Problem& problem_;
  const Dependencies dependencies_;
  std::vector<char> done_;
  std::vector<std::int32_t> order_;
  std::int64_t lowest_bytes_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace stowage::solver
