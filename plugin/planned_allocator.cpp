// SPDX-License-Identifier: Apache-2.0
#include "plugin/planned_allocator.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stowage {
namespace {

thread_local Session* t_session = nullptr;

}  // namespace

std::string_view to_string(Miss reason) {
  static constexpr std::array<std::string_view, kMissCount> kNames = {"escapes", "unplanned", "too_large", "busy",
                                                                      "held"};
  return kNames[static_cast<std::size_t>(reason)];
}

void Counters::add(const Counters& other) {
  auto add_count = [](Count& to, const Count& from) {
    to.allocations += from.allocations;
    to.bytes += from.bytes;
  };
  add_count(hits, other.hits);
  add_count(reused, other.reused);
  for (std::size_t reason = 0; reason < kMissCount; ++reason) add_count(misses[reason], other.misses[reason]);
  late_frees += other.late_frees;
}

// --- sessions -------------------------------------------------------------------------------------------------------

Session* Session::current() { return t_session; }

Session::Session(PlannedAllocator& allocator, Mode mode) : allocator_(allocator), mode_(mode) {
  std::lock_guard lock(allocator_.mutex_);
  id_ = allocator_.next_session_++;
  allocator_.sessions_.push_back(this);
  outer_ = std::exchange(t_session, this);
}

Session::~Session() { leave(); }

void Session::leave() {
  if (t_session == this) t_session = outer_;
  std::lock_guard lock(allocator_.mutex_);
  std::erase(allocator_.sessions_, this);
}

void Session::enter_op(std::int32_t op) {
  op_.store(op, std::memory_order_relaxed);
  index_ = 0;
  if (mode_ == Mode::kPlanned) static_cast<PlannedSession*>(this)->reusable_ = nullptr;
}

ProfileSession::ProfileSession(PlannedAllocator& allocator) : Session(allocator, Mode::kProfile) {}

ProfileSession::~ProfileSession() { leave(); }

std::int32_t ProfileSession::find(const void* pointer) const {
  std::lock_guard lock(allocator_.mutex_);
  const auto entry = allocator_.ledger_.find(const_cast<void*>(pointer));
  return entry != allocator_.ledger_.end() && entry->second.session == id_ ? entry->second.allocation : -1;
}

std::vector<RecordedAllocation> ProfileSession::allocations() const {
  std::lock_guard lock(allocator_.mutex_);
  return allocations_;
}

std::int64_t ProfileSession::peak_bytes() const {
  std::lock_guard lock(allocator_.mutex_);
  return peak_bytes_;
}

PlannedSession::PlannedSession(PlannedAllocator& allocator, const SlotTable& table)
    : Session(allocator, Mode::kPlanned), table_(table) {
  std::lock_guard lock(allocator_.mutex_);
  const auto& arenas = allocator_.arenas_;
  const bool fits = table.arena_bytes == 0 ||
                    (!arenas.empty() && !arenas.back()->retired && arenas.back()->size_bytes >= table.arena_bytes);
  if (fits && !allocator_.arena_taken_) owns_arena_ = allocator_.arena_taken_ = true;
}

PlannedSession::~PlannedSession() {
  if (!owns_arena_) return;
  std::vector<void*> blocks;
  {
    std::lock_guard lock(allocator_.mutex_);
    allocator_.arena_taken_ = false;
    blocks = allocator_.collect_retired();
  }
  for (void* block : blocks) allocator_.free(block);
}

std::int64_t PlannedSession::upstream_peak_bytes() const {
  std::lock_guard lock(allocator_.mutex_);
  return peak_bytes_;
}

void PlannedSession::check_freed(const void* pointer) {
  if (!owns_arena_) return;
  std::lock_guard lock(allocator_.mutex_);
  if (table_.arena_bytes != 0 && allocator_.arenas_.back()->is_live(pointer)) ++counters_.late_frees;
}

void PlannedSession::permit_reuse(const void* pointer, std::int64_t size_bytes) {
  reusable_ = pointer;
  reusable_bytes_ = size_bytes;
}

// --- arena ----------------------------------------------------------------------------------------------------------

bool PlannedAllocator::Arena::contains(const void* pointer) const {
  const auto* byte = static_cast<const char*>(pointer);
  return byte >= base && byte < base + size_bytes;
}

std::vector<PlannedAllocator::Arena::Span>::iterator PlannedAllocator::Arena::find(const void* pointer) {
  const std::int64_t begin = static_cast<const char*>(pointer) - base;
  const auto at = std::lower_bound(live.begin(), live.end(), begin,
                                   [](const Span& span, std::int64_t offset) { return span.begin_bytes < offset; });
  return at != live.end() && at->begin_bytes == begin ? at : live.end();
}

bool PlannedAllocator::Arena::is_live(const void* pointer) { return contains(pointer) && find(pointer) != live.end(); }

bool PlannedAllocator::Arena::try_place(Slot slot) {
  if (slot.offset_bytes < 0 || slot.size_bytes > size_bytes - slot.offset_bytes) return false;
  const Span span{slot.offset_bytes, slot.offset_bytes + slot.size_bytes};
  const auto after = std::lower_bound(live.begin(), live.end(), span.begin_bytes,
                                      [](const Span& other, std::int64_t begin) { return other.begin_bytes < begin; });
  if (after != live.end() && after->begin_bytes < span.end_bytes) return false;
  if (after != live.begin() && std::prev(after)->end_bytes > span.begin_bytes) return false;
  live.insert(after, span);
  return true;
}

bool PlannedAllocator::Arena::try_share(Slot slot) {
  const auto span = find(base + slot.offset_bytes);
  if (span == live.end() || span->holders != 1 || span->end_bytes - span->begin_bytes != slot.size_bytes) return false;
  ++span->holders;
  return true;
}

void PlannedAllocator::reserve_arena(std::int64_t size_bytes) {
  if (arena_bytes() >= size_bytes) return;
  {
    std::lock_guard lock(mutex_);
    if (arena_taken_ || std::exchange(reserving_, true)) return;
  }
  release_arena();  // first, so that old and new are not held at once
  auto arena = std::make_unique<Arena>();
  try {
    arena->base = static_cast<char*>(allocate_upstream(static_cast<std::size_t>(size_bytes), nullptr));
  } catch (...) {
    std::lock_guard lock(mutex_);
    reserving_ = false;
    throw;
  }
  arena->size_bytes = size_bytes;
  if (poison_.load(std::memory_order_relaxed)) std::memset(arena->base, 0xFF, static_cast<std::size_t>(size_bytes));
  std::lock_guard lock(mutex_);
  arenas_.push_back(std::move(arena));
  update_arena_range();
  reserving_ = false;
}

void PlannedAllocator::release_arena() {
  std::vector<void*> blocks;
  {
    std::lock_guard lock(mutex_);
    if (arenas_.empty()) return;
    arenas_.back()->retired = true;
    blocks = collect_retired();
  }
  for (void* block : blocks) free(block);
}

std::vector<void*> PlannedAllocator::collect_retired() {
  std::vector<void*> blocks;
  std::erase_if(arenas_, [&](const auto& arena) {
    const bool in_use = arena_taken_ && arena == arenas_.back();
    if (!arena->retired || !arena->live.empty() || in_use) return false;
    blocks.push_back(arena->base);
    return true;
  });
  update_arena_range();
  return blocks;
}

std::int64_t PlannedAllocator::arena_bytes() const {
  std::lock_guard lock(mutex_);
  return arenas_.empty() || arenas_.back()->retired ? 0 : arenas_.back()->size_bytes;
}

void PlannedAllocator::update_arena_range() {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  for (const auto& arena : arenas_) {
    const auto base = reinterpret_cast<std::uintptr_t>(arena->base);
    begin = begin == 0 ? base : std::min(begin, base);
    end = std::max(end, base + static_cast<std::uintptr_t>(arena->size_bytes));
  }
  arena_begin_.store(begin, std::memory_order_release);
  arena_end_.store(end, std::memory_order_release);
}

// --- allocate and free ----------------------------------------------------------------------------------------------

PlannedAllocator::PlannedAllocator(Upstream& upstream) : upstream_(upstream) {}

bool PlannedAllocator::intercepts() const {
  return (t_session != nullptr && &t_session->allocator_ == this) || meter_on_.load(std::memory_order_relaxed);
}

void* PlannedAllocator::allocate(std::size_t size_bytes) {
  Session* session = t_session;
  if (session == nullptr || &session->allocator_ != this) return allocate_upstream(size_bytes, nullptr);
  if (session->mode_ == Session::Mode::kProfile) return allocate_upstream(size_bytes, session);
  return allocate_planned(static_cast<PlannedSession&>(*session), size_bytes);
}

void* PlannedAllocator::allocate_planned(PlannedSession& session, std::size_t size_bytes) {
  const auto bytes = static_cast<std::int64_t>(size_bytes);
  if (!session.owns_arena_) return allocate_upstream(size_bytes, &session);

  const SlotTable& table = session.table_;
  const auto op = static_cast<std::size_t>(session.op_.load(std::memory_order_relaxed));
  Miss reason = Miss::kUnplanned;
  if (op + 1 < table.first_slot.size() && table.first_slot[op] + session.index_ < table.first_slot[op + 1]) {
    const std::int32_t slot_id = table.first_slot[op] + session.index_++;
    const Slot slot = table.slots[static_cast<std::size_t>(slot_id)];
    if (slot.size_bytes == 0) {
      reason = Miss::kEscapes;
    } else if (bytes > slot.size_bytes) {
      reason = Miss::kTooLarge;
    } else {
      std::lock_guard lock(mutex_);
      Arena* arena = arenas_.empty() ? nullptr : arenas_.back().get();
      const bool may_share = slot.reuses && arena != nullptr && session.reusable_ == arena->base + slot.offset_bytes &&
                             session.reusable_bytes_ == bytes;
      if (slot.reuses) session.reusable_ = nullptr;
      if (may_share && arena->try_share(slot)) {
        session.counters_.reused.add(bytes);
        session.counters_.hits.add(bytes);
        return arena->base + slot.offset_bytes;
      }
      if (arena != nullptr && arena->try_place(slot)) {
        session.counters_.hits.add(bytes);
        return arena->base + slot.offset_bytes;
      }
      reason = slot.reuses ? Miss::kHeld : Miss::kBusy;
    }
  }
  session.counters_.misses[static_cast<std::size_t>(reason)].add(bytes);
  return allocate_upstream(size_bytes, &session);
}

void* PlannedAllocator::allocate_upstream(std::size_t size_bytes, Session* session) {
  void* pointer = upstream_.allocate(size_bytes);
  const bool metered = meter_on_.load(std::memory_order_relaxed);
  if (session == nullptr && !metered) return pointer;

  Entry entry;
  entry.size_bytes = static_cast<std::int64_t>(size_bytes);
  entry.metered = metered;
  std::lock_guard lock(mutex_);
  if (metered) {
    meter_.live_bytes += entry.size_bytes;
    meter_.peak_bytes = std::max(meter_.peak_bytes, meter_.live_bytes);
  }
  if (session != nullptr) {
    entry.session = session->id_;
    session->live_bytes_ += entry.size_bytes;
    session->peak_bytes_ = std::max(session->peak_bytes_, session->live_bytes_);
    if (session->mode_ == Session::Mode::kProfile) {
      auto& profile = static_cast<ProfileSession&>(*session);
      entry.allocation = static_cast<std::int32_t>(profile.allocations_.size());
      profile.allocations_.push_back({session->op_, session->index_++, entry.size_bytes, profile.next_event_++,
                                      /*free_op=*/-1, /*free_event=*/-1});
    }
  }
  ledger_[pointer] = entry;
  watched_.store(ledger_.size(), std::memory_order_release);
  return pointer;
}

void PlannedAllocator::free(void* pointer) noexcept {
  if (pointer == nullptr) return;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address >= arena_begin_.load(std::memory_order_acquire) && address < arena_end_.load(std::memory_order_acquire) &&
      free_slot(pointer)) {
    return;
  }
  if (watched_.load(std::memory_order_acquire) != 0) forget(pointer);
  upstream_.free(pointer);
}

bool PlannedAllocator::free_slot(void* pointer) {
  std::vector<void*> blocks;
  {
    std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(arenas_.begin(), arenas_.end(), [&](const auto& arena) { return arena->contains(pointer); });
    if (found == arenas_.end()) return false;
    Arena& arena = **found;
    const auto span = arena.find(pointer);
    if (span == arena.live.end()) return true;  // not live: a double free, dropped
    if (--span->holders > 0) return true;
    if (poison_.load(std::memory_order_relaxed)) {
      std::memset(pointer, 0xFF, static_cast<std::size_t>(span->end_bytes - span->begin_bytes));
    }
    arena.live.erase(span);
    if (arena.retired) blocks = collect_retired();
  }
  for (void* block : blocks) free(block);
  return true;
}

void PlannedAllocator::forget(void* pointer) {
  std::lock_guard lock(mutex_);
  const auto found = ledger_.find(pointer);
  if (found == ledger_.end()) return;
  const Entry entry = found->second;
  ledger_.erase(found);
  watched_.store(ledger_.size(), std::memory_order_release);
  if (entry.metered) meter_.live_bytes -= entry.size_bytes;
  Session* session = find_session(entry.session);
  if (session == nullptr) return;
  session->live_bytes_ -= entry.size_bytes;
  if (session->mode_ == Session::Mode::kProfile) {
    auto& profile = static_cast<ProfileSession&>(*session);
    RecordedAllocation& allocation = profile.allocations_[static_cast<std::size_t>(entry.allocation)];
    allocation.free_op = session->op_;
    allocation.free_event = profile.next_event_++;
  }
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
