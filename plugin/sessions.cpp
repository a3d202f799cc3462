// SPDX-License-Identifier: Apache-2.0
#include <mutex>
#include <utility>

#include "plugin/planned_allocator.h"

namespace stowage {
namespace {

thread_local Session* t_session = nullptr;

}  // namespace

Session* Session::current() { return t_session; }

Session::Session(PlannedAllocator& allocator, Mode mode)
    : allocator_(allocator), mode_(mode), stream_(allocator.upstream_.current_stream()) {
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

ProfileSession::ProfileSession(PlannedAllocator& allocator, const SlotTable* direct)
    : Session(allocator, Mode::kProfile), direct_(direct) {
  if (allocator.is_in_step()) allocator.with_step([](StepScope& step) { step.disturb(); });
  if (direct != nullptr) allocator.upstream_.release_cache();
}

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
    : Session(allocator, Mode::kPlanned), table_(table), owns_arena_(allocator.take_arena(table, stream_, arena_)) {}

PlannedSession::~PlannedSession() {
  if (owns_arena_) allocator_.give_back_arena(arena_, /*retire=*/false);
}

std::int64_t PlannedSession::upstream_peak_bytes() const {
  std::lock_guard lock(allocator_.mutex_);
  return peak_bytes_;
}

void PlannedSession::check_freed(const void* pointer) {
  if (!owns_arena_) return;
  std::lock_guard lock(allocator_.mutex_);
  if (arena_ != nullptr && arena_->is_live(pointer)) ++counters_.late_frees;
}

void PlannedSession::permit_reuse(const void* pointer, std::int64_t size_bytes) {
  reusable_ = pointer;
  reusable_bytes_ = size_bytes;
}

}  // namespace stowage
