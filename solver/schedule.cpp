// SPDX-License-Identifier: Apache-2.0
#include "solver/schedule.h"

#include <algorithm>
#include <limits>
#include <set>

namespace stowage::solver {

/// One schedule in the making.
class ScheduleState {
 public:
  ScheduleState(const ListScheduler& model, Direction direction, Rule rule, const std::vector<std::int32_t>& reference)
      : model_(model),
        backward_(direction == Direction::kBackward),
        rule_(rule),
        rank_(reference.size()),
        waits_for_(reference.size()),
        done_(reference.size()),
        growth_bytes_(reference.size()),
        users_left_(model.users_.size()),
        live_bytes_(model.persistent_bytes_ + (backward_ ? model.output_bytes_ : 0)) {
    const auto op_count = static_cast<std::int32_t>(reference.size());
    for (std::int32_t position = 0; position < op_count; ++position) {
      rank_[reference[position]] = backward_ ? op_count - 1 - position : position;
    }
    for (std::size_t tensor = 0; tensor < users_left_.size(); ++tensor) {
      users_left_[tensor] = static_cast<std::int32_t>(model.users_[tensor].size());
    }
    for (std::int32_t op = 0; op < op_count; ++op) {
      growth_bytes_[op] = first_growth_bytes(op);
      waits_for_[op] = static_cast<std::int32_t>(before(op).size());
      if (waits_for_[op] == 0) ready_.insert(key(op));
    }
  }

  std::vector<std::int32_t> run(std::int64_t limit_bytes) {
    std::vector<std::int32_t> order;
    order.reserve(rank_.size());
    while (!ready_.empty()) {
      const std::int32_t op = choose(limit_bytes);
      ready_.erase(key(op));
      order.push_back(op);
      take(op);
    }
    if (backward_) std::reverse(order.begin(), order.end());
    return order;
  }

 private:
  /// What ready ops are sorted by: class or growth in bytes, rank in the reference, op.
  struct Key {
    std::int64_t priority;
    std::int32_t rank;
    std::int32_t op;
    auto operator<=>(const Key&) const = default;
  };

  const std::vector<std::int32_t>& before(std::int32_t op) const {
    return backward_ ? model_.dependencies_.successors[op] : model_.dependencies_.predecessors[op];
  }
  const std::vector<std::int32_t>& behind(std::int32_t op) const {
    return backward_ ? model_.dependencies_.predecessors[op] : model_.dependencies_.successors[op];
  }

  /// By how much live memory grows over the op if it ran first of all.
  std::int64_t first_growth_bytes(std::int32_t op) const {
    std::int64_t growth_bytes = model_.inner_sums_[op].growth_bytes * (backward_ ? -1 : 1);
    for (const std::int32_t tensor : model_.uses_[op]) {
      if (backward_) growth_bytes += model_.size_bytes_[tensor];
      if (!backward_ && users_left_[tensor] == 1) growth_bytes -= model_.size_bytes_[tensor];
    }
    return growth_bytes;
  }

  /// Whether the op would be the last to use one of the inputs that its output may reuse.
  bool reuses(std::int32_t op) const {
    const std::vector<std::int32_t>& inputs = model_.reusable_[op];
    return std::any_of(inputs.begin(), inputs.end(), [this](std::int32_t input) {
      return users_left_[input] == (backward_ ? std::ssize(model_.users_[input]) : 1);
    });
  }

  std::int64_t peak_bytes(std::int32_t op) const {
    const InnerSums& inner = model_.inner_sums_[op];
    const std::int64_t inner_bytes = reuses(op) ? inner.reusing_peak_bytes : inner.peak_bytes;
    return live_bytes_ + inner_bytes + (backward_ ? growth_bytes_[op] : 0);
  }

  Key key(std::int32_t op) const {
    const std::int64_t growth_bytes = growth_bytes_[op];
    std::int64_t priority = growth_bytes;
    if (rule_ == Rule::kReleaseFirst) priority = std::min<std::int64_t>(growth_bytes, 1);
    if (rule_ == Rule::kAnyRelease) priority = growth_bytes <= 0 ? 0 : 1;
    return {priority, rank_[op], op};
  }

  /// The first ready op that fits, else the one with the lowest peak.
  std::int32_t choose(std::int64_t limit_bytes) const {
    constexpr int kLongestScan = 256;  // keeps wide graphs from taking quadratic time
    std::int32_t best = ready_.begin()->op;
    std::int64_t best_bytes = std::numeric_limits<std::int64_t>::max();
    int scanned = 0;
    for (const Key& candidate : ready_) {
      const std::int64_t bytes = peak_bytes(candidate.op);
      if (bytes <= limit_bytes) return candidate.op;
      if (bytes < best_bytes) {
        best = candidate.op;
        best_bytes = bytes;
      }
      if (++scanned == kLongestScan) break;
    }
    return best;
  }

  void take(std::int32_t op) {
    done_[op] = true;
    live_bytes_ += growth_bytes_[op];
    for (const std::int32_t tensor : model_.uses_[op]) {
      const std::vector<std::int32_t>& users = model_.users_[tensor];
      // Forward, the last user frees the tensor; backward, the first one pays for it and the others do not.
      const bool changes = backward_ ? users_left_[tensor] == std::ssize(users) : users_left_[tensor] == 2;
      --users_left_[tensor];
      if (!changes) continue;
      for (const std::int32_t user : users) {
        if (!done_[user]) shrink_growth(user, model_.size_bytes_[tensor]);
      }
    }
    for (const std::int32_t next : behind(op)) {
      if (--waits_for_[next] == 0) ready_.insert(key(next));
    }
  }

  void shrink_growth(std::int32_t op, std::int64_t bytes) {
    const bool is_ready = waits_for_[op] == 0;
    if (is_ready) ready_.erase(key(op));
    growth_bytes_[op] -= bytes;
    if (is_ready) ready_.insert(key(op));
  }

  const ListScheduler& model_;
  const bool backward_;
  const Rule rule_;
  std::vector<std::int32_t> rank_;          ///< by op: position in the reference, from the end that is built from
  std::vector<std::int32_t> waits_for_;     ///< by op: dependencies that have not run
  std::vector<char> done_;                  ///< by op
  std::vector<std::int64_t> growth_bytes_;  ///< by op: what live memory would grow by if it ran now
  std::vector<std::int32_t> users_left_;    ///< by tensor
  std::int64_t live_bytes_;
  std::set<Key> ready_;
};

ListScheduler::ListScheduler(const Problem& problem, const Dependencies& dependencies)
    : dependencies_(dependencies),
      uses_(find_uses(problem)),
      users_(problem.tensors.size()),
      reusable_(problem.ops.size()),
      inner_sums_(find_inner_sums(problem)) {
  for (const Tensor& tensor : problem.tensors) {
    size_bytes_.push_back(tensor.size_bytes);
    if (tensor.persistent) {
      persistent_bytes_ += tensor.size_bytes;
    } else if (tensor.output) {
      output_bytes_ += tensor.size_bytes;
    }
  }
  for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
    for (const Reuse& reuse : problem.ops[op].reuses) reusable_[op].push_back(reuse.input);
    for (const std::int32_t tensor : uses_[op]) users_[tensor].push_back(op);
  }
}

std::vector<std::int32_t> ListScheduler::schedule(Direction direction, Rule rule,
                                                  const std::vector<std::int32_t>& reference,
                                                  std::int64_t limit_bytes) const {
  return ScheduleState(*this, direction, rule, reference).run(limit_bytes);
}

}  // namespace stowage::solver
