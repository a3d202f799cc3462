// SPDX-License-Identifier: Apache-2.0
#include "solver/descent.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <queue>
#include <utility>

namespace stowage::solver {
namespace {

constexpr std::int64_t kMostSchedules = 100'000;

/// What is above the limit, summed over executions.
double excess(const std::vector<std::int64_t>& peaks, std::int64_t limit_bytes) {
  double sum = 0;
  for (const std::int64_t peak_bytes : peaks)
    sum += static_cast<double>(std::max<std::int64_t>(peak_bytes - limit_bytes, 0));
  return sum;
}

}  // namespace

Descent::Descent(const Problem& problem, const std::vector<std::int32_t>& order, const BudgetLimits& limits)
    : limits_(limits),
      node_limit_(std::min(limits.node_limit, kMostSchedules * std::ssize(problem.ops))),
      recomputation_(problem, order, limits),
      now_{recomputation_.nothing_dropped(), 0, 0} {
  for (const std::int32_t tensor : recomputation_.droppable()) choices_.push_back({tensor, kDropped});
  for (const std::int32_t tensor : recomputation_.copyable()) choices_.push_back({tensor, kCopied});
  giving_up_ = static_cast<std::int32_t>(choices_.size());
  for (const std::int32_t tensor : recomputation_.keepable()) choices_.push_back({tensor, kDropped});
  gain_of_.assign(choices_.size(), std::numeric_limits<double>::max());
  measure(now_);
  peaks_ = built_.peak_bytes;
  peak_op_ = built_.executions[std::max_element(peaks_.begin(), peaks_.end()) - peaks_.begin()];
  record();
}

void Descent::try_relaxed(const Relaxed& relaxed) {
  Point tried{recomputation_.nothing_dropped(), 0, 0};
  for (const std::int32_t tensor : relaxed.dropped) tried.dropped[tensor] = kDropped;
  for (const std::int32_t tensor : relaxed.kept) tried.dropped[tensor] = kKept;
  const Point before = now_;
  if (measure(tried)) {
    std::swap(now_, tried);
    record();
  }
  now_ = before;
}

std::vector<Point> Descent::run() {
  constexpr int kLevels = 64;
  const std::int64_t start_bytes = now_.peak_bytes;
  const std::int64_t floor_bytes = *std::min_element(peaks_.begin(), peaks_.end());
  int level = 1;
  for (; level <= kLevels && !is_over(); ++level) {
    const std::int64_t limit_bytes = start_bytes - (start_bytes - floor_bytes) / kLevels * level;
    go_to(limit_bytes);
    if (!descend(limit_bytes)) break;
    improve(limit_bytes, node_limit_ / 2 * level / kLevels);
  }
  for (; level > 0 && !is_over(); --level) {
    const std::int64_t limit_bytes = start_bytes - (start_bytes - floor_bytes) / kLevels * level;
    go_to(limit_bytes);
    improve(limit_bytes, placed_ + (node_limit_ - placed_) / level);
  }
  return std::move(frontier_);
}

bool Descent::is_over() const { return placed_ >= node_limit_ || std::chrono::steady_clock::now() > limits_.deadline; }

/// False where the choice is not legal.
bool Descent::measure(Point& point) {
  recomputation_.build(point.dropped, built_);
  placed_ += std::ssize(built_.executions);
  if (built_.conflict >= 0) return false;
  point.peak_bytes = built_.largest_bytes;
  point.time_ns = built_.time_ns;
  return true;
}

/// Gives tensors up until the limit holds. False, with the state as far as it came, where nothing helps any more.
bool Descent::descend(std::int64_t limit_bytes) {
  std::priority_queue<Score> queue;
  double above = excess(peaks_, limit_bytes);
  for (std::int32_t choice = 0; choice < giving_up_; ++choice) {
    if (now_.dropped[choices_[choice].tensor] == kKept) queue.push({gain_of_[choice], choice, -1});
  }
  Point tried;
  while (now_.peak_bytes > limit_bytes) {
    if (queue.empty() || is_over()) return false;
    const Score best = queue.top();
    queue.pop();
    const Choice& choice = choices_[best.choice];
    if (now_.dropped[choice.tensor] != kKept) continue;
    tried.dropped = now_.dropped;
    tried.dropped[choice.tensor] = choice.value;
    if (best.epoch != epoch_) {
      if (!measure(tried)) continue;
      const double taken = above - excess(built_.peak_bytes, limit_bytes);
      if (taken <= 0) continue;
      const double gain = taken / static_cast<double>(std::max<std::int64_t>(tried.time_ns - now_.time_ns, 1));
      gain_of_[best.choice] = gain;
      queue.push({gain, best.choice, epoch_});
      continue;
    }
    measure(tried);
    take(tried);
    above = excess(peaks_, limit_bytes);
  }
  return true;
}

void Descent::take(Point& point) {
  std::swap(now_, point);
  std::swap(peaks_, built_.peak_bytes);
  ++epoch_;
  record();
}

/// Keeps what has been given up without need, and tries other choices of a few.
void Descent::improve(std::int64_t limit_bytes, std::int64_t node_limit) {
  std::vector<Choice> made;
  for (const Choice& choice : choices_) {
    const char value = now_.dropped[choice.tensor];
    const bool is_other = value != recomputation_.nothing_dropped()[choice.tensor];
    if (is_other && (value == kKept || value == choice.value)) made.push_back(choice);
  }
  std::stable_sort(made.begin(), made.end(), [&](const Choice& a, const Choice& b) {
    return recomputation_.making_ns(a.tensor) > recomputation_.making_ns(b.tensor);
  });
  for (const Choice& choice : made) {
    if (is_over() || placed_ > node_limit) break;
    try_flip(choice, limit_bytes);
  }
  while (!choices_.empty() && placed_ < node_limit && !is_over()) perturb(limit_bytes);
}

/// The fastest schedule so far within the limit; where there is none, the one with the least peak.
void Descent::go_to(std::int64_t limit_bytes) {
  const auto fits = [&](const Point& point) { return point.peak_bytes <= limit_bytes; };
  const auto found = std::find_if(frontier_.begin(), frontier_.end(), fits);
  now_ = found == frontier_.end() ? frontier_.back() : *found;
  measure(now_);
  peaks_ = built_.peak_bytes;
  ++epoch_;
}

void Descent::turn(Dropped& dropped, const Choice& choice) {
  char& value = dropped[choice.tensor];
  value = value == choice.value ? kKept : choice.value;
}

bool Descent::try_flip(const Choice& choice, std::int64_t limit_bytes) {
  Point tried = now_;
  turn(tried.dropped, choice);
  if (!measure(tried)) return false;
  if (tried.peak_bytes > limit_bytes || tried.time_ns > now_.time_ns) return false;
  if (tried.time_ns == now_.time_ns && tried.peak_bytes >= now_.peak_bytes) return false;
  take(tried);
  return true;
}

/// Turns a few choices around and mends what that breaks; goes back where it saved nothing.
void Descent::perturb(std::int64_t limit_bytes) {
  const Point before = now_;
  const std::vector<std::int64_t> peaks_before = peaks_;
  Point tried = now_;
  const int flips = 1 + static_cast<int>(random_() % 3);
  for (int flip = 0; flip < flips; ++flip) turn(tried.dropped, choices_[random_() % choices_.size()]);
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
void Descent::record() {
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

}  // namespace stowage::solver
