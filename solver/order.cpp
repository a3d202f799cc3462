// SPDX-License-Identifier: Apache-2.0
#include "solver/order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "solver/exact_order.h"
#include "solver/improve.h"
#include "solver/lifetimes.h"
#include "solver/schedule.h"
#include "solver/tidy.h"
#include "solver/window.h"

namespace stowage::solver {
namespace {

class OrderSearch {
 public:
  OrderSearch(const Problem& problem, const OrderLimits& limits)
      : problem_(problem),
        limits_(limits),
        dependencies_(find_dependencies(problem)),
        scheduler_(problem, dependencies_) {}

  Order find() {
    best_.ops.resize(problem_.ops.size());
    std::iota(best_.ops.begin(), best_.ops.end(), 0);
    best_.program_peak_bytes = play(problem_, best_.ops, Reusing::kNone).peak_bytes;
    best_.peak_bytes = play(problem_, best_.ops).peak_bytes;
    best_.bound = find_order_bound(problem_, dependencies_);
    run_portfolio();
    improve();
    improve_windows();
    if (!is_done()) start_from_order_without_reuse();
    if (!is_done()) best_.bound = sharpen_order_bound(problem_, dependencies_, best_.ops, best_.bound);
    if (!is_done()) search();
    tidy_up();
    best_.status = best_.peak_bytes == best_.bound.bytes ? Status::kOptimal : Status::kFeasible;
    return best_;
  }

 private:
  bool is_done() const {
    return best_.peak_bytes == best_.bound.bytes || std::chrono::steady_clock::now() >= limits_.deadline;
  }

  void offer(const std::vector<std::int32_t>& ops) {
    const std::int64_t peak_bytes = play(problem_, ops).peak_bytes;
    if (peak_bytes >= best_.peak_bytes) return;
    best_.peak_bytes = peak_bytes;
    best_.ops = ops;
  }

  void tidy_up() {
    std::vector<std::int32_t> tidied = tidy(problem_, dependencies_, best_.ops, play(problem_, best_.ops));
    const std::int64_t peak_bytes = play(problem_, tidied).peak_bytes;
    if (peak_bytes > best_.peak_bytes) return;
    best_.peak_bytes = peak_bytes;
    best_.ops = std::move(tidied);
  }

  /// Each rule forward from the program order; backward; and forward again from what backward found.
  void run_portfolio() {
    const std::vector<std::int32_t> program = best_.ops;
    for (const Rule rule : {Rule::kReleaseFirst, Rule::kAnyRelease, Rule::kSmallestGrowth}) {
      if (is_done()) return;
      offer(scheduler_.schedule(Direction::kForward, rule, program, best_.bound.bytes));
      if (is_done()) return;
      const auto backward = scheduler_.schedule(Direction::kBackward, rule, program, best_.bound.bytes);
      offer(backward);
      offer(scheduler_.schedule(Direction::kForward, rule, backward, best_.bound.bytes));
    }
  }

  /// Relieves the peak move by move, each tried as it is and as the reference of a list schedule, as long as that
  /// helps.
  void improve() {
    constexpr std::size_t kMostMoves = 48;
    std::int64_t nodes = 0;
    for (bool improved = true; improved && !is_done();) {
      improved = false;
      const std::int64_t peak_bytes = best_.peak_bytes;
      const Timeline timeline = play(problem_, best_.ops);
      for (const auto& moved : find_relieving_orders(problem_, dependencies_, best_.ops, timeline, kMostMoves)) {
        nodes += std::ssize(moved);
        if (is_done() || nodes > limits_.node_limit) return;
        offer(moved);
        for (const Rule rule : {Rule::kReleaseFirst, Rule::kAnyRelease}) {
          offer(scheduler_.schedule(Direction::kForward, rule, moved, peak_bytes - 1));
        }
        improved = best_.peak_bytes < peak_bytes;
        if (improved) break;
      }
    }
  }

  /// Reuse makes any order better, but the search may have taken another way: none must be worse for its candidates.
  void start_from_order_without_reuse() {
    Problem without = problem_;
    forbid_reuse(without);
    if (without == problem_) return;
    offer(OrderSearch(without, limits_).find().ops);
    improve();
    improve_windows();
  }

  /// Gives stretches around the peak better orders of their own, as long as that helps; wider ones when it does not.
  void improve_windows() {
    constexpr int kMostWindows = 48;
    constexpr std::int32_t kWidest = 128;
    OrderLimits limits = limits_;
    limits.node_limit /= kMostWindows;
    int windows = 0;
    for (std::int32_t width = 16; width <= kWidest && windows < kMostWindows && !is_done();) {
      const std::int64_t peak_bytes = best_.peak_bytes;
      const auto peak = std::find(best_.ops.begin(), best_.ops.end(), play(problem_, best_.ops).peak_op);
      const auto center = static_cast<std::int32_t>(peak - best_.ops.begin());
      for (const std::int32_t quarters_before : {1, 2, 3}) {
        const std::int32_t begin = std::max(center - width * quarters_before / 4, 0);
        const std::int32_t end = std::min(begin + width, static_cast<std::int32_t>(best_.ops.size()));
        const Problem window = cut_window(problem_, best_.ops, begin, end);
        const auto found = search_orders(window, find_dependencies(window), peak_bytes, best_.bound.bytes, limits);
        ++windows;
        if (!found.ops.empty()) offer(paste_window(best_.ops, begin, found.ops));
        if (best_.peak_bytes < peak_bytes) break;
      }
      if (best_.peak_bytes == peak_bytes) width *= 2;
    }
  }

  void search() {
    ExactOrder exact = search_orders(problem_, dependencies_, best_.peak_bytes, best_.bound.bytes, limits_);
    if (!exact.ops.empty()) offer(exact.ops);
    if (!exact.is_proven || best_.peak_bytes == best_.bound.bytes) return;
    best_.bound = {.bytes = best_.peak_bytes, .op = -1, .tensors = {}, .proof = Proof::kSearch};
  }

  const Problem& problem_;
  const OrderLimits limits_;
  const Dependencies dependencies_;
  const ListScheduler scheduler_;
  Order best_;
};

}  // namespace

Order find_order(const Problem& problem, const OrderLimits& limits) { return OrderSearch(problem, limits).find(); }

}  // namespace stowage::solver
