// SPDX-License-Identifier: Apache-2.0
#include "solver/improve.h"

#include <algorithm>

namespace stowage::solver {
namespace {

using Order = std::vector<std::int32_t>;

class MoveFinder {
 public:
  MoveFinder(const Problem& problem, const Dependencies& dependencies, const Order& order, const Timeline& timeline)
      : problem_(problem), dependencies_(dependencies), order_(order), timeline_(timeline), position_(order.size()) {
    for (std::int32_t position = 0; position < std::ssize(order); ++position) position_[order[position]] = position;
    allocator_.resize(problem.tensors.size(), -1);
    users_.resize(problem.tensors.size());
    const auto uses = find_uses(problem);
    for (const std::int32_t op : order) {
      for (const Event& event : problem.ops[op].events) allocator_[event.tensor] = op;
      for (const std::int32_t tensor : uses[op]) users_[tensor].push_back(op);
    }
    peak_ = position_[timeline.peak_op];
  }

  std::vector<Order> find(std::size_t max_moves) const {
    std::vector<Order> found;
    for (const std::int32_t tensor : find_bystanders()) {
      if (found.size() >= max_moves) break;
      // Late users as a group: freeing the tensor takes them all.
      if (!problem_.tensors[tensor].output) {
        const std::vector<char> moved = closure(late_users(tensor), &Dependencies::predecessors);
        if (!moved[timeline_.peak_op]) {
          found.push_back(pull_before(moved, peak_));
          if (const std::int32_t valley = find_valley(moved); valley < peak_)
            found.push_back(pull_before(moved, valley));
        }
      }
      const std::vector<char> moved = closure({allocator_[tensor]}, &Dependencies::successors);
      if (!moved[timeline_.peak_op]) found.push_back(push_behind_peak(moved));
    }
    return found;
  }

 private:
  /// Tensors that live through the peak op without being used by it, largest first.
  std::vector<std::int32_t> find_bystanders() const {
    std::vector<std::int32_t> bystanders;
    for (std::int32_t tensor = 0; tensor < std::ssize(problem_.tensors); ++tensor) {
      const std::int32_t allocator = allocator_[tensor];
      if (allocator < 0 || position_[allocator] >= peak_ || problem_.tensors[tensor].size_bytes == 0) continue;
      const std::vector<std::int32_t>& users = users_[tensor];
      const bool lives = problem_.tensors[tensor].output || (!users.empty() && position_[users.back()] > peak_);
      if (lives && std::find(users.begin(), users.end(), timeline_.peak_op) == users.end())
        bystanders.push_back(tensor);
    }
    std::stable_sort(bystanders.begin(), bystanders.end(), [this](std::int32_t left, std::int32_t right) {
      return problem_.tensors[left].size_bytes > problem_.tensors[right].size_bytes;
    });
    return bystanders;
  }

  std::vector<std::int32_t> late_users(std::int32_t tensor) const {
    std::vector<std::int32_t> late;
    for (const std::int32_t user : users_[tensor]) {
      if (position_[user] > peak_) late.push_back(user);
    }
    return late;
  }

  /// By op: reached from `open` on its side of the peak op, the peak op included.
  std::vector<char> closure(std::vector<std::int32_t> open,
                            std::vector<std::vector<std::int32_t>> Dependencies::*next) const {
    const bool late_side = next == &Dependencies::predecessors;
    std::vector<char> reached(order_.size());
    for (const std::int32_t op : open) reached[op] = true;
    while (!open.empty()) {
      const std::int32_t op = open.back();
      open.pop_back();
      for (const std::int32_t other : (dependencies_.*next)[op]) {
        const bool on_side = late_side ? position_[other] >= peak_ : position_[other] <= peak_;
        if (!on_side || reached[other]) continue;
        reached[other] = true;
        open.push_back(other);
      }
    }
    return reached;
  }

  /// The position before the peak, but after all that the moved ops need, at which least is live.
  std::int32_t find_valley(const std::vector<char>& moved) const {
    std::int32_t earliest = 0;
    for (std::int32_t position = peak_; position < std::ssize(order_); ++position) {
      if (!moved[order_[position]]) continue;
      for (const std::int32_t needed : dependencies_.predecessors[order_[position]]) {
        if (!moved[needed]) earliest = std::max(earliest, position_[needed] + 1);
      }
    }
    std::int32_t valley = peak_;
    std::int64_t live_bytes = 0;  // relative to the position `earliest`
    std::int64_t lowest_bytes = 0;
    for (std::int32_t position = earliest; position < peak_; ++position) {
      if (position == earliest || live_bytes < lowest_bytes) {
        lowest_bytes = live_bytes;
        valley = position;
      }
      const std::int32_t op = order_[position];
      for (const Event& event : problem_.ops[op].events) {
        const std::int64_t size_bytes = problem_.tensors[event.tensor].size_bytes;
        if (event.kind == Event::Kind::kFree) {
          live_bytes -= size_bytes;
        } else if (timeline_.reuse_of[event.tensor] == kNoReuse) {
          live_bytes += size_bytes;
        }
      }
      for (const std::int32_t tensor : timeline_.frees_after[op]) live_bytes -= problem_.tensors[tensor].size_bytes;
    }
    return valley;
  }

  Order pull_before(const std::vector<char>& moved, std::int32_t target) const {
    Order result(order_.begin(), order_.begin() + target);
    for (std::int32_t position = peak_; position < std::ssize(order_); ++position) {
      if (moved[order_[position]]) result.push_back(order_[position]);
    }
    for (std::int32_t position = target; position < std::ssize(order_); ++position) {
      if (position < peak_ || !moved[order_[position]]) result.push_back(order_[position]);
    }
    return result;
  }

  Order push_behind_peak(const std::vector<char>& moved) const {
    Order result;
    for (std::int32_t position = 0; position <= peak_; ++position) {
      if (!moved[order_[position]]) result.push_back(order_[position]);
    }
    for (std::int32_t position = 0; position < peak_; ++position) {
      if (moved[order_[position]]) result.push_back(order_[position]);
    }
    result.insert(result.end(), order_.begin() + peak_ + 1, order_.end());
    return result;
  }

  const Problem& problem_;
  const Dependencies& dependencies_;
  const Order& order_;
  const Timeline& timeline_;
  std::vector<std::int32_t> position_;            ///< by op
  std::vector<std::int32_t> allocator_;           ///< by tensor
  std::vector<std::vector<std::int32_t>> users_;  ///< by tensor, in the order's order
  std::int32_t peak_ = 0;                         ///< position of the peak op
};

}  // namespace

std::vector<Order> find_relieving_orders(const Problem& problem, const Dependencies& dependencies, const Order& order,
                                         const Timeline& timeline, std::size_t max_moves) {
  if (timeline.peak_op < 0) return {};
  return MoveFinder(problem, dependencies, order, timeline).find(max_moves);
}

}  // namespace stowage::solver
