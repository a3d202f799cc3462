// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_planner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plugin/budget.h"
#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/plan_memory.h"
#include "plugin/step_memory.h"
#include "plugin/step_run.h"

namespace stowage {
namespace {

constexpr std::int64_t kMostPlans = 16;       ///< of one phase; then it is left as it is
constexpr std::int64_t kCrowdedRuns = 3;      ///< after which a phase is looked at again
constexpr std::int64_t kLooks = 3;            ///< at runs of a phase, before it is planned anew
constexpr std::int64_t kMuch = 100;           ///< a hundredth of a step's bytes
constexpr std::int64_t kPlanningMs = 2'000;   ///< a step waits for its plan
constexpr std::size_t kUnplannedPhases = 64;  ///< kept to be met again

std::int64_t busy_bytes(const Counters& counters) {
  return counters.misses[static_cast<std::size_t>(Miss::kBusy)].bytes;
}

/// Takes their slots from allocations that had one and were still alive when the next step had ended: `record` is of
/// the plan that they followed, which need not be that of their own phase. Whether there were any.
bool end_slots_of_overstayed(const StepRecord& seen, StepRecord& record) {
  std::map<std::pair<std::int32_t, std::int32_t>, StepAllocation*> by_entry;
  std::vector<std::int32_t> counts;
  for (StepAllocation& each : record.allocations) {
    const auto lane = static_cast<std::size_t>(each.lane);
    if (lane >= counts.size()) counts.resize(lane + 1);
    by_entry[{each.lane, counts[lane]++}] = &each;
  }
  bool any = false;
  for (const StepAllocation& each : seen.allocations) {
    if (each.offset_bytes < 0 || each.freed_in != FreedIn::kNoStepYet) continue;
    const auto found = by_entry.find({each.lane, each.entry});
    if (found == by_entry.end() || found->second->freed_in == FreedIn::kNoStepYet) continue;
    found->second->freed_in = FreedIn::kNoStepYet;
    any = true;
  }
  return any;
}

bool has_overstayed(const StepRecord& seen) {
  return std::any_of(seen.allocations.begin(), seen.allocations.end(), [](const StepAllocation& each) {
    return each.offset_bytes >= 0 && each.freed_in == FreedIn::kNoStepYet;
  });
}

std::string difference(const StepRecord& before, const StepRecord& after) {
  const std::size_t common = std::min(before.allocations.size(), after.allocations.size());
  for (std::size_t index = 0; index < common; ++index) {
    const StepAllocation& a = before.allocations[index];
    const StepAllocation& b = after.allocations[index];
    if (a.size_bytes == b.size_bytes && a.lane == b.lane) continue;
    return fmt::format("allocation {} took {} B in one step and {} B in the next", index, a.size_bytes, b.size_bytes);
  }
  return fmt::format("{} allocations in one step and {} in the next", before.allocations.size(),
                     after.allocations.size());
}

}  // namespace

StepPlanner::StepPlanner(c10::Device device) : device_(device), allocator_(allocator_of(device)) {
  allocator_.set_before_arena([this] { return before_arena(); });
}

void StepPlanner::recall() {
  if (std::exchange(has_recalled_, true)) return;
  StepPhase* before = nullptr;
  for (Phase& phase : recall_steps(device_)) {
    if (before != nullptr) before->next = phase->digest;
    before = phase.get();
    arena_bytes_ = std::max(arena_bytes_, phase->plan.table->arena_bytes);
    phases_.push_back(std::move(phase));
  }
  if (!phases_.empty()) offer_plans();
}

void StepPlanner::write_plans() {
  for (const profiler::PlannedRun& planned : unwritten_) remember(planned.run, planned.plan);
  unwritten_.clear();
}

void StepPlanner::forget_strangers() {
  if (has_met_recalled_) return;
  if (std::erase_if(phases_, [](const Phase& phase) { return phase->recalled; }) == 0) return;
  arena_bytes_ = 0;
  for (const Phase& phase : phases_) {
    if (phase->plan.table != nullptr) arena_bytes_ = std::max(arena_bytes_, phase->plan.table->arena_bytes);
  }
  allocator_.release_arena();
}

StepPlanner::Phase StepPlanner::find(StepDigest digest) const {
  const auto found = std::find_if(phases_.begin(), phases_.end(), [&](const Phase& p) { return p->digest == digest; });
  return found == phases_.end() ? nullptr : *found;
}

bool StepPlanner::begin() {
  std::lock_guard lock(mutex_);
  recall();
  const bool has_plans =
      std::any_of(phases_.begin(), phases_.end(), [](const Phase& phase) { return phase->plan.table != nullptr; });
  allocator_.set_on_unplanned(is_learning_ && has_plans ? watch_ops : nullptr);
  if (!allocator_.begin_step(needed_arena())) return false;
  if (is_learning_ && !has_plans) watch_ops(allocator_);
  return true;
}

StepDigest StepPlanner::end(bool complete) {
  std::lock_guard lock(mutex_);
  ops_before_ = std::exchange(ops_, unwatch_ops(allocator_));
  watched_steps_ += !ops_.ops.empty();
  const bool is_whole = allocator_.end_step(complete);
  ++steps_;
  bool followed = false;
  allocator_.with_step([&](const StepScope& step) {
    followed = step.table() != nullptr;
    newest_ = is_whole ? phase_of_step(step) : nullptr;
    end_slots_before(step);
    if (newest_ == nullptr) return;
    count(*newest_, step);
    complete_record_before(newest_, step);
  });
  for (const Phase& phase : std::exchange(due_, {})) {
    if (phase->plan.table != nullptr && phase->plans_made < kMostPlans) make_plan(*phase, nullptr);
  }
  planned_steps_ += followed;
  if (!followed) is_learning_ = newest_ != nullptr;
  if (steps_ == 1) first_ = newest_;
  if (const std::string why = allocator_.why_no_step_arena(); !why.empty()) {
    drop_plans(fmt::format("cannot have the arena of {} B: {}", arena_bytes_, first_line(why)));
  } else if (followed && std::exchange(trimmed_bytes_, allocator_.arena_bytes()) != allocator_.arena_bytes()) {
    allocator_.trim();
  }
  StepDigest waiting = 0;
  if (newest_ != nullptr) {
    if (newest_->plan.table == nullptr && newest_->seen >= 2 && newest_->record) {
      if (options().share_plans) {
        waiting = newest_->digest;
      } else {
        learn(newest_);
      }
    } else if (newest_->plan.table == nullptr) {
      note_if_unsteady();
    }
  }
  before_ = newest_;
  offer_plans();
  write_plans();
  return waiting;
}

void StepPlanner::abandon() {
  std::lock_guard lock(mutex_);
  unwatch_ops(allocator_);
  allocator_.end_step(/*complete=*/false);
  before_ = newest_ = nullptr;
}

/// Null if it allocates nothing, or there will be no plans any more.
StepPlanner::Phase StepPlanner::phase_of_step(const StepScope& step) {
  const StepRecord& record = step.record();
  if (record.allocations.empty()) return nullptr;
  const StepDigest digest = step.is_as_planned() ? step.table()->digest : digest_of(record);
  auto found = std::find_if(phases_.begin(), phases_.end(), [&](const Phase& p) { return p->digest == digest; });
  if (found != phases_.end()) {
    phases_.splice(phases_.begin(), phases_, found);
  } else {
    if (is_given_up_) return nullptr;
    note_unbudgeted();
    auto phase = std::make_shared<StepPhase>();
    phase->digest = digest;
    phase->allocations = static_cast<std::int64_t>(record.allocations.size());
    for (const StepAllocation& each : record.allocations) phase->bytes += each.size_bytes;
    phases_.push_front(std::move(phase));
  }
  ++phases_.front()->seen;
  has_met_recalled_ = has_met_recalled_ || phases_.front()->recalled;
  return phases_.front();
}

void StepPlanner::count(StepPhase& phase, const StepScope& step) {
  bytes_ += phase.bytes;
  planned_bytes_ += step.counters().hits.bytes;
  if (step.table() == nullptr) return;
  ++phase.runs;
  phase.last = step.counters();
  phase.total.add(phase.last);
  if (phase.plan.table != step.table()) return;  // it was the same up to here
  if (carried_.size_bytes.empty()) carried_ = phase.plan.carried;
  if (busy_bytes(phase.last) * kMuch > phase.bytes && phase.looks_left == 0) ++phase.crowded_runs;
  if (phase.crowded_runs < kCrowdedRuns || phase.plans_made >= kMostPlans) return;
  phase.looks_left = kLooks;  // its tensors live otherwise than they did
  phase.crowded_runs = 0;
}

void StepPlanner::complete_record_before(const Phase& now, const StepScope& step) {
  if (before_ == nullptr) return;
  before_->next = now->digest;
  StepPhase& phase = *before_;
  if (!phase.record) {
    phase.record = step.record_before();
    phase.ops = ops_before_;
    phase.follows_itself = before_ == now;
    return;
  }
  if (phase.plan.table == nullptr || phase.looks_left > 0) {
    join_lifetimes(*phase.record, step.record_before(), /*complete=*/true);
    phase.follows_itself = phase.follows_itself && before_ == now;
    if (phase.looks_left > 0 && --phase.looks_left == 0) due_.push_back(before_);
  }
}

/// Steps that allocate alike, or begin alike, may keep what they allocate for longer or shorter, as the micro-steps of
/// an accumulation their gradients: a plan is for the longest.
void StepPlanner::end_slots_before(const StepScope& step) {
  if (step.table_before() == nullptr || !has_overstayed(step.record_before())) return;
  const Phase followed = find(step.table_before()->digest);
  if (followed == nullptr || !followed->record) return;
  if (end_slots_of_overstayed(step.record_before(), *followed->record)) due_.push_back(followed);
}

void StepPlanner::learn(const Phase& phase) {
  StepRecord newest;
  allocator_.with_step([&](const StepScope& step) { newest = step.record(); });
  make_plan(*phase, phase == newest_ ? &newest : nullptr);
  forget_strangers();
}

void StepPlanner::make_plan(StepPhase& phase, const StepRecord* newest) {
  using std::chrono::steady_clock;
  const auto begin = steady_clock::now();
  StepRecord record = *phase.record;
  if (newest != nullptr) join_lifetimes(record, *newest, /*complete=*/false);
  try {
    phase.plan = plan_step(record, planning_options(phase));
  } catch (const std::exception& failure) {
    note(fmt::format("cannot plan a step of {} allocations: {}; it goes on unplanned", phase.allocations,
                     first_line(failure.what())));
    is_given_up_ = true;
    return;
  }
  if (carried_.size_bytes.empty()) carried_ = phase.plan.carried;
  ++phase.plans_made;
  phase.recalled = false;
  phase.eager_peak_bytes = eager_peak_bytes(record);
  unlike_steps_ = 0;
  arena_bytes_ = std::max(arena_bytes_, phase.plan.table->arena_bytes);
  phase.planning_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - begin).count();
  remember_first();
  if (has_plan_memory()) unwritten_.push_back(to_remember(device_, phase, record, phase.ops, steps_));
}

StepPlanOptions StepPlanner::planning_options(const StepPhase& phase) const {
  StepPlanOptions how;
  how.alignment_bytes = alignment_bytes(device_);
  how.carried = carried_;
  how.cuts = cuts_;
  how.follows_itself = phase.follows_itself;
  how.deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(options().deadline_ms, kPlanningMs));
  return how;
}

void StepPlanner::remember_first() {
  const Phase first = std::exchange(first_, nullptr);
  if (first == nullptr || first->plan.table != nullptr || !first->record || !has_plan_memory()) return;
  try {
    first->plan = plan_step(*first->record, planning_options(*first));
    unwritten_.push_back(to_remember(device_, *first, *first->record, first->ops, /*step=*/1));
  } catch (const std::exception&) {
    // It goes on unplanned here as well.
  }
  first->plan = {};
}

/// Steps go on to be recorded, which costs little: one that comes again is planned.
void StepPlanner::note_if_unsteady() {
  if (newest_->seen > 1 || ++unlike_steps_ != options().max_profile_runs) return;
  std::string why;
  allocator_.with_step([&](const StepScope& step) { why = difference(step.record_before(), step.record()); });
  note(fmt::format("steps on {} are not planned: no two of {} were alike: {}; a kind that comes again will be",
                   device_.str(), unlike_steps_, why));
  is_learning_ = false;
  forget_strangers();
}

void StepPlanner::drop_plans(const std::string& why) {
  note(fmt::format("the plans of steps are given up: {}; training goes on unplanned", why));
  is_given_up_ = true;
  phases_.clear();
  before_ = newest_ = first_ = nullptr;
  arena_bytes_ = 0;
  carried_ = {};
  offer_plans();
}

void StepPlanner::offer_plans() {
  std::int64_t planned = 0;
  std::size_t unplanned = 0;
  std::erase_if(phases_, [&](const Phase& phase) {
    return phase->plan.table != nullptr ? ++planned > options().max_step_plans : ++unplanned > kUnplannedPhases;
  });
  std::vector<std::shared_ptr<StepTable>> tables;
  const Phase likely = before_ != nullptr ? find(before_->next) : nullptr;
  if (likely != nullptr && likely->plan.table != nullptr) tables.push_back(likely->plan.table);
  for (const Phase& phase : phases_) {
    if (phase->plan.table != nullptr && phase != likely) tables.push_back(phase->plan.table);
  }
  allocator_.with_step([&](StepScope& step) { step.set_tables(std::move(tables)); });
}

bool StepPlanner::has_run_backward() {
  return allocator_.with_step([](const StepScope& step) { return step.has_run_backward(); });
}

void StepPlanner::plan_now(StepDigest digest) {
  std::lock_guard lock(mutex_);
  const Phase phase = find(digest);
  if (phase == nullptr || phase->plan.table != nullptr || !phase->record) return;
  learn(phase);
  offer_plans();
  write_plans();
}

std::string StepPlanner::plan_text(StepDigest digest) const {
  std::lock_guard lock(mutex_);
  const Phase phase = find(digest);
  return phase == nullptr || phase->plan.table == nullptr ? std::string() : to_text(phase->plan);
}

std::string StepPlanner::adopt(const std::string& text) {
  std::lock_guard lock(mutex_);
  StepPlan plan;
  try {
    plan = to_plan(text, alignment_bytes(device_));
  } catch (const std::invalid_argument& failure) {
    return failure.what();
  }
  const Phase phase = find(plan.table->digest);
  if (phase == nullptr) return "no such step has been met here";
  if (phase->plan.table != nullptr) return "the step is planned already";
  phase->plan = std::move(plan);
  phase->adopted = true;
  if (carried_.size_bytes.empty()) carried_ = phase->plan.carried;
  arena_bytes_ = std::max(arena_bytes_, phase->plan.table->arena_bytes);
  offer_plans();
  return {};
}

void StepPlanner::forget() {
  std::lock_guard lock(mutex_);
  phases_.clear();
  before_ = newest_ = first_ = nullptr;
  carried_ = {};
  cuts_ = {};
  has_decided_cuts_ = false;
  is_given_up_ = false;
  unlike_steps_ = 0;
  has_recalled_ = has_met_recalled_ = false;
  is_learning_ = true;
  arena_bytes_ = steps_ = planned_steps_ = bytes_ = planned_bytes_ = 0;
  offer_plans();
}

}  // namespace stowage
