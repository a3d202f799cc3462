// SPDX-License-Identifier: Apache-2.0
#include "solver/bound.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "solver/lifetimes.h"

namespace stowage::solver {
namespace {

/// The life of each tensor as the ops see it.
struct Lives {
  explicit Lives(const Problem& problem) : allocator(problem.tensors.size(), -1), users(problem.tensors.size()) {
    for (const Tensor& tensor : problem.tensors) persistent_bytes += tensor.persistent ? tensor.size_bytes : 0;
    const auto uses = find_uses(problem);
    for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
      for (const Event& event : problem.ops[op].events) allocator[event.tensor] = op;
      for (const std::int32_t tensor : uses[op]) {
        if (allocator[tensor] != op) users[tensor].push_back(op);
      }
    }
  }

  /// Whether one of the op's candidates has no user of which `runs_after` the op is true.
  template <typename RunsAfter>
  bool may_reuse(const Op& op, RunsAfter runs_after) const {
    return std::any_of(op.reuses.begin(), op.reuses.end(), [&](const Reuse& candidate) {
      const std::vector<std::int32_t>& of_input = users[candidate.input];
      return std::none_of(of_input.begin(), of_input.end(), runs_after);
    });
  }

  std::int64_t persistent_bytes = 0;
  std::vector<std::int32_t> allocator;           ///< by tensor: -1 if persistent
  std::vector<std::vector<std::int32_t>> users;  ///< by tensor: ops other than the allocating one
};

class BoundFinder {
 public:
  BoundFinder(const Problem& problem, const Dependencies& dependencies)
      : problem_(problem), dependencies_(dependencies), lives_(problem) {}

  OrderBound find() {
    OrderBound bound{.bytes = lives_.persistent_bytes, .op = -1, .tensors = {}, .proof = Proof::kMustLive};
    ClosureBlock block;
    for (std::int32_t first_op = 0; first_op < std::ssize(problem_.ops); first_op += 64) {
      find_closure(dependencies_, first_op, block);
      examine(block, bound);
    }
    if (bound.op >= 0) name_tensors(bound);
    return bound;
  }

 private:
  /// Bit k: the tensor surely lives while op `first_op + k`, which is not its allocating op, runs.
  std::uint64_t must_live(const ClosureBlock& block, std::int32_t tensor) const {
    const std::int32_t allocator = lives_.allocator[tensor];
    if (allocator < 0) return 0;
    if (problem_.tensors[tensor].output) return block.before[allocator];
    std::uint64_t until_last_use = 0;
    for (const std::int32_t user : lives_.users[tensor]) {
      until_last_use |= block.after[user];
      const std::int32_t k = user - block.first_op;
      if (k >= 0 && k < 64) until_last_use |= std::uint64_t{1} << k;
    }
    return until_last_use & block.before[allocator];
  }

  /// Of an op of the block; with reuse unless every candidate is surely used again.
  InnerPeak inner_peak(const ClosureBlock& block, std::int32_t op) const {
    const std::uint64_t bit = std::uint64_t{1} << (op - block.first_op);
    return find_inner_peak(problem_, problem_.ops[op], lives_.may_reuse(problem_.ops[op], [&](std::int32_t user) {
      return (block.after[user] & bit) != 0;
    }));
  }

  void examine(const ClosureBlock& block, OrderBound& bound) const {
    std::array<std::int64_t, 64> live_bytes{};
    for (std::int32_t tensor = 0; tensor < std::ssize(problem_.tensors); ++tensor) {
      for (std::uint64_t bits = must_live(block, tensor); bits != 0; bits &= bits - 1) {
        live_bytes[std::countr_zero(bits)] += problem_.tensors[tensor].size_bytes;
      }
    }
    const std::int32_t end_op = std::min(block.first_op + 64, static_cast<std::int32_t>(problem_.ops.size()));
    for (std::int32_t op = block.first_op; op < end_op; ++op) {
      const std::int64_t bytes =
          lives_.persistent_bytes + live_bytes[op - block.first_op] + inner_peak(block, op).bytes;
      if (bytes > bound.bytes) bound = {.bytes = bytes, .op = op, .tensors = {}, .proof = Proof::kMustLive};
    }
  }

  void name_tensors(OrderBound& bound) const {
    ClosureBlock block;
    find_closure(dependencies_, bound.op, block);
    bound.tensors = inner_peak(block, bound.op).tensors;
    for (std::int32_t tensor = 0; tensor < std::ssize(problem_.tensors); ++tensor) {
      if ((must_live(block, tensor) & 1) != 0) bound.tensors.push_back(tensor);
    }
    std::sort(bound.tensors.begin(), bound.tensors.end());
  }

  const Problem& problem_;
  const Dependencies& dependencies_;
  const Lives lives_;
};

/// Must-live sums under assumed edges.
class Prober {
 public:
  Prober(const Problem& problem, const Dependencies& dependencies, const std::vector<std::int32_t>& order)
      : problem_(problem),
        dependencies_(dependencies),
        lives_(problem),
        position_(order.size()),
        assumed_{.predecessors = std::vector<std::vector<std::int32_t>>(order.size()),
                 .successors = std::vector<std::vector<std::int32_t>>(order.size())},
        surely_live_(problem.tensors.size()) {
    const Timeline timeline = play(problem, order);
    peak_bytes_ = timeline.peak_bytes;
    op_ = timeline.peak_op;
    for (std::int32_t position = 0; position < std::ssize(order); ++position) position_[order[position]] = position;
  }

  OrderBound sharpen(const OrderBound& known) {
    constexpr int kRounds = 3;  // what one round learns may help the next; a fourth never did
    OrderBound best = known;
    for (int round = 0; round < kRounds && op_ >= 0; ++round) {
      OrderBound bound{.bytes = 0, .op = op_, .tensors = {}, .proof = Proof::kContradiction};
      bound.bytes = std::min(peak_bytes_, must_live_bytes(op_, &bound.tensors));
      if (bound.bytes > best.bytes) best = bound;
      if (best.bytes == peak_bytes_) break;
      for (const std::int32_t tensor : find_suspects(bound.tensors)) probe(tensor);
    }
    return best;
  }

 private:
  static constexpr std::int64_t kImpossible = std::numeric_limits<std::int64_t>::max();

  void assume(std::int32_t earlier, std::int32_t later) {
    assumed_.successors[earlier].push_back(later);
    assumed_.predecessors[later].push_back(earlier);
  }
  void forget(std::int32_t earlier, std::int32_t later) {
    assumed_.successors[earlier].pop_back();
    assumed_.predecessors[later].pop_back();
  }

  std::vector<char> reach(std::int32_t start, std::vector<std::vector<std::int32_t>> Dependencies::*next) const {
    std::vector<char> reached(problem_.ops.size());
    std::vector<std::int32_t> open{start};
    while (!open.empty()) {
      const std::int32_t op = open.back();
      open.pop_back();
      for (const Dependencies* edges : {&dependencies_, &assumed_}) {
        for (const std::int32_t other : (edges->*next)[op]) {
          if (!reached[other]) open.push_back(other);
          reached[other] = true;
        }
      }
    }
    return reached;
  }

  /// What must live while `op` runs; `kImpossible` if the assumed edges make a cycle through it.
  std::int64_t must_live_bytes(std::int32_t op, std::vector<std::int32_t>* tensors = nullptr) const {
    const std::vector<char> before = reach(op, &Dependencies::predecessors);
    std::vector<char> not_before = reach(op, &Dependencies::successors);
    if (not_before[op]) return kImpossible;
    const InnerPeak inner_peak =
        find_inner_peak(problem_, problem_.ops[op],
                        lives_.may_reuse(problem_.ops[op], [&](std::int32_t user) { return not_before[user] != 0; }));
    not_before[op] = true;
    std::int64_t bytes = lives_.persistent_bytes + inner_peak.bytes;
    if (tensors != nullptr) *tensors = inner_peak.tensors;
    for (std::int32_t tensor = 0; tensor < std::ssize(problem_.tensors); ++tensor) {
      const std::int32_t allocator = lives_.allocator[tensor];
      if (allocator < 0 || allocator == op) continue;
      const std::vector<std::int32_t>& users = lives_.users[tensor];
      const bool is_live =
          (op == op_ && surely_live_[tensor]) ||
          (before[allocator] &&
           (problem_.tensors[tensor].output ||
            std::any_of(users.begin(), users.end(), [&](std::int32_t user) { return not_before[user] != 0; })));
      if (!is_live) continue;
      bytes += problem_.tensors[tensor].size_bytes;
      if (tensors != nullptr) tensors->push_back(tensor);
    }
    if (tensors != nullptr) std::sort(tensors->begin(), tensors->end());
    return bytes;
  }

  /// The largest tensors that live at the peak without need, as far as known.
  std::vector<std::int32_t> find_suspects(const std::vector<std::int32_t>& must_live) const {
    constexpr std::size_t kMostSuspects = 64;
    const std::int32_t peak_position = position_[op_];
    std::vector<std::int32_t> suspects;
    for (std::int32_t tensor = 0; tensor < std::ssize(problem_.tensors); ++tensor) {
      const std::int32_t allocator = lives_.allocator[tensor];
      if (allocator < 0 || position_[allocator] >= peak_position || problem_.tensors[tensor].size_bytes == 0) continue;
      const std::vector<std::int32_t>& users = lives_.users[tensor];
      const bool lives =
          problem_.tensors[tensor].output ||
          std::any_of(users.begin(), users.end(), [&](std::int32_t user) { return position_[user] > peak_position; });
      if (lives && !std::binary_search(must_live.begin(), must_live.end(), tensor)) suspects.push_back(tensor);
    }
    std::stable_sort(suspects.begin(), suspects.end(), [this](std::int32_t left, std::int32_t right) {
      return problem_.tensors[left].size_bytes > problem_.tensors[right].size_bytes;
    });
    if (suspects.size() > kMostSuspects) suspects.resize(kMostSuspects);
    return suspects;
  }

  void probe(std::int32_t tensor) {
    const std::int32_t allocator = lives_.allocator[tensor];
    const std::vector<std::int32_t>& users = lives_.users[tensor];
    const auto reaches_peak = [&](const std::vector<std::int32_t>& ops) {
      return must_live_bytes(op_) >= peak_bytes_ || std::any_of(ops.begin(), ops.end(), [this](std::int32_t op) {
               return must_live_bytes(op) >= peak_bytes_;
             });
    };

    bool cannot_be_freed_before = problem_.tensors[tensor].output;
    if (!cannot_be_freed_before) {
      for (const std::int32_t user : users) assume(user, op_);
      cannot_be_freed_before = reaches_peak(users);
      for (const std::int32_t user : users) forget(user, op_);
    }
    assume(op_, allocator);
    const bool cannot_be_allocated_after = reaches_peak({allocator}) || reaches_peak(users);
    forget(op_, allocator);

    if (cannot_be_allocated_after) assume(allocator, op_);
    if (cannot_be_freed_before && users.size() == 1) assume(op_, users.front());
    surely_live_[tensor] = cannot_be_freed_before && cannot_be_allocated_after;
  }

  const Problem& problem_;
  const Dependencies& dependencies_;
  const Lives lives_;
  std::int64_t peak_bytes_ = 0;
  std::int32_t op_ = -1;                ///< where the order meets its peak
  std::vector<std::int32_t> position_;  ///< by op
  Dependencies assumed_;                ///< edges that any order below the peak has
  std::vector<char> surely_live_;       ///< by tensor: lives at `op_` in any order below the peak
};

}  // namespace

OrderBound find_order_bound(const Problem& problem, const Dependencies& dependencies) {
  return BoundFinder(problem, dependencies).find();
}

OrderBound sharpen_order_bound(const Problem& problem, const Dependencies& dependencies,
                               const std::vector<std::int32_t>& order, const OrderBound& known) {
  return Prober(problem, dependencies, order).sharpen(known);
}

}  // namespace stowage::solver
