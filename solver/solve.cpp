// SPDX-License-Identifier: Apache-2.0
#include "solver/solve.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <utility>

#include "solver/layout.h"
#include "solver/lifetimes.h"
#include "solver/order.h"

namespace stowage::solver {

std::string_view to_string(Status status) {
  switch (status) {
    case Status::kOptimal:
      return "optimal";
    case Status::kFeasible:
      return "feasible";
    case Status::kInfeasible:
      return "infeasible";
    case Status::kTimedOut:
      return "timed_out";
  }
  return "unknown";
}

std::chrono::steady_clock::time_point deadline_after(std::int64_t deadline_ms) {
  using std::chrono::steady_clock;
  const auto now = steady_clock::now();
  const std::chrono::milliseconds wait(std::max<std::int64_t>(deadline_ms, 0));
  const auto longest = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::time_point::max() - now);
  return wait < longest ? now + wait : steady_clock::time_point::max();
}

std::string_view to_string(Proof proof) {
  switch (proof) {
    case Proof::kMustLive:
      return "must_live";
    case Proof::kContradiction:
      return "contradiction";
    case Proof::kSearch:
      return "search";
  }
  return "unknown";
}

namespace {

/// A buffer that lies at the last offset up to `cut_bytes` that suits all alignments, all the time: nothing lies
/// across.
Buffer make_wall(const std::vector<Buffer>& buffers, std::int64_t cut_bytes) {
  Buffer wall;
  wall.id = "cut";
  wall.upper = wall.size_bytes = 1;
  for (const Buffer& buffer : buffers) {
    wall.upper = std::max(wall.upper, buffer.upper);
    wall.size_bytes = std::lcm(wall.size_bytes, buffer.alignment_bytes);
  }
  wall.fixed_offset_bytes = cut_bytes / wall.size_bytes * wall.size_bytes;
  return wall;
}

/// What lies below `end_bytes` at the step at which most is live.
std::int64_t fill_at_peak(const std::vector<Buffer>& buffers, const Layout& layout, std::int64_t end_bytes) {
  struct Sums {
    std::int64_t all_bytes = 0;
    std::int64_t below_bytes = 0;
  };
  std::map<std::int64_t, Sums> changes;
  for (std::size_t id = 0; id < buffers.size(); ++id) {
    const std::int64_t below_bytes = layout.offset_bytes[id] < end_bytes ? buffers[id].size_bytes : 0;
    changes[buffers[id].lower].all_bytes += buffers[id].size_bytes;
    changes[buffers[id].lower].below_bytes += below_bytes;
    changes[buffers[id].upper].all_bytes -= buffers[id].size_bytes;
    changes[buffers[id].upper].below_bytes -= below_bytes;
  }
  Sums live;
  Sums peak;
  for (const auto& [step, change] : changes) {
    live = {live.all_bytes + change.all_bytes, live.below_bytes + change.below_bytes};
    if (live.all_bytes > peak.all_bytes) peak = live;
  }
  return peak.below_bytes;
}

/// The layout. It is cut where that takes less memory besides what is there anyway: there first, then where no more is
/// below the cut than what fits there when most is live. The bound stays that of all layouts.
Layout lay_out_beside(const std::vector<Buffer>& buffers, std::int64_t spare_bytes, LayoutLimits limits, Plan& plan) {
  constexpr int kAttempts = 4;
  constexpr std::int64_t kMostWaste = 1000;  // of that many bytes, one that holds nothing when most is live
  Layout best = lay_out(buffers, limits);
  if (spare_bytes >= best.height_bytes) return best;
  limits.node_limit /= 10;
  std::int64_t besides_bytes = best.height_bytes;
  std::int64_t tried_bytes = 0;
  for (int attempt = 0; attempt < kAttempts && besides_bytes > best.bound_bytes - spare_bytes; ++attempt) {
    const Buffer wall = make_wall(buffers, spare_bytes);
    if (*wall.fixed_offset_bytes == 0 || *wall.fixed_offset_bytes == tried_bytes) break;
    const std::int64_t cut_bytes = tried_bytes = *wall.fixed_offset_bytes;
    std::vector<Buffer> cut_buffers = buffers;
    cut_buffers.push_back(wall);
    Layout cut = lay_out(cut_buffers, limits);
    // Nothing is where the wall was: what lies above it comes down.
    cut.height_bytes -= wall.size_bytes;
    for (std::int64_t& offset_bytes : cut.offset_bytes) {
      if (offset_bytes > cut_bytes) offset_bytes -= wall.size_bytes;
    }
    cut.offset_bytes.pop_back();
    const std::int64_t fill_bytes = fill_at_peak(buffers, cut, cut_bytes);
    spare_bytes = (fill_bytes + wall.size_bytes - 1) / wall.size_bytes * wall.size_bytes;
    const bool is_wasteful = cut.height_bytes - best.bound_bytes > best.bound_bytes / kMostWaste;
    const std::int64_t cut_besides_bytes = cut.height_bytes - cut_bytes;
    if (is_wasteful || cut_besides_bytes <= 0 || cut_besides_bytes > besides_bytes) continue;
    if (cut_besides_bytes == besides_bytes && cut.height_bytes >= best.height_bytes) continue;
    besides_bytes = cut_besides_bytes;
    plan.cut_bytes = cut_bytes;
    best.height_bytes = cut.height_bytes;
    best.offset_bytes = std::move(cut.offset_bytes);
    best.status = best.height_bytes == best.bound_bytes ? Status::kOptimal : Status::kFeasible;
  }
  return best;
}

}  // namespace

Plan solve(const Problem& problem, const SolveOptions& options) {
  check(problem);
  const auto deadline = deadline_after(options.deadline_ms);
  Order order = find_order(problem, {.deadline = deadline, .node_limit = options.node_limit});
  Timeline timeline = play(problem, order.ops);
  const LayoutLimits limits{.capacity_bytes = {}, .deadline = deadline, .node_limit = options.node_limit};

  Plan plan;
  const Layout layout = lay_out_beside(find_buffers(problem, timeline), options.spare_bytes, limits, plan);
  plan.order = std::move(order.ops);
  plan.offset_bytes.assign(problem.tensors.size(), kNoSlot);
  const std::vector<std::int32_t> slotted = find_slotted(problem);
  std::size_t buffer = 0;
  for (const std::int32_t tensor : slotted) {
    if (timeline.first_holder[tensor] == tensor) plan.offset_bytes[tensor] = layout.offset_bytes[buffer++];
  }
  for (const std::int32_t tensor : slotted) {
    plan.offset_bytes[tensor] = plan.offset_bytes[timeline.first_holder[tensor]];
  }
  plan.reuse_of = std::move(timeline.reuse_of);
  plan.frees_after = std::move(timeline.frees_after);
  plan.peak_bytes = order.peak_bytes;
  plan.program_peak_bytes = order.program_peak_bytes;
  plan.bound_bytes = order.bound.bytes;
  plan.bound_op = order.bound.op;
  plan.bound_proof = order.bound.proof;
  plan.order_status = order.status;
  plan.arena_bytes = layout.height_bytes;
  plan.arena_bound_bytes = layout.bound_bytes;
  plan.layout_status = layout.status;
  return plan;
}

}  // namespace stowage::solver
