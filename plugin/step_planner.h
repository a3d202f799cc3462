// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plugin/planned_allocator.h"
#include "plugin/step_ops.h"
#include "plugin/step_plan.h"
#include "plugin/torch_headers.h"
#include "profiler/store.h"

namespace stowage {

/// One kind of step: all that make the same allocations.
struct StepPhase {
  StepDigest digest = 0;
  std::int64_t allocations = 0;
  std::int64_t bytes = 0;
  std::int64_t seen = 0;
  std::optional<StepRecord> record;   ///< of such steps, complete with what the next one freed of them
  StepOps ops;                        ///< of the same step, if it was watched
  bool follows_itself = true;         ///< as far as the record shows
  StepPlan plan;                      ///< no table: not planned
  bool adopted = false;               ///< the plan came from another process
  bool recalled = false;              ///< the plan came from the store
  std::int64_t eager_peak_bytes = 0;  ///< largest sum live at once of all that such a step allocates
  std::int64_t planning_ns = 0;
  std::int64_t runs = 0;
  std::int64_t crowded_runs = 0;  ///< in which much found its slot taken, since they were last looked at
  std::int64_t looks_left = 0;    ///< runs to be looked at before it is planned anew
  std::int64_t plans_made = 0;
  Counters total;
  Counters last;
  StepDigest next = 0;  ///< the phase that came after it last time

  nlohmann::json status() const;
};

/// Plans the steps of one device. Thread safe; of `begin` and `end` each pair is one thread's.
class StepPlanner {
 public:
  explicit StepPlanner(c10::Device device);

  /// False: another step is open on the device.
  bool begin();
  /// Returns the phase that is to be planned by the caller, where plans are shared; else 0.
  StepDigest end(bool complete);
  /// As `end`, where the thread itself ends.
  void abandon();
  void plan_now(StepDigest digest);
  /// Whether a backward has allocated in the step that is open.
  bool has_run_backward();
  std::string plan_text(StepDigest digest) const;
  std::string adopt(const std::string& text);
  void forget();

  c10::Device device() const { return device_; }
  nlohmann::json status() const;

 private:
  using Phase = std::shared_ptr<StepPhase>;

  Phase find(StepDigest digest) const;
  void recall();
  /// The first step may be of a kind of its own, as optimizers make their state in it: the next process begins with it,
  /// too.
  void remember_first();
  /// Not while the allocator's lock is held.
  void write_plans();
  StepPlanOptions planning_options(const StepPhase& phase) const;
  /// Plans from the store of which none has been met are of another program.
  void forget_strangers();
  Phase phase_of_step(const StepScope& step);
  /// What the step before has shown in the one that ends now.
  void complete_record_before(const Phase& now, const StepScope& step);
  void end_slots_before(const StepScope& step);
  void learn(const Phase& phase);
  void count(StepPhase& phase, const StepScope& step);
  void make_plan(StepPhase& phase, const StepRecord* newest);
  void note_if_unsteady();
  void drop_plans(const std::string& why);
  /// The plans in the order in which the next step may follow them.
  void offer_plans();
  /// What the arena must be good for. Before the first is made, plans are laid out around the memory that the upstream
  /// holds unused and cannot give back: what fits there is needed nowhere else.
  SlotTable before_arena();
  /// All plans anew, with these cuts. The largest arena that one needs.
  std::int64_t lay_out_plans(const std::vector<std::int64_t>& cuts, std::vector<StepPlan>& plans) const;
  SlotTable needed_arena() const;

  const c10::Device device_;
  PlannedAllocator& allocator_;

  mutable std::mutex mutex_;  ///< guards all below
  std::list<Phase> phases_;   ///< most recently used first
  Phase before_;              ///< that of the step before; null if that was nothing to learn from
  Phase newest_;              ///< the same of the step that has just ended
  std::vector<Phase> due_;    ///< to be planned anew, without the allocator's lock
  CarriedSlots carried_;
  std::vector<std::int64_t> cuts_;  ///< of all plans
  bool has_decided_cuts_ = false;
  std::int64_t unlike_steps_ = 0;  ///< since the last plan: met for the first time
  bool is_given_up_ = false;       ///< there will be no plans any more
  std::int64_t arena_bytes_ = 0;   ///< the largest that a plan needs
  std::int64_t steps_ = 0;
  std::int64_t planned_steps_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t planned_bytes_ = 0;
  std::int64_t trimmed_bytes_ = 0;  ///< the arena for which the upstream has given back what profiling left
  bool has_recalled_ = false;
  bool has_met_recalled_ = false;  ///< the store knows this program
  std::vector<profiler::PlannedRun> unwritten_;
  bool is_learning_ = true;  ///< the newest step that followed no plan may be met again
  Phase first_;              ///< that of the first step, until a plan is made
  StepOps ops_before_;       ///< of the step before, if it was watched
  StepOps ops_;
  std::int64_t watched_steps_ = 0;
};

}  // namespace stowage
