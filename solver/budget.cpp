// SPDX-License-Identifier: Apache-2.0
#include "solver/budget.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <random>
#include <utility>

#include "solver/order.h"
#include "solver/recompute.h"
#include "solver/repeat.h"

namespace stowage::solver {
namespace {

/// A choice and what it comes to.
struct Point {
  Dropped dropped;
  std::int64_t peak_bytes = 0;
  std::int64_t time_ns = 0;
};

/// Walks down from the peak without repeats, one limit after the other, and up again. At each, tensors are given up,
/// those first that take most off what is above the limit for the time it costs to make them again, until the limit
/// holds; then some are taken back and others tried, while that saves time. Every schedule on the way is a point of the
/// trade-off; on the way up, each limit begins with what the lower one came to.
class Descent {
 public:
  Descent(const Problem& problem, const std::vector<std::int32_t>& order, const BudgetLimits& limits)
      : limits_(limits), recomputation_(problem, order), now_{recomputation_.nothing_dropped(), 0, 0} {
    choices_ = recomputation_.droppable();
    choices_.insert(choices_.end(), recomputation_.keepable().begin(), recomputation_.keepable().end());
    measure(now_);
    peaks_ = built_.peak_bytes;
    record();
  }

  /// The trade-off: peaks fall, times rise.
  std::vector<Point> run() {
    constexpr int kLevels = 64;
    const std::int64_t start_bytes = now_.peak_bytes;
    const std::int64_t floor_bytes = *std::min_element(peaks_.begin(), peaks_.end());
    int level = 1;
    for (; level <= kLevels && !is_over(); ++level) {
      const std::int64_t limit_bytes = start_bytes - (start_bytes - floor_bytes) / kLevels * level;
      if (!descend(limit_bytes)) break;
      improve(limit_bytes, limits_.node_limit / 2 * level / kLevels);
    }
    for (; level > 0 && !is_over(); --level) {
      const std::int64_t limit_bytes = start_bytes - (start_bytes - floor_bytes) / kLevels * level;
      go_to(limit_bytes);
      improve(limit_bytes, placed_ + (limits_.node_limit - placed_) / level);
    }
    return std::move(frontier_);
  }

 private:
  struct Score {
    double gain = 0;  ///< bytes above the limit taken off, summed over executions, for each nanosecond
    std::int32_t tensor = 0;
    std::int64_t epoch = -1;  ///< of the state that it was measured in

    bool operator<(const Score& other) const { return gain != other.gain ? gain < other.gain : tensor > other.tensor; }
  };

  bool is_over() const { return placed_ >= limits_.node_limit || std::chrono::steady_clock::now() > limits_.deadline; }

  /// False where the choice is not legal.
  bool measure(Point& point) {
    recomputation_.build(point.dropped, built_);
    placed_ += std::ssize(built_.executions);
    if (built_.conflict >= 0) return false;
    point.peak_bytes = built_.largest_bytes;
    point.time_ns = built_.time_ns;
    return true;
  }

  double excess(const std::vector<std::int64_t>& peaks, std::int64_t limit_bytes) const {
    double sum = 0;
    for (const std::int64_t peak_bytes : peaks)
      sum += static_cast<double>(std::max<std::int64_t>(peak_bytes - limit_bytes, 0));
    return sum;
  }

  /// Gives tensors up until the limit holds. False, with the state as far as it came, where nothing helps any more.
  bool descend(std::int64_t limit_bytes) {
    std::priority_queue<Score> queue;
    double above = excess(peaks_, limit_bytes);
    for (const std::int32_t tensor : recomputation_.droppable()) {
      if (now_.dropped[tensor] != 0) continue;
      queue.push({gain_of_[tensor], tensor, -1});
    }
    Point tried;
    while (now_.peak_bytes > limit_bytes) {
      if (queue.empty() || is_over()) return false;
      const Score best = queue.top();
      queue.pop();
      tried.dropped = now_.dropped;
      tried.dropped[best.tensor] = 1;
      if (best.epoch != epoch_) {
        if (!measure(tried)) continue;
        const double taken = above - excess(built_.peak_bytes, limit_bytes);
        if (taken <= 0) continue;
        const double gain = taken / static_cast<double>(std::max<std::int64_t>(tried.time_ns - now_.time_ns, 1));
        gain_of_[best.tensor] = gain;
        queue.push({gain, best.tensor, epoch_});
        continue;
      }
      measure(tried);
      take(tried);
      above = excess(peaks_, limit_bytes);
    }
    return true;
  }

  void take(Point& point) {
    std::swap(now_, point);
    std::swap(peaks_, built_.peak_bytes);
    ++epoch_;
    record();
  }

  /// Keeps what has been given up without need, and tries other choices of a few.
  void improve(std::int64_t limit_bytes, std::int64_t node_limit) {
    std::vector<std::int32_t> dropped;
    for (const std::int32_t tensor : choices_) {
      if (now_.dropped[tensor] != recomputation_.nothing_dropped()[tensor]) dropped.push_back(tensor);
    }
    std::stable_sort(dropped.begin(), dropped.end(), [&](std::int32_t a, std::int32_t b) {
      return recomputation_.making_ns(a) > recomputation_.making_ns(b);
    });
    for (const std::int32_t tensor : dropped) {
      if (is_over() || placed_ > node_limit) break;
      try_flip(tensor, limit_bytes);
    }
    while (placed_ < node_limit && !is_over()) perturb(limit_bytes);
  }

  /// The fastest schedule so far within the limit.
  void go_to(std::int64_t limit_bytes) {
    for (const Point& point : frontier_) {
      if (point.peak_bytes > limit_bytes) continue;
      now_ = point;
      break;
    }
    measure(now_);
    peaks_ = built_.peak_bytes;
    ++epoch_;
  }

  bool try_flip(std::int32_t tensor, std::int64_t limit_bytes) {
    Point tried = now_;
    tried.dropped[tensor] ^= 1;
    if (!measure(tried)) return false;
    if (tried.peak_bytes > limit_bytes || tried.time_ns > now_.time_ns) return false;
    if (tried.time_ns == now_.time_ns && tried.peak_bytes >= now_.peak_bytes) return false;
    take(tried);
    return true;
  }

  /// Turns a few choices around and mends what that breaks; goes back where it saved nothing.
  void perturb(std::int64_t limit_bytes) {
    const Point before = now_;
    const std::vector<std::int64_t> peaks_before = peaks_;
    Point tried = now_;
    const int flips = 1 + static_cast<int>(random_() % 3);
    for (int flip = 0; flip < flips; ++flip) tried.dropped[choices_[random_() % choices_.size()]] ^= 1;
    bool better = measure(tried);
    if (better) {
      take(tried);
      better = descend(limit_bytes) && now_.time_ns <= before.time_ns;
    }
    if (better) return;
    now_ = before;
    peaks_ = peaks_before;
    ++epoch_;
  }

  /// Enters the state into the trade-off, if no other is as low and as fast.
  void record() {
    const auto fits = [](const Point& point, std::int64_t peak_bytes) { return point.peak_bytes > peak_bytes; };
    auto at = std::lower_bound(frontier_.begin(), frontier_.end(), now_.peak_bytes, fits);
    // Those from `at` on have at most this peak: one of them that takes no longer makes this one worthless.
    if (at != frontier_.end() && at->time_ns <= now_.time_ns) return;
    if (at != frontier_.end() && at->peak_bytes == now_.peak_bytes) at = frontier_.erase(at);
    at = frontier_.insert(at, now_);
    auto first = at;
    while (first != frontier_.begin() && std::prev(first)->time_ns >= at->time_ns) --first;
    frontier_.erase(first, at);
  }

  const BudgetLimits& limits_;
  Recomputation recomputation_;
  std::vector<std::int32_t> choices_;
  Recomputed built_;
  Point now_;
  std::vector<std::int64_t> peaks_;  ///< by execution of `now_`
  std::vector<Point> frontier_;      ///< peaks fall, times rise
  std::vector<double> gain_of_ =
      std::vector<double>(recomputation_.nothing_dropped().size(), std::numeric_limits<double>::max());
  std::int64_t epoch_ = 0;
  std::int64_t placed_ = 0;
  std::mt19937 random_;  // NOLINT(cert-msc51-cpp): the same input gives the same plan
};

/// What all answers about a problem begin with.
struct Start {
  std::vector<std::int32_t> order;
  std::vector<Point> frontier;
  std::int64_t time_ns = 0;  ///< of the step without repeats
};

/// What a point of the trade-off comes to when its executions are put into the best order.
Budgeted finish(const Problem& problem, const Start& start, const Point& point, const BudgetLimits& limits) {
  Recomputation recomputation(problem, start.order);
  Recomputed built;
  recomputation.build(point.dropped, built);
  const Repeated repeated = repeat(problem, built.executions);
  const Order best = find_order(repeated.problem, {.deadline = limits.deadline, .node_limit = 100'000});
  Budgeted budgeted;
  for (const std::int32_t execution : best.ops) {
    budgeted.executions.push_back(repeated.op_of[execution]);
    budgeted.time_ns += problem.ops[repeated.op_of[execution]].duration_ns;
  }
  budgeted.peak_bytes = best.peak_bytes;
  budgeted.least_peak_bytes = std::min(best.peak_bytes, start.frontier.back().peak_bytes);
  budgeted.bound_time_ns = start.time_ns;
  return budgeted;
}

Start descend(const Problem& problem, const BudgetLimits& limits) {
  check(problem);
  Start start;
  for (const Op& op : problem.ops) start.time_ns += op.duration_ns;
  start.order = find_order(problem, {.deadline = limits.deadline}).ops;
  start.frontier = Descent(problem, start.order, limits).run();
  return start;
}

}  // namespace

Budgeted fit(const Problem& problem, const BudgetLimits& limits) {
  const Start start = descend(problem, limits);
  const std::vector<Point>& frontier = start.frontier;
  auto chosen = frontier.begin();
  constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
  if (limits.peak_bytes != kNone) {
    while (chosen + 1 != frontier.end() && chosen->peak_bytes > limits.peak_bytes) ++chosen;
  } else {
    while (chosen + 1 != frontier.end() && (chosen + 1)->time_ns <= limits.time_ns) ++chosen;
  }
  Budgeted budgeted = finish(problem, start, *chosen, limits);
  if (limits.peak_bytes != kNone && budgeted.peak_bytes > limits.peak_bytes) budgeted.status = Status::kTimedOut;
  return budgeted;
}

std::vector<Budgeted> find_trade_off(const Problem& problem, int points, const BudgetLimits& limits) {
  const Start start = descend(problem, limits);
  const std::int64_t most_bytes = start.frontier.front().peak_bytes;
  const std::int64_t least_bytes = start.frontier.back().peak_bytes;
  std::vector<Budgeted> rows;
  auto chosen = start.frontier.begin();
  for (int point = 0; point < points; ++point) {
    const std::int64_t limit_bytes = most_bytes - (most_bytes - least_bytes) / std::max(points - 1, 1) * point;
    while (chosen + 1 != start.frontier.end() && chosen->peak_bytes > limit_bytes) ++chosen;
    rows.push_back(finish(problem, start, *chosen, limits));
  }
  return rows;
}

}  // namespace stowage::solver
