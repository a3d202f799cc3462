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
    : Session(allocator, Mode::kPlanned), table_(table) {
  allocator.settle();
  Stream before = stream_;
  {
    std::lock_guard lock(allocator.mutex_);
    Arena* arena = allocator.current_arena();
    if (!allocator.is_arena_for(table) || allocator.arena_taken_) return;
    owns_arena_ = allocator.arena_taken_ = true;
    arena_ = arena;
    if (arena != nullptr) {
      arena->taken = true;
      before = arena->take_for(stream_);
    }
  }
  if (before == stream_) return;
  try {
    allocator.upstream_.wait(stream_, before);
    for (const Arena::Block& block : arena_->blocks()) allocator.upstream_.record_stream(block.base, stream_);
  } catch (...) {
    give_back(/*retire=*/true);  // no run can tell any more whose work it follows
    throw;
  }
}

PlannedSession::~PlannedSession() {
  if (owns_arena_) give_back(/*retire=*/false);
}

void PlannedSession::give_back(bool retire) {
  std::vector<void*> blocks;
  {
    std::lock_guard lock(allocator_.mutex_);
    allocator_.arena_taken_ = false;
    if (arena_ != nullptr) {
      arena_->taken = false;
      arena_->retired |= retire;
    }
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
  if (arena_ != nullptr && arena_->is_live(pointer)) ++counters_.late_frees;
}

void PlannedSession::permit_reuse(const void* pointer, std::int64_t size_bytes) {
  reusable_ = pointer;
  reusable_bytes_ = size_bytes;
}

}  // namespace stowage
