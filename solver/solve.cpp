// SPDX-License-Identifier: Apache-2.0
#include "solver/solve.h"

#include <algorithm>
#include <chrono>
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

Plan solve(const Problem& problem, const SolveOptions& options) {
  check(problem);
  const auto deadline = deadline_after(options.deadline_ms);
  Order order = find_order(problem, {.deadline = deadline, .node_limit = options.node_limit});
  Timeline timeline = play(problem, order.ops);
  const Layout layout = lay_out(find_buffers(problem, timeline),
                                {.capacity_bytes = {}, .deadline = deadline, .node_limit = options.node_limit});

  Plan plan;
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
