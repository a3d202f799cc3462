// SPDX-License-Identifier: Apache-2.0
#include "solver/tidy.h"

#include <algorithm>
#include <set>
#include <utility>

namespace stowage::solver {
namespace {

class Tidier {
 public:
  Tidier(const Problem& problem, const Dependencies& dependencies, const std::vector<std::int32_t>& order,
         const Timeline& timeline)
      : dependencies_(dependencies),
        order_(order),
        step_of_(order.size()),
        waits_for_(order.size()),
        anchored_(order.size()),
        emitted_(order.size()) {
    for (std::int32_t step = 0; step < std::ssize(order); ++step) step_of_[order[step]] = step;
    const std::vector<std::vector<std::int32_t>> uses = find_uses(problem);
    for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
      waits_for_[op] = static_cast<std::int32_t>(dependencies.predecessors[op].size());
      if (keeps_memory(problem.ops[op])) {
        anchored_[op] = Anchor::kKeeps;
      } else if (!timeline.frees_after[op].empty() || (!problem.ops[op].writes.empty() && !uses[op].empty())) {
        // It frees a tensor, or would if it ran late: an update that reads a gradient.
        anchored_[op] = Anchor::kFrees;
      }
    }
  }

  std::vector<std::int32_t> run() {
    for (const std::int32_t op : order_) {
      if (waits_for_[op] == 0) become_available(op);
    }
    run_ready_ends();
    for (const std::int32_t op : order_) {
      if (anchored_[op] == Anchor::kNone || emitted_[op]) continue;
      emit(op);
      run_ready_ends();
    }
    for (const std::int32_t op : order_) emit(op);
    return std::move(tidied_);
  }

 private:
  enum class Anchor : std::uint8_t { kNone, kFrees, kKeeps };

  static bool keeps_memory(const Op& op) {
    // Workspace is freed by the op itself: as many frees as allocations.
    const auto frees = std::count_if(op.events.begin(), op.events.end(),
                                     [](const Event& event) { return event.kind == Event::Kind::kFree; });
    return 2 * frees != std::ssize(op.events);
  }

  void emit(std::int32_t op) {
    // By hand, not by recursion: chains of views can be long.
    std::vector<std::int32_t> open = {op};
    while (!open.empty()) {
      const std::int32_t next = open.back();
      if (emitted_[next]) {
        open.pop_back();
        continue;
      }
      std::vector<std::int32_t> missing;
      for (const std::int32_t before : dependencies_.predecessors[next]) {
        if (!emitted_[before]) missing.push_back(before);
      }
      if (missing.empty()) {
        open.pop_back();
        emitted_[next] = true;
        tidied_.push_back(next);
        if (anchored_[next] == Anchor::kKeeps) release(next);
        continue;
      }
      std::sort(missing.begin(), missing.end(), [&](auto a, auto b) { return step_of_[a] > step_of_[b]; });
      open.insert(open.end(), missing.begin(), missing.end());
    }
  }

  /// Op `op` could run now without any op that keeps memory running first.
  void become_available(std::int32_t op) {
    if (anchored_[op] == Anchor::kKeeps) return;  // it runs at its turn
    waits_for_[op] = -1;
    if (dependencies_.successors[op].empty()) ready_ends_.insert({step_of_[op], op});
    release(op);
  }

  void release(std::int32_t op) {
    for (const std::int32_t after : dependencies_.successors[op]) {
      if (waits_for_[after] > 0 && --waits_for_[after] == 0) become_available(after);
    }
  }

  void run_ready_ends() {
    while (!ready_ends_.empty()) {
      const std::int32_t op = ready_ends_.begin()->second;
      ready_ends_.erase(ready_ends_.begin());
      emit(op);
    }
  }

  const Dependencies& dependencies_;
  const std::vector<std::int32_t>& order_;
  std::vector<std::int32_t> step_of_;    ///< by op: its place in the given order
  std::vector<std::int32_t> waits_for_;  ///< by op: predecessors that are not available yet; -1 once it is itself
  std::vector<Anchor> anchored_;
  std::vector<bool> emitted_;
  std::set<std::pair<std::int32_t, std::int32_t>> ready_ends_;  ///< (step, op)
  std::vector<std::int32_t> tidied_;
};

}  // namespace

std::vector<std::int32_t> tidy(const Problem& problem, const Dependencies& dependencies,
                               const std::vector<std::int32_t>& order, const Timeline& timeline) {
  return Tidier(problem, dependencies, order, timeline).run();
}

}  // namespace stowage::solver
