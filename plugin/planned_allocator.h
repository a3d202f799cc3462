// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plugin/arena.h"
#include "plugin/counters.h"
#include "plugin/step_scope.h"
#include "plugin/upstream.h"

namespace stowage {

/// A plan as the allocator needs it: `slots[first_slot[op] + k]` is for the k-th allocation while `op` runs.
struct SlotTable {
  std::vector<Slot> slots;
  std::vector<std::int32_t> first_slot;  ///< by op, and the total at the end
  std::int64_t arena_bytes = 0;
  std::vector<std::int64_t> cuts = {};  ///< no slot lies across one, so that the arena may be blocks; ascending

  /// The slot of the op's `index`-th allocation; null if there is none.
  const Slot* find(std::int32_t op, std::int32_t index) const;
};

/// One allocation of a profiled run. Events number the run's allocations and frees together.
struct RecordedAllocation {
  std::int32_t op = 0;
  std::int32_t index = 0;  ///< which allocation of the op, from 0
  std::int64_t size_bytes = 0;
  std::int32_t allocate_event = 0;
  std::int32_t free_op = -1;  ///< -1: outlived the run
  std::int32_t free_event = -1;
  const void* address = nullptr;
  Stream stream = 0;    ///< 0: the run's own; `kDefaultStream` where that is another
  bool direct = false;  ///< the driver allocated it, by itself

  bool operator==(const RecordedAllocation&) const = default;
};

class PlannedAllocator;

/// A thread's run of a region. At most one a thread; while it exists the thread's allocations belong to it.
class Session {
 public:
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The calling thread's, or null.
  static Session* current();

  /// The ops' marker: allocations from here on belong to `op`.
  void enter_op(std::int32_t op);

 protected:
  enum class Mode : std::uint8_t { kProfile, kPlanned };
  Session(PlannedAllocator& allocator, Mode mode);
  ~Session();
  /// Ends the session: nobody finds it any more, and the thread's earlier one goes on. May be called again. A class
  /// whose members other threads write calls it first of all.
  void leave();

  PlannedAllocator& allocator_;
  const Mode mode_;
  const Stream stream_;  ///< that the run's work goes to
  std::uint64_t id_ = 0;
  std::atomic<std::int32_t> op_{0};  ///< written by the session's thread, read by whichever frees
  std::int32_t index_ = 0;
  std::int64_t live_bytes_ = 0;  ///< upstream bytes of this run, guarded by the allocator's mutex
  std::int64_t peak_bytes_ = 0;

 private:
  friend class PlannedAllocator;
  Session* outer_ = nullptr;  ///< the thread's, before this one
};

/// Records every allocation of the thread and its free, whichever thread frees it.
class ProfileSession : public Session {
 public:
  /// `direct`, which must outlive the session, names allocations by giving them a slot: each of those comes from the
  /// driver itself, as far as that can be had.
  explicit ProfileSession(PlannedAllocator& allocator, const SlotTable* direct = nullptr);
  ~ProfileSession();

  /// The record of the live allocation at `pointer` made in this session, or -1.
  std::int32_t find(const void* pointer) const;
  /// The allocations so far, and the largest live sum of their bytes.
  std::vector<RecordedAllocation> allocations() const;
  std::int64_t peak_bytes() const;
  /// Whether the driver refused a direct allocation; those after it were not asked for.
  bool refused() const { return refused_; }

 private:
  friend class PlannedAllocator;
  const SlotTable* direct_;
  bool refused_ = false;
  std::vector<RecordedAllocation> allocations_;
  std::int32_t next_event_ = 0;
};

/// Serves the thread's allocations from a plan's slots. `table` must outlive the session.
class PlannedSession : public Session {
 public:
  /// Takes the arena, if no other run holds it and it is large enough for the plan.
  PlannedSession(PlannedAllocator& allocator, const SlotTable& table);
  ~PlannedSession();

  /// Whether the arena is ours. If not, every allocation goes upstream, uncounted.
  bool owns_arena() const { return owns_arena_; }
  /// A free point has dropped its reference to the slot at `pointer`: counts it as late if it is still live.
  void check_freed(const void* pointer);
  /// Lets the running op's allocation whose slot `reuses` lie on the live slot at `pointer`, once, if both have exactly
  /// `size_bytes`. The caller answers for it: the op alone holds the tensor there, and does not read an element of it
  /// after writing that of the result. `enter_op` takes the permission back.
  void permit_reuse(const void* pointer, std::int64_t size_bytes);
  const Counters& counters() const { return counters_; }
  /// Largest live sum of what this run took from upstream; the arena is not in it.
  std::int64_t upstream_peak_bytes() const;

 private:
  friend class PlannedAllocator;
  friend class Session;
  const SlotTable& table_;
  Counters counters_;
  Arena* arena_ = nullptr;  ///< null if there was none, and the plan needs none
  const bool owns_arena_;
  const void* reusable_ = nullptr;  ///< where the op's result may overlap its input
  std::int64_t reusable_bytes_ = 0;
};

/// Every live byte of the device, as far as it was allocated while the meter ran.
struct MeterReading {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;
};

/// Serves planned addresses over an upstream allocator.
///
/// An allocation inside a planned run is served from its slot only if, right now, the op and the stream match, the
/// bytes fit and no live slot overlaps; anything else goes upstream, counted by reason. So a wrong plan costs memory,
/// never a wrong number. One device's. Thread safe. Must outlive everything it allocated.
class PlannedAllocator {
 public:
  explicit PlannedAllocator(Upstream& upstream);

  /// Whether this thread's next allocation concerns us; if not, the caller may go to the upstream directly.
  bool intercepts(std::size_t size_bytes) const;
  /// Whether a run of the calling thread may be profiled or planned now.
  bool may_plan() { return upstream_.may_plan(); }
  /// Memory for work on `stream`; `size_bytes` > 0. Lets only the upstream's out-of-memory error through.
  void* allocate(std::size_t size_bytes, Stream stream = 0);
  /// Frees what `allocate`, or the upstream, returned. From any thread.
  void free(void* pointer) noexcept;
  /// Frees a block that we have an account of, as slot or as watched; false: the upstream must.
  bool try_free(void* pointer) noexcept;
  /// `stream` uses the block, too: if it is a slot, that is given out again only when the work is done that `stream`
  /// has when the slot is freed. False: the upstream must know of it.
  bool record_stream(const void* pointer, Stream stream);
  /// Where the upstream's block of an arena begins in which `pointer` lies, or null.
  void* block_of(const void* pointer) const;

  /// Makes an arena that the plan fits in, if the present one is none. It is cut as the plan is, where the upstream has
  /// unused memory up to there; but whole if it must serve other plans that do not fit below. Does nothing while a run
  /// holds it, another thread makes one, or no run may be planned. Lets the upstream's error through.
  void reserve_arena(const SlotTable& table);
  bool has_arena_for(const SlotTable& table) const;
  /// Gives the arena back, at once or when its last live slot is freed.
  void release_arena();
  /// Gives the arena back if no run holds it and nothing in it is live. Whether the upstream got any memory.
  bool release_idle_arena();
  std::int64_t arena_bytes() const;
  /// Has the upstream give back what it holds unused, as profiled runs leave it.
  void trim() { upstream_.release_cache(); }
  /// How much of that it cannot give back, in one piece that an arena may use. 0 if there is an arena already.
  std::int64_t spare_bytes();
  /// Every such piece, the largest first.
  std::vector<std::int64_t> spare_blocks();

  /// Opens a step: allocations of the calling thread, and of threads that run a backward, belong to it until it ends.
  /// They are served from the arena, if no run holds it. One that is good for `needed` is made when the first comes:
  /// what the step before left may be gone by then. False: a step is open already.
  bool begin_step(const SlotTable& needed);
  /// What to call, by its thread and without a lock, before a step without an arena allocates for the first time.
  /// Returns what the arena must be good for.
  void set_before_arena(std::function<SlotTable()> call) { before_arena_ = std::move(call); }
  /// Ends the step that the calling thread opened. False: it is nothing to learn from, or there is none.
  bool end_step(bool complete);
  /// Why the last step could not have its arena; empty if it could.
  std::string why_no_step_arena() const;
  /// What to call, by its thread and without a lock, when a step allocates what no plan has there, for the first time
  /// in it; null: nothing.
  void set_on_unplanned(void (*call)(PlannedAllocator&)) { on_unplanned_.store(call, std::memory_order_relaxed); }
  /// Whether a step is open that allocations of the calling thread belong to.
  bool is_in_step() const;
  /// Calls `use` with the step that is open, or was last, under the lock: no allocation and no call to us in it.
  template <typename Use>
  auto with_step(Use use) {
    std::lock_guard lock(mutex_);
    return use(step_);
  }

  /// Around a fork, on the thread that forks: nobody holds the lock in the child, and the step is not the child's.
  void before_fork() { mutex_.lock(); }
  void after_fork(bool in_child);

  /// Debug mode: fills a slot with NaN bytes (0xFF) as it is freed.
  void set_poison(bool on) { poison_.store(on, std::memory_order_relaxed); }

  /// While on, counts every byte that any thread allocates; the arena counts as one block.
  void set_meter(bool on) { meter_on_.store(on, std::memory_order_relaxed); }
  MeterReading meter() const;
  /// Sets the meter's peak to what is live now.
  void reset_meter_peak();

 private:
  friend class Session;
  friend class ProfileSession;
  friend class PlannedSession;

  /// What we know of an upstream block that we watch.
  struct Entry {
    std::int64_t size_bytes = 0;
    std::uint64_t session = 0;
    std::int32_t allocation = -1;
    bool metered = false;
    bool direct = false;  ///< from the driver itself
    StepTag tag;
  };

  void* allocate_upstream(std::size_t size_bytes, Session* session, Stream stream);
  /// Null unless the session wants it from the driver, and it can be had.
  void* allocate_direct(ProfileSession& session, std::size_t size_bytes);
  void* allocate_planned(PlannedSession& session, std::size_t size_bytes, Stream stream);
  void* allocate_in_step(std::size_t size_bytes, Stream stream);
  /// Null where the step wants no slot, or it is not free; then why.
  void* try_step_slot(const StepScope::Wanted& wanted, Miss& reason);
  /// Makes and takes the arena that the open step still lacks. Whether it has one then.
  void get_step_arena();
  /// Places or shares the slot in the current arena; null where it is not free.
  void* try_slot(PlannedSession& session, Slot slot, std::int64_t size_bytes);
  /// Remembers an upstream block of the session, or of nobody while the meter runs.
  void watch(void* pointer, Entry entry, Session* session, Stream stream);
  void record(Session& session, Entry& entry, const void* pointer, Stream stream);
  bool free_slot(void* pointer);
  /// Takes out what we know of the block; null if nothing.
  std::optional<Entry> forget(void* pointer);
  /// Ends quarantines that are over. Whether the upstream got any memory.
  bool settle();
  std::vector<std::shared_ptr<Event>> record_events(const std::vector<Stream>& streams);
  void poison(const Arena& arena, const Arena::Span& span);
  /// Takes out retired arenas without live slots; the caller frees the blocks, without the lock.
  std::vector<void*> collect_retired();
  Arena* current_arena() const;
  /// The arena for a run whose work goes to `stream`, if it fits `table` and no other run holds it; null if there is
  /// none and none is needed.
  bool take_arena(const SlotTable& table, Stream stream, Arena*& arena);
  /// For others to take; or for nobody, if it is to `retire`.
  void give_back_arena(Arena* arena, bool retire);
  bool is_arena_for(const SlotTable& table) const;
  std::vector<Arena::Block> allocate_blocks(std::int64_t size_bytes, std::vector<std::int64_t> cuts, Stream stream);
  void update_arena_range();
  Session* find_session(std::uint64_t id);

  Upstream& upstream_;
  std::atomic<bool> poison_{false};
  std::atomic<bool> meter_on_{false};
  std::atomic<std::size_t> watched_{0};         ///< entries in the ledger
  std::atomic<std::size_t> quarantined_{0};     ///< ranges of all arenas
  std::atomic<std::uintptr_t> arena_begin_{0};  ///< every arena lies within; a quick test before the lock
  std::atomic<std::uintptr_t> arena_end_{0};
  std::atomic<bool> step_lacks_arena_{false};  ///< the open step is to have one
  std::function<SlotTable()> before_arena_;    ///< set between steps
  std::atomic<Thread> step_thread_{nullptr};   ///< that opened the step which is open
  std::atomic<void (*)(PlannedAllocator&)> on_unplanned_{nullptr};

  mutable std::mutex mutex_;  ///< guards all below; never held over a call to the upstream but `fill`
  std::unordered_map<void*, Entry> ledger_;
  std::vector<Session*> sessions_;
  std::vector<std::unique_ptr<Arena>>
      arenas_;  ///< the last is current unless retired; the others await their last free
  bool arena_taken_ = false;
  StepScope step_;
  Arena* step_arena_ = nullptr;  ///< that the open step has taken, if it got it
  std::string step_arena_failure_;
  bool reserving_ = false;  ///< a thread is about to make an arena
  std::uint64_t next_session_ = 1;
  std::uint64_t next_ticket_ = 1;
  MeterReading meter_;
};

}  // namespace stowage
