// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_ops.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "plugin/torch_headers.h"

namespace stowage {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMostOps = 200'000;  // those after them are not told apart
// torch/csrc/autograd/engine.cpp: what the engine calls the evaluation of a node.
constexpr std::string_view kEvaluates = "autograd::engine::evaluate_function: ";

/// The watch, if there is one. Never freed: an op that outlives its step ends here, too.
struct Watch {
  std::mutex mutex;  // the allocator's is taken within it
  std::uint64_t id = 0;
  PlannedAllocator* allocator = nullptr;  // null: nothing is watched
  at::CallbackHandle callback = 0;
  steady_clock::time_point begin;
  std::vector<StepOp> ops;
  std::unordered_set<std::string> names;
};

Watch& watch() {
  static auto* instance = new Watch();
  return *instance;
}

/// Where a thread is.
struct Place {
  std::uint64_t watch = 0;
  int depth = 0;  // of ops inside ops
  std::string_view scope;
};
thread_local Place t_place;

/// What the begin of an op or scope leaves to its end.
struct Mark : at::ObserverContext {
  std::uint64_t watch = 0;
  bool is_scope = false;
  std::string_view outer_scope;
  std::size_t op = kMostOps;
};

std::string_view keep(std::string_view name) { return *watch().names.emplace(name).first; }

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - watch().begin).count();
}

std::int32_t next_event() {
  return watch().allocator->with_step([](const StepScope& step) { return step.record().event_count; });
}

std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction& function) {
  std::lock_guard lock(watch().mutex);
  if (watch().allocator == nullptr || !watch().allocator->is_in_step()) return nullptr;
  Place& place = t_place;
  if (place.watch != watch().id) place = {.watch = watch().id, .depth = 0, .scope = {}};
  auto mark = std::make_unique<Mark>();
  mark->watch = watch().id;
  std::string_view name = function.name();
  if (function.scope() != at::RecordScope::FUNCTION || name.starts_with(kEvaluates)) {
    if (name.starts_with(kEvaluates)) name.remove_prefix(kEvaluates.size());
    mark->is_scope = true;
    mark->outer_scope = std::exchange(place.scope, keep(name));
    return mark;
  }
  const bool is_marker = name.starts_with("stowage::") || name.starts_with("profiler::");
  if (place.depth++ > 0 || is_marker || watch().ops.size() == kMostOps) return mark;
  mark->op = watch().ops.size();
  watch().ops.push_back({.kind = keep(name),
                         .scope = place.scope,
                         .thread = this_thread(),
                         .begin_event = next_event(),
                         .end_event = std::numeric_limits<std::int32_t>::max(),
                         .start_ns = now_ns()});
  return mark;
}

void end_op(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  auto* mark = static_cast<Mark*>(context);
  std::lock_guard lock(watch().mutex);
  Place& place = t_place;
  if (mark == nullptr || watch().allocator == nullptr || mark->watch != watch().id || place.watch != mark->watch)
    return;
  if (mark->is_scope) {
    place.scope = mark->outer_scope;
    return;
  }
  --place.depth;
  if (mark->op == kMostOps) return;
  StepOp& op = watch().ops[mark->op];
  op.end_event = next_event();
  op.duration_ns = now_ns() - op.start_ns;
}

/// By allocation, into `ops.ops`, at whose end those of kind "outside" are put.
std::vector<std::size_t> find_ops(StepOps& ops, const StepRecord& record) {
  const std::size_t watched = ops.ops.size();
  std::map<Thread, std::vector<std::size_t>> by_thread;
  for (std::size_t op = 0; op < watched; ++op) by_thread[ops.ops[op].thread].push_back(op);
  std::vector<std::size_t> found;
  std::size_t begun = 0;          // ops that had begun
  std::size_t outside_begun = 0;  // the same at the last allocation outside
  for (const StepAllocation& each : record.allocations) {
    const std::int32_t event = each.allocate_event;
    while (begun < watched && ops.ops[begun].begin_event <= event) ++begun;
    const auto lane = static_cast<std::size_t>(each.lane);
    const Thread thread = lane < ops.threads.size() ? ops.threads[lane] : nullptr;
    const std::vector<std::size_t>& own = by_thread[thread];
    const auto after =
        std::partition_point(own.begin(), own.end(), [&](std::size_t op) { return ops.ops[op].begin_event <= event; });
    if (after != own.begin() && ops.ops[*std::prev(after)].end_event > event) {
      found.push_back(*std::prev(after));
      continue;
    }
    if (ops.ops.size() == watched || outside_begun != begun || ops.ops.back().thread != thread) {
      StepOp outside{.kind = "outside", .scope = {}, .thread = thread, .begin_event = event};
      if (begun > 0) outside.start_ns = ops.ops[begun - 1].start_ns + ops.ops[begun - 1].duration_ns;
      ops.ops.push_back(std::move(outside));
      outside_begun = begun;
    }
    found.push_back(ops.ops.size() - 1);
  }
  return found;
}

}  // namespace

void watch_ops(PlannedAllocator& allocator) {
  std::lock_guard lock(watch().mutex);
  const bool is_ours = allocator.with_step([](const StepScope& step) { return step.thread() == this_thread(); });
  if (!is_ours || watch().allocator != nullptr) return;
  watch().allocator = &allocator;
  ++watch().id;
  watch().ops.clear();
  watch().begin = steady_clock::now();
  // Not a callback of the thread: autograd, and checkpoints, put those back that were there before them.
  watch().callback = at::addGlobalCallback(
      at::RecordFunctionCallback(begin_op, end_op)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

StepOps unwatch_ops(PlannedAllocator& allocator) {
  std::lock_guard lock(watch().mutex);
  if (watch().allocator != &allocator) return {};
  at::removeCallback(watch().callback);
  StepOps found;
  found.duration_ns = now_ns();
  found.threads = allocator.with_step([](const StepScope& step) { return step.threads(); });
  found.ops = std::exchange(watch().ops, {});
  watch().allocator = nullptr;
  return found;
}

void abandon_ops(PlannedAllocator& allocator) {
  std::lock_guard lock(watch().mutex);
  if (watch().allocator == &allocator) watch().allocator = nullptr;
}

std::vector<std::int32_t> assign_ops(StepOps& ops, const StepRecord& record) {
  const std::vector<std::size_t> found = find_ops(ops, record);
  std::vector<std::size_t> order(ops.ops.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return ops.ops[a].begin_event < ops.ops[b].begin_event; });
  std::vector<std::int32_t> place(order.size());
  std::vector<StepOp> sorted;
  for (const std::size_t op : order) {
    place[op] = static_cast<std::int32_t>(sorted.size());
    sorted.push_back(std::move(ops.ops[op]));
  }
  ops.ops = std::move(sorted);
  std::vector<std::int32_t> op_of;
  for (const std::size_t op : found) op_of.push_back(place[op]);
  return op_of;
}

std::int32_t op_at(const StepOps& ops, std::int32_t event) {
  const auto after =
      std::partition_point(ops.ops.begin(), ops.ops.end(), [&](const StepOp& op) { return op.begin_event <= event; });
  return std::max(static_cast<std::int32_t>(after - ops.ops.begin()) - 1, 0);
}

}  // namespace stowage
