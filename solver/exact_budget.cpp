// SPDX-License-Identifier: Apache-2.0
#include "solver/exact_budget.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "solver/lifetimes.h"
#include "solver/moment.h"
#include "solver/time_bound.h"

namespace stowage::solver {
namespace {

using Set = std::uint64_t;  // of ops, or of values: bits are ids
constexpr std::int32_t kMostIds = 64;

Set bit(std::int32_t id) { return Set{1} << id; }
bool holds(Set all, Set part) { return (part & ~all) == 0; }

/// A value is a tensor as it is between two writes. Persistent tensors are none.
struct OpValues {
  Set predecessors = 0;  ///< ops
  Set overwriters = 0;   ///< ops after which it cannot run again
  Set takes = 0;
  Set makes = 0;
  Set ends = 0;             ///< of what it takes, what it writes to
  Set own = 0;              ///< all values of what it allocates
  std::vector<Set> reuses;  ///< of what it takes, each value whose memory an output may take
  InnerSums inner;
  bool may_repeat = false;
  bool is_view = false;
};

/// A problem as the search sees it.
struct Values {
  Values(const Problem& problem, const Dependencies& dependencies);

  bool is_small_enough() const { return std::ssize(ops) <= kMostIds && std::ssize(size_bytes) <= kMostIds; }
  std::int64_t bytes_of(Set values) const {
    std::int64_t sum = 0;
    for (; values != 0; values &= values - 1) sum += size_bytes[std::countr_zero(values)];
    return sum;
  }

  std::vector<OpValues> ops;
  std::vector<std::int64_t> size_bytes;   ///< by value
  std::vector<std::int64_t> duration_ns;  ///< by op
  std::int64_t persistent_bytes = 0;
  Set outputs = 0;
};

Values::Values(const Problem& problem, const Dependencies& dependencies) : ops(problem.ops.size()) {
  const Makers makers(problem);
  const std::vector<InnerSums> inner_sums = find_inner_sums(problem);
  std::vector<std::int32_t> first_value(problem.tensors.size());  // by tensor: those after its writes follow
  for (std::size_t tensor = 0; tensor < problem.tensors.size(); ++tensor) {
    first_value[tensor] = static_cast<std::int32_t>(size_bytes.size());
    if (problem.tensors[tensor].persistent) {
      persistent_bytes += problem.tensors[tensor].size_bytes;
    } else {
      size_bytes.insert(size_bytes.end(), makers.writers[tensor].size() + 1, problem.tensors[tensor].size_bytes);
    }
  }
  if (!is_small_enough()) return;
  const auto value_at = [&](std::int32_t tensor, std::int32_t op) {
    const std::vector<std::int32_t>& writers = makers.writers[tensor];
    return first_value[tensor] +
           static_cast<std::int32_t>(std::lower_bound(writers.begin(), writers.end(), op) - writers.begin());
  };
  for (std::int32_t op_id = 0; op_id < std::ssize(ops); ++op_id) {
    const Op& op = problem.ops[op_id];
    OpValues& values = ops[op_id];
    duration_ns.push_back(op.duration_ns);
    for (const std::int32_t earlier : dependencies.predecessors[op_id]) values.predecessors |= bit(earlier);
    for (const std::int32_t later : makers.overwriters[op_id]) values.overwriters |= bit(later);
    values.may_repeat = makers.may_repeat[op_id];
    values.is_view = makers.is_view[op_id];
    values.inner = inner_sums[op_id];
    for (const std::int32_t tensor : makers.inputs[op_id]) {
      const std::int32_t value = value_at(tensor, op_id);
      values.takes |= bit(value);
      if (std::find(op.writes.begin(), op.writes.end(), tensor) == op.writes.end()) continue;
      values.ends |= bit(value);
      values.makes |= bit(value + 1);
    }
    for (const Event& event : op.events) {
      const Set made = bit(first_value[event.tensor]);
      if (event.kind == Event::Kind::kFree) {
        values.makes &= ~made;
        continue;
      }
      values.makes |= made;
      for (std::int32_t write = 0; write <= std::ssize(makers.writers[event.tensor]); ++write) {
        const Set value = bit(first_value[event.tensor] + write);
        values.own |= value;
        if (problem.tensors[event.tensor].output) outputs |= value;
      }
    }
    for (const Reuse& reuse : op.reuses) values.reuses.push_back(bit(value_at(reuse.input, op_id)));
  }
}

class Search {
 public:
  Search(const Values& values, std::int64_t limit_bytes, std::int64_t node_limit)
      : values_(values), limit_bytes_(limit_bytes), node_limit_(node_limit) {
    for (std::size_t op = 0; op < values.ops.size(); ++op) all_ |= bit(static_cast<std::int32_t>(op));
  }

  ExactBudget run() {
    if (values_.persistent_bytes > limit_bytes_) return {.executions = {}, .time_ns = 0, .status = Status::kInfeasible};
    add({.done = with_views(0), .live = 0, .time_ns = 0, .from = -1, .op = -1});
    while (!open_.empty()) {
      if (std::ssize(states_) > node_limit_) return {};
      const std::int32_t id = open_.top().id;
      open_.pop();
      const State state = states_[id];
      if (is_worthless(state)) continue;
      if (state.done == all_) return answer(id);
      left_[state.done].push_back(state.live);
      for (std::int32_t op = 0; op < std::ssize(values_.ops); ++op) try_op(state, id, op);
    }
    return {.executions = {}, .time_ns = 0, .status = Status::kInfeasible};
  }

  /// With no limit between the old one and this would anything have been different.
  std::int64_t next_limit_bytes() const { return next_limit_bytes_; }

 private:
  struct State {
    Set done = 0;              ///< ops
    Set live = 0;              ///< values
    std::int64_t time_ns = 0;  ///< of repeats
    std::int32_t from = -1;    ///< state
    std::int32_t op = -1;      ///< that led here
  };
  struct Open {
    std::int64_t time_ns = 0;
    std::int32_t ops_left = 0;
    std::int32_t id = 0;

    bool operator<(const Open& other) const {
      return std::tie(time_ns, ops_left, id) > std::tie(other.time_ns, other.ops_left, other.id);
    }
  };

  /// And the views that can be made then, which take neither time nor room.
  Set with_views(Set done) const {
    for (std::int32_t op = 0; op < std::ssize(values_.ops); ++op) {
      if (values_.ops[op].is_view && holds(done, values_.ops[op].predecessors)) done |= bit(op);
    }
    return done;
  }

  void try_op(const State& state, std::int32_t id, std::int32_t op_id) {
    const OpValues& op = values_.ops[op_id];
    const bool again = (state.done & bit(op_id)) != 0;
    if (!holds(state.live, op.takes)) return;
    if (again) {
      const bool helps = (op.makes & ~state.live & useful(state.done)) != 0;
      if (!op.may_repeat || (op.overwriters & state.done) != 0 || !helps) return;
    } else if (!holds(state.done, op.predecessors)) {
      return;
    }
    State next{.done = with_views(state.done | bit(op_id)),
               .live = 0,
               .time_ns = state.time_ns + (again ? values_.duration_ns[op_id] : 0),
               .from = id,
               .op = op_id};
    // An earlier making of what it makes has been used for the last time.
    const Set live = state.live & ~op.own;
    run(next, op, live, op.inner.peak_bytes, /*reused=*/0);
    for (const Set reused : op.reuses) run(next, op, live, op.inner.reusing_peak_bytes, reused);
  }

  void run(State& next, const OpValues& op, Set live, std::int64_t inner_peak_bytes, Set reused) {
    const Set needed = op.takes | (live & values_.outputs);
    const std::int64_t least_bytes = values_.persistent_bytes + values_.bytes_of(needed) + inner_peak_bytes;
    if (least_bytes > limit_bytes_) {
      next_limit_bytes_ = std::min(next_limit_bytes_, least_bytes);
      return;
    }
    std::vector<std::int32_t> others;
    for (Set rest = live & ~needed; rest != 0; rest &= rest - 1) others.push_back(std::countr_zero(rest));
    std::stable_sort(others.begin(), others.end(), [this](std::int32_t left, std::int32_t right) {
      return values_.size_bytes[left] > values_.size_bytes[right];
    });
    const auto leave = [&](Set kept) {
      next.live = ((kept & ~op.ends & ~reused) | op.makes) & (useful(next.done) | values_.outputs);
      add(next);
    };
    give_up(others, 0, live, least_bytes + values_.bytes_of(live & ~needed) - limit_bytes_, leave);
  }

  /// Calls `leave` with what is kept, for all ways to give up enough and no more. Since the largest go first, no value
  /// that has been given up could stay.
  template <typename Leave>
  void give_up(const std::vector<std::int32_t>& values, std::size_t first, Set kept, std::int64_t excess_bytes,
               const Leave& leave) {
    if (excess_bytes <= 0) return leave(kept);
    next_limit_bytes_ = std::min(next_limit_bytes_, limit_bytes_ + excess_bytes);
    for (std::size_t next = first; next < values.size(); ++next) {
      const std::int64_t size_bytes = values_.size_bytes[values[next]];
      if (size_bytes > 0) give_up(values, next + 1, kept & ~bit(values[next]), excess_bytes - size_bytes, leave);
    }
  }

  /// Values that some op may still take.
  Set useful(Set done) {
    const auto [known, is_new] = useful_.try_emplace(done, 0);
    Set& values = known->second;
    if (!is_new) return values;
    for (Set before = ~values; before != values;) {
      before = values;
      for (std::int32_t op_id = 0; op_id < std::ssize(values_.ops); ++op_id) {
        const OpValues& op = values_.ops[op_id];
        const bool may_run =
            (done & bit(op_id)) == 0 || (op.may_repeat && (op.overwriters & done) == 0 && (op.makes & values) != 0);
        if (may_run) values |= op.takes;
      }
    }
    return values;
  }

  bool is_worthless(const State& state) const {
    const auto left = left_.find(state.done);
    return left != left_.end() && std::any_of(left->second.begin(), left->second.end(),
                                              [&state](Set live) { return holds(live, state.live); });
  }

  void add(const State& state) {
    if (is_worthless(state)) return;
    open_.push({.time_ns = state.time_ns,
                .ops_left = std::popcount(all_ & ~state.done),
                .id = static_cast<std::int32_t>(states_.size())});
    states_.push_back(state);
  }

  ExactBudget answer(std::int32_t id) const {
    ExactBudget found{.executions = {}, .time_ns = 0, .status = Status::kOptimal};
    for (; id >= 0; id = states_[id].from) {
      const auto& [done, live, time_ns, from, op] = states_[id];
      Set views = from < 0 ? done : done & ~states_[from].done & ~bit(op);
      for (; views != 0; views &= ~bit(found.executions.back())) {
        found.executions.push_back(kMostIds - 1 - std::countl_zero(views));
      }
      if (op >= 0) found.executions.push_back(op);
    }
    std::reverse(found.executions.begin(), found.executions.end());
    for (const std::int32_t op : found.executions) found.time_ns += values_.duration_ns[op];
    return found;
  }

  const Values& values_;
  const std::int64_t limit_bytes_;
  const std::int64_t node_limit_;
  Set all_ = 0;
  std::int64_t next_limit_bytes_ = std::numeric_limits<std::int64_t>::max();
  std::vector<State> states_;
  std::priority_queue<Open> open_;
  std::unordered_map<Set, std::vector<Set>> left_;  ///< by ops done: what lived in states that were left
  std::unordered_map<Set, Set> useful_;             ///< by ops done
};

}  // namespace

ExactBudget search_repeats(const Problem& problem, const Dependencies& dependencies, std::int64_t peak_bytes,
                           std::int64_t node_limit) {
  const Values values(problem, dependencies);
  return values.is_small_enough() ? Search(values, peak_bytes, node_limit).run() : ExactBudget{};
}

std::optional<std::int64_t> search_least_peak(const Problem& problem, const Dependencies& dependencies,
                                              std::int64_t node_limit) {
  const Values values(problem, dependencies);
  if (!values.is_small_enough()) return std::nullopt;
  std::int64_t limit_bytes = TimeBounds(problem, dependencies).least_peak_bytes();
  while (true) {
    Search search(values, limit_bytes, node_limit);
    const Status status = search.run().status;
    if (status == Status::kOptimal) return limit_bytes;
    if (status == Status::kTimedOut) return std::nullopt;
    limit_bytes = search.next_limit_bytes();
  }
}

}  // namespace stowage::solver
