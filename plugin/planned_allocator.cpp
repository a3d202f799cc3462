// SPDX-License-Identifier: Apache-2.0
#include "plugin/planned_allocator.h"

#include <algorithm>
#include <utility>

namespace stowage {

const Slot* SlotTable::find(std::int32_t op, std::int32_t index) const {
  const auto at = static_cast<std::size_t>(op);
  if (at + 1 >= first_slot.size() || first_slot[at] + index >= first_slot[at + 1]) return nullptr;
  return &slots[static_cast<std::size_t>(first_slot[at]) + static_cast<std::size_t>(index)];
}

PlannedAllocator::PlannedAllocator(Upstream& upstream) : upstream_(upstream) {}

bool PlannedAllocator::intercepts(std::size_t size_bytes) const {
  const Session* session = Session::current();
  if ((session != nullptr && &session->allocator_ == this) || meter_on_.load(std::memory_order_relaxed)) return true;
  return static_cast<std::int64_t>(size_bytes) >= kLeastStepBytes && is_in_step();
}

void* PlannedAllocator::allocate(std::size_t size_bytes, Stream stream) {
  Session* session = Session::current();
  if (session == nullptr || &session->allocator_ != this) {
    const bool is_of_step = static_cast<std::int64_t>(size_bytes) >= kLeastStepBytes && is_in_step();
    return is_of_step ? allocate_in_step(size_bytes, stream) : allocate_upstream(size_bytes, nullptr, stream);
  }
  if (session->mode_ == Session::Mode::kProfile) return allocate_upstream(size_bytes, session, stream);
  return allocate_planned(static_cast<PlannedSession&>(*session), size_bytes, stream);
}

void* PlannedAllocator::allocate_planned(PlannedSession& session, std::size_t size_bytes, Stream stream) {
  const auto bytes = static_cast<std::int64_t>(size_bytes);
  if (!session.owns_arena_) return allocate_upstream(size_bytes, &session, stream);

  Miss reason = Miss::kUnplanned;
  const Slot* planned = session.table_.find(session.op_.load(std::memory_order_relaxed), session.index_);
  if (planned != nullptr) {
    const Slot slot = *planned;
    if (slot.size_bytes == 0) {
      reason = Miss::kEscapes;
    } else if (stream != session.stream_) {
      reason = Miss::kStream;
    } else if (bytes > slot.size_bytes) {
      reason = Miss::kTooLarge;
    } else {
      void* pointer = try_slot(session, slot, bytes);
      if (pointer == nullptr && quarantined_.load(std::memory_order_acquire) != 0) {
        settle();
        pointer = try_slot(session, slot, bytes);
      }
      if (slot.reuses) session.reusable_ = nullptr;
      if (pointer != nullptr) {
        ++session.index_;
        return pointer;
      }
      reason = slot.reuses ? Miss::kHeld : Miss::kBusy;
    }
  }
  void* pointer = allocate_upstream(size_bytes, &session, stream);  // counted only then: who gets none may ask again
  if (planned != nullptr) ++session.index_;
  session.counters_.misses[static_cast<std::size_t>(reason)].add(bytes);
  return pointer;
}

void* PlannedAllocator::try_slot(PlannedSession& session, Slot slot, std::int64_t size_bytes) {
  std::lock_guard lock(mutex_);
  if (session.arena_ == nullptr) return nullptr;
  Arena& arena = *session.arena_;
  void* pointer = arena.address_of(slot.offset_bytes);
  const bool may_share = slot.reuses && session.reusable_ == pointer && session.reusable_bytes_ == size_bytes;
  if (may_share && arena.try_share(slot)) {
    session.counters_.reused.add(size_bytes);
  } else if (!arena.try_place(slot)) {
    return nullptr;
  }
  session.counters_.hits.add(size_bytes);
  return pointer;
}

void* PlannedAllocator::allocate_upstream(std::size_t size_bytes, Session* session, Stream stream) {
  Entry entry;
  void* pointer = nullptr;
  if (session != nullptr && session->mode_ == Session::Mode::kProfile && session->stream_ == stream) {
    pointer = allocate_direct(static_cast<ProfileSession&>(*session), size_bytes);
    entry.direct = pointer != nullptr;
  }
  if (pointer == nullptr) pointer = upstream_.allocate(size_bytes, stream);
  entry.size_bytes = static_cast<std::int64_t>(size_bytes);
  watch(pointer, entry, session, stream);
  return pointer;
}

void PlannedAllocator::watch(void* pointer, Entry entry, Session* session, Stream stream) {
  entry.metered = meter_on_.load(std::memory_order_relaxed);
  if (session == nullptr && !entry.metered && entry.tag.step == 0) return;
  std::lock_guard lock(mutex_);
  if (entry.metered) {
    meter_.live_bytes += entry.size_bytes;
    meter_.peak_bytes = std::max(meter_.peak_bytes, meter_.live_bytes);
  }
  if (session != nullptr) record(*session, entry, pointer, stream);
  ledger_[pointer] = entry;
  watched_.store(ledger_.size(), std::memory_order_release);
}

void* PlannedAllocator::allocate_direct(ProfileSession& session, std::size_t size_bytes) {
  if (session.direct_ == nullptr || session.refused_) return nullptr;
  const Slot* slot = session.direct_->find(session.op_.load(std::memory_order_relaxed), session.index_);
  if (slot == nullptr || slot->size_bytes == 0) return nullptr;
  void* pointer = upstream_.allocate_direct(size_bytes);
  session.refused_ = pointer == nullptr;
  return pointer;
}

void PlannedAllocator::record(Session& session, Entry& entry, const void* pointer, Stream stream) {
  entry.session = session.id_;
  session.live_bytes_ += entry.size_bytes;
  session.peak_bytes_ = std::max(session.peak_bytes_, session.live_bytes_);
  if (session.mode_ != Session::Mode::kProfile) return;
  auto& profile = static_cast<ProfileSession&>(session);
  entry.allocation = static_cast<std::int32_t>(profile.allocations_.size());
  profile.allocations_.push_back({.op = session.op_,
                                  .index = session.index_++,
                                  .size_bytes = entry.size_bytes,
                                  .allocate_event = profile.next_event_++,
                                  .address = pointer,
                                  .stream = stream == session.stream_ ? 0
                                            : stream == 0             ? kDefaultStream
                                                                      : stream,
                                  .direct = entry.direct});
}

void PlannedAllocator::free(void* pointer) noexcept {
  if (pointer != nullptr && !try_free(pointer)) upstream_.free(pointer);
}

bool PlannedAllocator::try_free(void* pointer) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address >= arena_begin_.load(std::memory_order_acquire) && address < arena_end_.load(std::memory_order_acquire) &&
      free_slot(pointer)) {
    return true;
  }
  if (watched_.load(std::memory_order_acquire) == 0) return false;
  const std::optional<Entry> entry = forget(pointer);
  if (!entry) return false;
  if (entry->direct) {
    upstream_.free_direct(pointer);
  } else {
    upstream_.free(pointer);
  }
  return true;
}

bool PlannedAllocator::free_slot(void* pointer) {
  std::vector<void*> blocks;
  std::uint64_t ticket = 0;
  std::vector<Stream> streams;
  {
    std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(arenas_.begin(), arenas_.end(), [&](const auto& arena) { return arena->contains(pointer); });
    if (found == arenas_.end()) return false;
    Arena& arena = **found;
    const auto let_go = arena.let_go(pointer, next_ticket_);
    if (!let_go) return true;  // held by another storage, or not live: a double free, dropped
    step_.free(let_go->span.tag);
    if (let_go->may_end) {
      poison(arena, let_go->span);
      arena.end(pointer);
      if (arena.retired) blocks = collect_retired();
    } else {
      ticket = next_ticket_++;
      streams = arena.quarantines().back().streams;
      quarantined_.fetch_add(1, std::memory_order_acq_rel);
    }
  }
  for (void* block : blocks) free(block);
  if (ticket == 0) return true;

  std::vector<std::shared_ptr<Event>> events = record_events(streams);
  std::lock_guard lock(mutex_);
  for (const auto& arena : arenas_) arena->set_events(ticket, events);
  return true;
}

std::optional<PlannedAllocator::Entry> PlannedAllocator::forget(void* pointer) {
  std::lock_guard lock(mutex_);
  const auto found = ledger_.find(pointer);
  if (found == ledger_.end()) return std::nullopt;
  const Entry entry = found->second;
  ledger_.erase(found);
  watched_.store(ledger_.size(), std::memory_order_release);
  if (entry.metered) meter_.live_bytes -= entry.size_bytes;
  step_.free(entry.tag);
  Session* session = find_session(entry.session);
  if (session == nullptr) return entry;
  session->live_bytes_ -= entry.size_bytes;
  if (session->mode_ == Session::Mode::kProfile) {
    auto& profile = static_cast<ProfileSession&>(*session);
    RecordedAllocation& allocation = profile.allocations_[static_cast<std::size_t>(entry.allocation)];
    allocation.free_op = session->op_;
    allocation.free_event = profile.next_event_++;
  }
  return entry;
}

Session* PlannedAllocator::find_session(std::uint64_t id) {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(), [&](Session* s) { return s->id_ == id; });
  return found == sessions_.end() ? nullptr : *found;
}

MeterReading PlannedAllocator::meter() const {
  std::lock_guard lock(mutex_);
  return meter_;
}

void PlannedAllocator::reset_meter_peak() {
  std::lock_guard lock(mutex_);
  meter_.peak_bytes = meter_.live_bytes;
}

}  // namespace stowage
