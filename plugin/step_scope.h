// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/counters.h"
#include "plugin/step_record.h"
#include "plugin/upstream.h"

namespace stowage {

/// Tells threads apart.
using Thread = const void*;
Thread this_thread();

/// The step that is open on a device, or was last: records what it allocates, and follows the plan of the phase that it
/// turns out to be. Not thread safe: the allocator's mutex guards it.
///
/// A phase is found by the first sizes of its sequence. The k-th allocation of a lane is looked for at the lane's
/// position in the plan. What is not there goes upstream; where the last three sizes are found further on in the plan,
/// the position moves there, and back again if that was too far. So one more or one less puts a step out of order for a
/// few allocations, not for good.
class StepScope {
 public:
  struct Wanted {
    StepTag tag;
    bool is_planned = false;  ///< the plan knows of it
    std::int32_t entry = -1;
    std::int64_t offset_bytes = 0;
    std::int64_t slot_bytes = 0;  ///< 0: it gets no slot
    bool leaves_plans = false;    ///< the step's first that no plan foresaw where it came
  };

  /// The plans to choose from, the likeliest first.
  void set_tables(std::vector<std::shared_ptr<StepTable>> tables) { tables_ = std::move(tables); }

  /// The calling thread opens a step, whose work goes to `stream`. The step before is remembered, those before
  /// forgotten.
  void begin(Thread thread, Stream stream);
  /// It is over. False: it ended early, or was disturbed, and is nothing to learn from.
  bool end(bool complete);

  bool is_open() const { return is_open_; }
  Thread thread() const { return lanes_.empty() ? nullptr : lanes_.front().thread; }
  Stream stream() const { return stream_; }
  std::uint32_t number() const { return number_; }
  /// By lane.
  std::vector<Thread> threads() const;

  /// Records an allocation, and says where it belongs.
  Wanted allocate(Thread thread, std::int64_t size_bytes);
  /// The calling thread works for a backward.
  void see_backward() { has_run_backward_ = true; }
  bool has_run_backward() const { return has_run_backward_; }
  /// It got the slot that it wanted.
  void hit(const Wanted& wanted);
  void miss(Miss reason, std::int64_t size_bytes) {
    counters_.misses[static_cast<std::size_t>(reason)].add(size_bytes);
  }
  void free(StepTag tag);
  /// Something else happened in the step than will in others: a graph was profiled, memory ran out.
  void disturb() { is_disturbed_ = true; }

  /// The step that is open, or was last. Complete as to its own frees when it has ended, as to those in the next step
  /// when that has.
  const StepRecord& record() const { return now_; }
  const StepRecord& record_before() const { return before_; }
  /// What the step followed, or null.
  const std::shared_ptr<StepTable>& table() const { return table_; }
  const std::shared_ptr<StepTable>& table_before() const { return table_before_; }
  /// Whether it did so from begin to end: the step was the phase.
  bool is_as_planned() const;
  const Counters& counters() const { return counters_; }

 private:
  static constexpr std::size_t kContext = 3;  ///< sizes that tell a position
  static constexpr int kLatestStart = 8;      ///< allocations after which a step without a plan goes on without
  static constexpr int kMostSearches = 64;    ///< in vain, in a row; then the lane goes on upstream

  struct Lane {
    Thread thread = nullptr;
    std::int32_t count = 0;
    StepDigest digest = 0;
    std::size_t position = 0;
    std::size_t floor = 0;                        ///< from where it has jumped forward; what comes before has been
    std::array<std::int64_t, kContext> recent{};  ///< sizes, the newest last
    int searches = 0;
  };

  std::int32_t lane_of(Thread thread);
  const StepTable::Entry* match(std::int32_t lane, std::int64_t size_bytes);
  /// Another plan that all lanes would have followed up to here.
  bool change_table();
  const StepTable::Entry* find_table(std::int32_t lane);
  const StepTable::Entry* find_position(Lane& lane, const std::vector<StepTable::Entry>& entries);
  std::vector<LeftBehind> left_behind() const;

  std::vector<std::shared_ptr<StepTable>> tables_;
  std::shared_ptr<StepTable> table_;
  std::shared_ptr<StepTable> table_before_;
  std::int32_t turn_ = 0;
  bool is_open_ = false;
  bool is_disturbed_ = false;
  bool has_run_backward_ = false;
  bool is_in_order_ = true;  ///< all lanes have followed the plan so far
  std::uint32_t number_ = 0;
  Stream stream_ = 0;
  std::vector<Lane> lanes_;
  StepRecord now_;
  StepRecord before_;
  Counters counters_;
};

}  // namespace stowage
