// SPDX-License-Identifier: Apache-2.0
#include "solver/window.h"

#include <algorithm>

#include "solver/lifetimes.h"

namespace stowage::solver {
namespace {

constexpr std::int32_t kAbsent = -1;

class WindowCutter {
 public:
  WindowCutter(const Problem& problem, const std::vector<std::int32_t>& order, std::int32_t begin, std::int32_t end)
      : problem_(problem),
        order_(order),
        begin_(begin),
        end_(end),
        first_(problem.tensors.size(), kAbsent),
        last_(problem.tensors.size(), kAbsent),
        tensor_index_(problem.tensors.size(), kAbsent),
        op_index_(problem.ops.size(), kAbsent) {
    const auto uses = find_uses(problem);
    for (std::int32_t position = 0; position < std::ssize(order); ++position) {
      for (const Event& event : problem.ops[order[position]].events) {
        if (event.kind == Event::Kind::kAllocate) first_[event.tensor] = position;
        last_[event.tensor] = position;
      }
      for (const std::int32_t tensor : uses[order[position]]) last_[tensor] = position;
    }
    for (std::size_t tensor = 0; tensor < problem.tensors.size(); ++tensor) {
      const bool stays = problem.tensors[tensor].persistent || problem.tensors[tensor].output;
      if (stays) last_[tensor] = static_cast<std::int32_t>(order.size());
    }
  }

  Problem cut() {
    window_.name = problem_.name;
    window_.ops.emplace_back().name = "before";
    for (std::int32_t position = begin_; position < end_; ++position) add_op(order_[position]);
    std::int64_t bystander_bytes = 0;
    for (std::size_t tensor = 0; tensor < problem_.tensors.size(); ++tensor) {
      const bool lives_through = first_[tensor] < begin_ && last_[tensor] >= end_;
      if (lives_through && tensor_index_[tensor] == kAbsent) bystander_bytes += problem_.tensors[tensor].size_bytes;
    }
    Tensor& bystanders = window_.tensors.emplace_back();
    bystanders.size_bytes = bystander_bytes;
    bystanders.persistent = true;
    return std::move(window_);
  }

 private:
  std::int32_t index_of(std::int32_t tensor) {
    std::int32_t& index = tensor_index_[tensor];
    if (index != kAbsent) return index;
    index = static_cast<std::int32_t>(window_.tensors.size());
    Tensor copy = problem_.tensors[tensor];
    const bool comes_in = first_[tensor] < begin_;
    copy.persistent = comes_in && last_[tensor] >= end_;
    copy.output = !comes_in && last_[tensor] >= end_;
    copy.external = copy.external && !copy.persistent;
    if (comes_in && !copy.persistent) window_.ops.front().events.push_back({Event::Kind::kAllocate, index});
    window_.tensors.push_back(std::move(copy));
    return index;
  }

  std::vector<std::int32_t> indices_of(const std::vector<std::int32_t>& tensors) {
    std::vector<std::int32_t> indices;
    indices.reserve(tensors.size());
    for (const std::int32_t tensor : tensors) indices.push_back(index_of(tensor));
    return indices;
  }

  void add_op(std::int32_t id) {
    const Op& op = problem_.ops[id];
    Op copy;
    copy.name = op.name;
    copy.kind = op.kind;
    copy.reads = indices_of(op.reads);
    copy.writes = indices_of(op.writes);
    for (const Event& event : op.events) copy.events.push_back({event.kind, index_of(event.tensor)});
    copy.after = {0};
    for (const std::int32_t earlier : op.after) {
      if (op_index_[earlier] != kAbsent) copy.after.push_back(op_index_[earlier]);
    }
    for (const Reuse& reuse : op.reuses) {
      if (last_[reuse.input] >= end_) continue;
      copy.reuses.push_back({.output = index_of(reuse.output), .input = index_of(reuse.input)});
    }
    op_index_[id] = static_cast<std::int32_t>(window_.ops.size());
    window_.ops.push_back(std::move(copy));
  }

  const Problem& problem_;
  const std::vector<std::int32_t>& order_;
  const std::int32_t begin_;
  const std::int32_t end_;
  std::vector<std::int32_t> first_;         ///< by tensor: where in the order it is allocated
  std::vector<std::int32_t> last_;          ///< by tensor: where it is used last; behind all if it stays
  std::vector<std::int32_t> tensor_index_;  ///< by tensor of the problem: in the window
  std::vector<std::int32_t> op_index_;      ///< by op of the problem: in the window
  Problem window_;
};

}  // namespace

Problem cut_window(const Problem& problem, const std::vector<std::int32_t>& order, std::int32_t begin,
                   std::int32_t end) {
  return WindowCutter(problem, order, begin, end).cut();
}

std::vector<std::int32_t> paste_window(const std::vector<std::int32_t>& order, std::int32_t begin,
                                       const std::vector<std::int32_t>& window_order) {
  std::vector<std::int32_t> pasted = order;
  std::int32_t position = begin;
  for (const std::int32_t op : window_order) {
    if (op > 0) pasted[position++] = order[begin + op - 1];
  }
  return pasted;
}

}  // namespace stowage::solver
