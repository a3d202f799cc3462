// SPDX-License-Identifier: Apache-2.0
#include "solver/time_bound.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <utility>

#include "solver/lifetimes.h"

namespace stowage::solver {
namespace {

/// The price at which two choices cost the same.
Price price_between(const Moment& moment, const Relaxed& small, const Relaxed& large) {
  return moment.fit({.ns = small.time_ns - large.time_ns, .bytes = large.bytes - small.bytes});
}

Relaxed choose(Moment& moment, Price price) {
  moment.cut(price);
  return moment.choice();
}

Relaxed choose_least_bytes(Moment& moment) { return choose(moment, {.ns = 1, .bytes = 0}); }
Relaxed choose_least_time(Moment& moment) { return choose(moment, {.ns = 0, .bytes = 1}); }

/// Whether it is no worse than the one in one respect and no worse than the other in the other, but is neither.
bool is_between(const Relaxed& choice, const Relaxed& small, const Relaxed& large) {
  const bool is_small = choice.bytes == small.bytes && choice.time_ns == small.time_ns;
  return !is_small && choice.bytes >= small.bytes && choice.bytes < large.bytes && choice.time_ns <= small.time_ns &&
         choice.time_ns >= large.time_ns;
}

/// What repeats take at least so that at the moment no more lives than the limit allows.
class Search {
 public:
  Search(Moment& moment, std::int64_t peak_bytes) : moment_(moment), peak_bytes_(peak_bytes) {}

  std::int64_t time_ns() const { return time_ns_; }
  Price best_price() const { return best_price_; }

  /// Learns what the price proves. A choice within the limit costs no more than the limit's price and its own time, and
  /// no less than the cheapest choice: the difference is time that each of them takes.
  Relaxed try_price(Price price) {
    const std::int64_t cost = moment_.cut(price) - price.ns * (peak_bytes_ - moment_.fixed_bytes());
    const std::int64_t time_ns = cost > 0 ? (cost - 1) / price.bytes + 1 : 0;
    if (time_ns > time_ns_) {
      time_ns_ = time_ns;
      best_price_ = price;
    }
    return moment_.choice();
  }

  /// Goes through prices until none proves more, or the most that any may prove is known to be `enough_ns`.
  void run(Price first, std::int64_t enough_ns) {
    Relaxed exceeds = try_price(first);
    Relaxed fits = exceeds;
    if (exceeds.bytes <= peak_bytes_) exceeds = choose_least_time(moment_);
    if (fits.bytes > peak_bytes_) fits = choose_least_bytes(moment_);
    while (exceeds.bytes > peak_bytes_ && fits.time_ns > enough_ns) {
      Relaxed choice = try_price(price_between(moment_, fits, exceeds));
      if (!is_between(choice, fits, exceeds)) break;
      (choice.bytes <= peak_bytes_ ? fits : exceeds) = std::move(choice);
    }
  }

 private:
  Moment& moment_;
  const std::int64_t peak_bytes_;
  std::int64_t time_ns_ = 0;
  Price best_price_;
};

}  // namespace

TimeBounds::TimeBounds(const Problem& problem, const Dependencies& dependencies)
    : problem_(problem), dependencies_(dependencies), makers_(problem), sums_(problem.ops.size()) {
  for (const Tensor& tensor : problem.tensors) persistent_bytes_ += tensor.persistent ? tensor.size_bytes : 0;
  const std::vector<InnerSums> inner_sums = find_inner_sums(problem);
  for (std::size_t op = 0; op < sums_.size(); ++op) {
    time_ns_ += problem.ops[op].duration_ns;
    const std::int64_t own_bytes = persistent_bytes_ + inner_sums[op].reusing_peak_bytes;
    sums_[op] = {.needed = own_bytes, .pinned = own_bytes};
  }
  ClosureBlock block;
  for (std::int32_t first_op = 0; first_op < std::ssize(problem.ops); first_op += 64) {
    find_closure(dependencies, first_op, block);
    add_live(block);
  }
  least_peak_bytes_ = persistent_bytes_;
  find_least_peak();
}

void TimeBounds::add_live(const ClosureBlock& block) {
  for (std::int32_t id = 0; id < std::ssize(problem_.tensors); ++id) {
    const Tensor& tensor = problem_.tensors[id];
    const std::int32_t allocator = makers_.allocator[id];
    if (allocator < 0) continue;
    std::uint64_t users = 0;
    std::uint64_t before_users = tensor.output ? ~std::uint64_t{0} : 0;
    for (const std::int32_t user : makers_.users[id]) {
      before_users |= block.after[user];
      const std::int32_t k = user - block.first_op;
      if (k >= 0 && k < 64) users |= std::uint64_t{1} << k;
    }
    std::uint64_t cannot_be_made = tensor.output || !makers_.may_repeat[allocator] ? ~std::uint64_t{0} : 0;
    for (const std::int32_t writer : makers_.writers[id]) {
      if (!makers_.may_repeat[writer]) cannot_be_made |= block.before[writer];
    }
    const std::uint64_t made = block.before[allocator];
    const auto add = [&](std::uint64_t bits, std::int64_t Sums::*sum) {
      for (; bits != 0; bits &= bits - 1) sums_[block.first_op + std::countr_zero(bits)].*sum += tensor.size_bytes;
    };
    add(made & (users | before_users), &Sums::needed);
    add(made & (users | (before_users & cannot_be_made)), &Sums::pinned);
  }
}

std::vector<std::int32_t> TimeBounds::find_moments(std::int64_t Sums::*sum, std::int64_t above_bytes) const {
  constexpr std::size_t kMostMoments = 64;
  std::vector<std::int32_t> ops;
  for (std::int32_t op = 0; op < std::ssize(sums_); ++op) {
    if (sums_[op].*sum > above_bytes && !makers_.is_view[op]) ops.push_back(op);
  }
  std::stable_sort(ops.begin(), ops.end(), [&](auto left, auto right) { return sums_[left].*sum > sums_[right].*sum; });
  if (ops.size() > kMostMoments) ops.resize(kMostMoments);
  return ops;
}

void TimeBounds::find_least_peak() {
  for (const auto sum : {&Sums::pinned, &Sums::needed}) {
    for (const std::int32_t op : find_moments(sum, /*above_bytes=*/-1)) {
      Moment at_op = moment(op);
      const std::int64_t least_bytes = choose_least_bytes(at_op).bytes;
      if (least_bytes <= least_peak_bytes_) continue;
      least_peak_bytes_ = least_bytes;
      least_peak_op_ = op;
    }
  }
}

TimeBound TimeBounds::find(std::int64_t peak_bytes) const {
  TimeBound bound{.time_ns = time_ns_, .op = -1, .is_infeasible = false};
  if (peak_bytes < least_peak_bytes_) return {.time_ns = time_ns_, .op = least_peak_op_, .is_infeasible = true};
  Price best_price{.ns = 0, .bytes = 1};
  for (const std::int32_t op : find_moments(&Sums::needed, peak_bytes)) {
    Moment at_op = moment(op);
    Search search(at_op, peak_bytes);
    search.run(at_op.fit(best_price), bound.time_ns - time_ns_);
    if (time_ns_ + search.time_ns() <= bound.time_ns) continue;
    bound = {.time_ns = time_ns_ + search.time_ns(), .op = op, .is_infeasible = false};
    best_price = search.best_price();
  }
  return bound;
}

std::vector<Relaxed> TimeBounds::relax(std::int32_t op, std::size_t most) const {
  Moment at_op = moment(op);
  std::vector<Relaxed> choices{choose_least_bytes(at_op), choose_least_time(at_op)};
  std::deque<std::pair<std::size_t, std::size_t>> open{{0, 1}};
  for (; !open.empty() && choices.size() < most; open.pop_front()) {
    const auto [small, large] = open.front();
    if (choices[small].bytes >= choices[large].bytes) continue;
    Relaxed choice = choose(at_op, price_between(at_op, choices[small], choices[large]));
    if (!is_between(choice, choices[small], choices[large])) continue;
    open.emplace_back(small, choices.size());
    open.emplace_back(choices.size(), large);
    choices.push_back(std::move(choice));
  }
  std::sort(choices.begin(), choices.end(), [](const Relaxed& left, const Relaxed& right) {
    return std::pair(left.bytes, left.time_ns) < std::pair(right.bytes, right.time_ns);
  });
  const auto is_worse = [](const Relaxed& better, const Relaxed& worse) { return worse.time_ns >= better.time_ns; };
  choices.erase(std::unique(choices.begin(), choices.end(), is_worse), choices.end());
  return choices;
}

}  // namespace stowage::solver
