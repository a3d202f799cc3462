// SPDX-License-Identifier: Apache-2.0
//
// What `PlannedAllocator` does about steps.
#include <exception>
#include <mutex>
#include <utility>

#include "plugin/planned_allocator.h"

namespace stowage {

bool PlannedAllocator::is_in_step() const {
  const Thread thread = step_thread_.load(std::memory_order_acquire);
  return thread != nullptr && (thread == this_thread() || upstream_.runs_backward());
}

bool PlannedAllocator::begin_step(const SlotTable& needed) {
  if (with_step([](const StepScope& step) { return step.is_open(); })) return false;
  const Stream stream = upstream_.current_stream();
  Arena* arena = nullptr;
  const bool may_plan = needed.arena_bytes > 0 && upstream_.may_plan();
  if (may_plan) take_arena(needed, stream, arena);
  {
    std::lock_guard lock(mutex_);
    if (!step_.is_open()) {
      step_.begin(this_thread(), stream);
      step_arena_ = arena;
      step_lacks_arena_.store(may_plan && !is_arena_for(needed), std::memory_order_relaxed);
      step_arena_failure_.clear();
      // What has outlived two steps is nobody's concern any more.
      std::erase_if(ledger_, [&](const auto& known) {
        const Entry& entry = known.second;
        return entry.tag.step != 0 && entry.tag.step + 1 < step_.number() && !entry.metered;
      });
      watched_.store(ledger_.size(), std::memory_order_release);
      step_thread_.store(this_thread(), std::memory_order_release);
      return true;
    }
  }
  if (arena != nullptr) give_back_arena(arena, /*retire=*/false);
  return false;
}

bool PlannedAllocator::end_step(bool complete) {
  Arena* arena = nullptr;
  bool is_whole = false;
  {
    std::lock_guard lock(mutex_);
    if (!step_.is_open() || step_.thread() != this_thread()) return false;
    step_thread_.store(nullptr, std::memory_order_release);
    is_whole = step_.end(complete);
    arena = std::exchange(step_arena_, nullptr);
  }
  if (arena != nullptr) give_back_arena(arena, /*retire=*/false);
  return is_whole;
}

void* PlannedAllocator::allocate_in_step(std::size_t size_bytes, Stream stream) {
  const auto bytes = static_cast<std::int64_t>(size_bytes);
  if (step_lacks_arena_.exchange(false, std::memory_order_relaxed)) get_step_arena();
  StepScope::Wanted wanted;
  Miss reason = Miss::kStream;
  {
    std::lock_guard lock(mutex_);
    if (!upstream_.may_serve()) {
      step_.disturb();
    } else if (step_.is_open() && stream == step_.stream()) {
      if (!step_.has_run_backward() && upstream_.runs_backward()) step_.see_backward();
      wanted = step_.allocate(this_thread(), bytes);
      if (void* pointer = try_step_slot(wanted, reason)) return pointer;
    }
  }
  if (wanted.leaves_plans) {
    if (const auto call = on_unplanned_.load(std::memory_order_relaxed)) call(*this);
  }
  if (reason == Miss::kBusy && settle()) {
    std::lock_guard lock(mutex_);
    if (void* pointer = try_step_slot(wanted, reason)) return pointer;
  }
  Entry entry;
  entry.size_bytes = bytes;
  entry.tag = wanted.tag;
  void* pointer = nullptr;
  try {
    pointer = upstream_.allocate(size_bytes, stream);
  } catch (...) {
    with_step([](StepScope& step) { step.disturb(); });
    throw;
  }
  with_step([&](StepScope& step) { step.miss(reason, bytes); });
  watch(pointer, entry, nullptr, stream);
  return pointer;
}

void PlannedAllocator::get_step_arena() {
  Arena* arena = nullptr;
  try {
    const SlotTable needed = before_arena_();
    reserve_arena(needed);
    if (!take_arena(needed, with_step([](const StepScope& step) { return step.stream(); }), arena)) return;
  } catch (const std::exception& failure) {
    std::lock_guard lock(mutex_);
    step_arena_failure_ = failure.what();
    return;
  }
  std::lock_guard lock(mutex_);
  step_arena_ = arena;
}

std::string PlannedAllocator::why_no_step_arena() const {
  std::lock_guard lock(mutex_);
  return step_arena_failure_;
}

void PlannedAllocator::after_fork(bool in_child) {
  if (in_child) {
    step_thread_.store(nullptr, std::memory_order_release);
    if (step_.is_open()) step_.end(/*complete=*/false);
    step_arena_ = nullptr;
  }
  mutex_.unlock();
}

void* PlannedAllocator::try_step_slot(const StepScope::Wanted& wanted, Miss& reason) {
  reason = !wanted.is_planned ? Miss::kUnplanned : wanted.slot_bytes == 0 ? Miss::kEscapes : Miss::kBusy;
  if (reason != Miss::kBusy || step_arena_ == nullptr || wanted.tag.step != step_.number()) return nullptr;
  if (!step_arena_->try_place({.offset_bytes = wanted.offset_bytes, .size_bytes = wanted.slot_bytes}, wanted.tag)) {
    return nullptr;
  }
  step_.hit(wanted);
  return step_arena_->address_of(wanted.offset_bytes);
}

}  // namespace stowage
