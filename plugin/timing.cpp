// SPDX-License-Identifier: Apache-2.0
#include "plugin/timing.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "plugin/rewrite.h"

namespace stowage {
namespace {

using profiler::kNone;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;

thread_local Timing* t_current = nullptr;

// Functions, since operators are registered before this file's constants would be initialised.
Symbol tick_symbol() { return Symbol::fromQualString("stowage::tick"); }
Symbol op_attribute() { return Symbol::attr("op"); }

torch::jit::Operation make_tick(const Node* node) {
  return [op = static_cast<std::int32_t>(node->i(op_attribute()))](Stack&) {
    if (t_current != nullptr) t_current->tick(op);
  };
}

/// `stowage::tick[op=7]()` before op 7, and one without an op at the end.
std::shared_ptr<torch::jit::Graph> with_ticks(const std::shared_ptr<torch::jit::Graph>& graph,
                                              const std::vector<std::int32_t>& order) {
  const auto insert = [&](std::int32_t op, Node* before) {
    Node* tick = graph->create(tick_symbol(), /*num_outputs=*/0);
    tick->i_(op_attribute(), op);
    tick->insertBefore(before);
  };
  auto op = order.begin();
  for (Node* node : graph->nodes()) {
    if (node->kind() != torch::jit::prim::Constant && node->kind() != tick_symbol() && !is_point(*node)) {
      insert(*op++, node);
    }
  }
  insert(kNone, graph->return_node());
  return graph;
}

std::vector<std::int32_t> program_order(const GraphFacts& facts) {
  std::vector<std::int32_t> order(facts.ops.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

Timing::Timing(const GraphFacts& facts, const profiler::Run& run, const profiler::PlanRecord& plan)
    : unplanned_{.code = torch::jit::Code(with_ticks(facts.graph->copy(), program_order(facts)), "stowage"),
                 .durations_ns = std::vector(run.ops.size(), std::numeric_limits<std::int64_t>::max())},
      planned_{.code = torch::jit::Code(with_ticks(planned_copy(facts, run, plan), plan.order), "stowage"),
               .durations_ns = unplanned_.durations_ns} {}

std::int64_t Timing::unplanned_ns() const {
  return std::accumulate(unplanned_.durations_ns.begin(), unplanned_.durations_ns.end(), std::int64_t{0});
}

void Timing::tick(std::int32_t op) {
  const auto now = std::chrono::steady_clock::now();
  if (op_ != kNone) {
    std::int64_t& least_ns = (follows_plan() ? planned_ : unplanned_).durations_ns[static_cast<std::size_t>(op_)];
    least_ns = std::min(least_ns, std::chrono::duration_cast<std::chrono::nanoseconds>(now - begin_).count());
  }
  op_ = op;
  begin_ = std::chrono::steady_clock::now();
}

Timing::Current::Current(Timing& timing) : timing_(timing) { t_current = &timing; }

Timing::Current::~Current() {
  t_current = nullptr;
  timing_.op_ = kNone;
  ++timing_.runs_;
}

torch::jit::RegisterOperators register_tick_operator() {
  return torch::jit::RegisterOperators(
      {torch::jit::Operator(tick_symbol(), make_tick, c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
