// SPDX-License-Identifier: Apache-2.0
#include "solver/exact_order.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <unordered_set>

#include "solver/lifetimes.h"

namespace stowage::solver {
namespace {

/// Sets of ops, all over the same ops.
class OpSets {
 public:
  explicit OpSets(std::size_t op_count) : words_per_set_((op_count + 63) / 64), sets_(0, Hash{this}, Equal{this}) {}
  OpSets(const OpSets&) = delete;  // `sets_` points back
  OpSets& operator=(const OpSets&) = delete;

  bool is_full() const { return words_.size() * sizeof(std::uint64_t) + sets_.size() * kEntryBytes >= kMostBytes; }
  bool contains(const std::vector<std::uint64_t>& set) {
    push(set);
    const bool found = sets_.contains(last());
    words_.resize(words_.size() - words_per_set_);
    return found;
  }
  void add(const std::vector<std::uint64_t>& set) {
    push(set);
    if (!sets_.insert(last()).second) words_.resize(words_.size() - words_per_set_);
  }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  static constexpr std::size_t kEntryBytes = 48;  // of `sets_`: a node on the heap and its share of the buckets

  struct Hash {
    const OpSets* sets;
    std::size_t operator()(std::size_t first) const {
      std::uint64_t hash = 0;
      for (std::size_t word = first; word < first + sets->words_per_set_; ++word) {
        hash = (std::rotl(hash, 23) ^ sets->words_[word]) * 0x9E3779B97F4A7C15;
      }
      return hash ^ (hash >> 32);
    }
  };
  struct Equal {
    const OpSets* sets;
    bool operator()(std::size_t left, std::size_t right) const {
      const auto begin = sets->words_.begin();
      const auto at = [&](std::size_t word) { return begin + static_cast<std::ptrdiff_t>(word); };
      return std::equal(at(left), at(left + sets->words_per_set_), at(right));
    }
  };

  void push(const std::vector<std::uint64_t>& set) { words_.insert(words_.end(), set.begin(), set.end()); }
  std::size_t last() const { return words_.size() - words_per_set_; }

  std::size_t words_per_set_;
  std::vector<std::uint64_t> words_;
  std::unordered_set<std::size_t, Hash, Equal> sets_;  ///< where in `words_` each begins
};

/// Ops that have run, and what lives after them; ops can be taken and taken back.
class Progress {
 public:
  Progress(const Problem& problem, const Dependencies& dependencies)
      : problem_(problem),
        dependencies_(dependencies),
        uses_(find_uses(problem)),
        inner_sums_(find_inner_sums(problem)),
        users_left_(problem.tensors.size()),
        waits_for_(problem.ops.size()),
        ready_at_(problem.ops.size(), -1),
        has_run_((problem.ops.size() + 63) / 64) {
    for (const Tensor& tensor : problem.tensors) live_bytes_ += tensor.persistent ? tensor.size_bytes : 0;
    for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
      for (const std::int32_t tensor : uses_[op]) ++users_left_[tensor];
      waits_for_[op] = static_cast<std::int32_t>(dependencies.predecessors[op].size());
      if (waits_for_[op] == 0) add_ready(op);
    }
  }

  const std::vector<std::int32_t>& order() const { return order_; }
  const std::vector<std::int32_t>& ready() const { return ready_; }
  const std::vector<std::uint64_t>& has_run() const { return has_run_; }

  std::int64_t peak_bytes(std::int32_t op) const {
    const std::vector<Reuse>& reuses = problem_.ops[op].reuses;
    const bool reuses_one =
        std::any_of(reuses.begin(), reuses.end(), [this](const Reuse& reuse) { return users_left_[reuse.input] == 1; });
    return live_bytes_ + (reuses_one ? inner_sums_[op].reusing_peak_bytes : inner_sums_[op].peak_bytes);
  }

  std::int64_t growth_bytes(std::int32_t op) const {
    std::int64_t growth_bytes = inner_sums_[op].growth_bytes;
    for (const std::int32_t tensor : uses_[op]) {
      if (users_left_[tensor] == 1) growth_bytes -= problem_.tensors[tensor].size_bytes;
    }
    return growth_bytes;
  }

  void take(std::int32_t op) {
    live_bytes_ += growth_bytes(op);
    for (const std::int32_t tensor : uses_[op]) --users_left_[tensor];
    remove_ready(op);
    for (const std::int32_t next : dependencies_.successors[op]) {
      if (--waits_for_[next] == 0) add_ready(next);
    }
    has_run_[op / 64] ^= std::uint64_t{1} << (op % 64);
    order_.push_back(op);
  }

  void take_back() {
    const std::int32_t op = order_.back();
    order_.pop_back();
    has_run_[op / 64] ^= std::uint64_t{1} << (op % 64);
    for (const std::int32_t next : dependencies_.successors[op]) {
      if (waits_for_[next]++ == 0) remove_ready(next);
    }
    add_ready(op);
    for (const std::int32_t tensor : uses_[op]) ++users_left_[tensor];
    live_bytes_ -= growth_bytes(op);
  }

 private:
  void add_ready(std::int32_t op) {
    ready_at_[op] = static_cast<std::int32_t>(ready_.size());
    ready_.push_back(op);
  }
  void remove_ready(std::int32_t op) {
    ready_at_[ready_.back()] = ready_at_[op];
    ready_[ready_at_[op]] = ready_.back();
    ready_.pop_back();
  }

  const Problem& problem_;
  const Dependencies& dependencies_;
  const std::vector<std::vector<std::int32_t>> uses_;  ///< by op
  const std::vector<InnerSums> inner_sums_;            ///< by op
  std::vector<std::int32_t> users_left_;               ///< by tensor
  std::vector<std::int32_t> waits_for_;                ///< by op: dependencies that have not run
  std::vector<std::int32_t> ready_;
  std::vector<std::int32_t> ready_at_;  ///< by op: where in `ready_`
  std::vector<std::uint64_t> has_run_;
  std::vector<std::int32_t> order_;
  std::int64_t live_bytes_ = 0;
};

class ExactSearch {
 public:
  ExactSearch(const Problem& problem, const Dependencies& dependencies, const OrderLimits& limits)
      : dependencies_(dependencies),
        limits_(limits),
        progress_(problem, dependencies),
        failed_(problem.ops.size()),
        is_bottleneck_(problem.ops.size()),
        op_count_(problem.ops.size()) {
    find_bottlenecks();
  }

  /// An order with a peak below `limit_bytes`; empty if there is none, or none was found.
  std::vector<std::int32_t> find(std::int64_t limit_bytes) {
    limit_bytes_ = limit_bytes;
    frames_.clear();
    unwind(0);
    if (is_complete()) return progress_.order();
    while (!frames_.empty() && !is_stopped_) {
      Frame& frame = frames_.back();
      unwind(frame.op_count);
      if (frame.tried == frame.candidates.size()) {
        failed_.add(progress_.has_run());
        if (is_at_bottleneck()) return {};
        frames_.pop_back();
        continue;
      }
      progress_.take(frame.candidates[frame.tried++]);
      if (is_complete()) return progress_.order();
    }
    return {};
  }

  bool is_stopped() const { return is_stopped_; }

 private:
  struct Frame {
    std::size_t op_count = 0;  ///< how many ops have run before it
    std::vector<std::int32_t> candidates;
    std::size_t tried = 0;
  };

  /// Ops to which every other one is a predecessor or a successor.
  void find_bottlenecks() {
    ClosureBlock block;
    std::vector<std::int32_t> related(op_count_);  // by op: how many must run before or after it
    for (std::int32_t first_op = 0; first_op < std::ssize(related); first_op += 64) {
      find_closure(dependencies_, first_op, block);
      for (std::size_t op = 0; op < op_count_; ++op) {
        related[op] += std::popcount(block.before[op]) + std::popcount(block.after[op]);
      }
    }
    for (std::size_t op = 0; op < op_count_; ++op) {
      is_bottleneck_[op] = related[op] + 1 == static_cast<std::int32_t>(op_count_);
    }
  }

  bool is_at_bottleneck() const {
    const std::vector<std::int32_t>& ready = progress_.ready();
    return ready.size() == 1 && is_bottleneck_[ready.front()];
  }

  bool is_out_of_time() {
    const bool look_at_clock = ++steps_ % 256 == 0;
    is_stopped_ = nodes_ > limits_.node_limit || failed_.is_full() ||
                  (look_at_clock && std::chrono::steady_clock::now() >= limits_.deadline);
    return is_stopped_;
  }

  void unwind(std::size_t op_count) {
    while (progress_.order().size() > op_count) progress_.take_back();
  }

  /// Runs what need not wait, then opens a frame for what is open. True if all ops have run.
  bool is_complete() {
    while (!is_out_of_time() && run_one_at_once()) {
    }
    if (is_stopped_) return false;
    if (progress_.order().size() == op_count_) return true;
    if (failed_.contains(progress_.has_run())) return false;

    struct Candidate {
      std::int64_t growth_bytes;
      std::int32_t op;
      auto operator<=>(const Candidate&) const = default;
    };
    std::vector<Candidate> open;
    for (const std::int32_t op : progress_.ready()) {
      if (progress_.peak_bytes(op) < limit_bytes_) open.push_back({progress_.growth_bytes(op), op});
    }
    std::sort(open.begin(), open.end());
    Frame& frame = frames_.emplace_back();
    frame.op_count = progress_.order().size();
    for (const Candidate& candidate : open) frame.candidates.push_back(candidate.op);
    return false;
  }

  bool run_one_at_once() {
    for (const std::int32_t op : progress_.ready()) {
      ++nodes_;
      if (progress_.growth_bytes(op) > 0 || progress_.peak_bytes(op) >= limit_bytes_) continue;
      progress_.take(op);
      return true;
    }
    return false;
  }

  const Dependencies& dependencies_;
  const OrderLimits limits_;
  Progress progress_;
  OpSets failed_;  ///< from which no order stays below the limit, nor below a lower one
  std::vector<Frame> frames_;
  std::vector<char> is_bottleneck_;  ///< by op
  const std::size_t op_count_;
  std::int64_t limit_bytes_ = 0;
  std::int64_t nodes_ = 0;
  std::int64_t steps_ = 0;
  bool is_stopped_ = false;
};

}  // namespace

ExactOrder search_orders(const Problem& problem, const Dependencies& dependencies, std::int64_t below_bytes,
                         std::int64_t bound_bytes, const OrderLimits& limits) {
  ExactSearch search(problem, dependencies, limits);
  ExactOrder best;
  while (below_bytes > bound_bytes) {
    std::vector<std::int32_t> ops = search.find(below_bytes);
    if (ops.empty()) break;
    below_bytes = play(problem, ops).peak_bytes;
    best.ops = std::move(ops);
  }
  best.is_proven = !search.is_stopped();
  return best;
}

}  // namespace stowage::solver
