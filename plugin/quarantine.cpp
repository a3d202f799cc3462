// SPDX-License-Identifier: Apache-2.0
//
// What `PlannedAllocator` does about streams other than the run's.
#include <algorithm>

#include "plugin/planned_allocator.h"

namespace stowage {

bool PlannedAllocator::record_stream(const void* pointer, Stream stream) {
  std::lock_guard lock(mutex_);
  for (const auto& arena : arenas_) {
    if (!arena->contains(pointer)) continue;
    arena->use_on(pointer, stream);
    return true;
  }
  // The driver waits for every stream before it frees.
  const auto found = ledger_.find(const_cast<void*>(pointer));
  return found != ledger_.end() && found->second.direct;
}

/// Empty where one of them cannot be recorded now: `settle` tries again.
std::vector<std::shared_ptr<Event>> PlannedAllocator::record_events(const std::vector<Stream>& streams) {
  std::vector<std::shared_ptr<Event>> events;
  for (const Stream stream : streams) {
    events.push_back(upstream_.record_event(stream));
    if (events.back() == nullptr) return {};
  }
  return events;
}

bool PlannedAllocator::settle() {
  if (quarantined_.load(std::memory_order_acquire) == 0) return false;
  std::vector<Arena::Quarantine> waiting;
  {
    std::lock_guard lock(mutex_);
    for (const auto& arena : arenas_) {
      waiting.insert(waiting.end(), arena->quarantines().begin(), arena->quarantines().end());
    }
  }
  std::vector<void*> blocks;
  for (Arena::Quarantine& each : waiting) {
    if (each.events.empty()) each.events = record_events(each.streams);
    const bool is_over = !each.events.empty() && std::all_of(each.events.begin(), each.events.end(),
                                                             [](const auto& event) { return event->is_done(); });
    std::lock_guard lock(mutex_);
    for (const auto& arena : arenas_) {
      if (!arena->contains(each.pointer)) continue;
      if (!is_over) {
        arena->set_events(each.ticket, each.events);
      } else if (const auto span = arena->end_quarantine(each.ticket)) {
        poison(*arena, *span);
        quarantined_.fetch_sub(1, std::memory_order_acq_rel);
      }
      break;
    }
    for (void* block : collect_retired()) blocks.push_back(block);
  }
  for (void* block : blocks) free(block);
  return !blocks.empty();
}

void PlannedAllocator::poison(const Arena& arena, const Arena::Span& span) {
  if (!poison_.load(std::memory_order_relaxed)) return;
  // Before anybody else can have the range, so under the lock, and on the stream of whoever gets it next.
  upstream_.fill(arena.address_of(span.begin_bytes), 0xFF, static_cast<std::size_t>(span.size_bytes()), arena.stream());
}

}  // namespace stowage
