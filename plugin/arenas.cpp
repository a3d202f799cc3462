// SPDX-License-Identifier: Apache-2.0
//
// What `PlannedAllocator` does about its arenas.
#include <algorithm>
#include <functional>
#include <utility>

#include "plugin/planned_allocator.h"

namespace stowage {

Arena* PlannedAllocator::current_arena() const {
  return arenas_.empty() || arenas_.back()->retired ? nullptr : arenas_.back().get();
}

bool PlannedAllocator::is_arena_for(const SlotTable& table) const {
  if (table.arena_bytes == 0) return true;
  const Arena* arena = current_arena();
  if (arena == nullptr || arena->size_bytes() < table.arena_bytes) return false;
  const std::vector<std::int64_t> cuts = arena->cuts();
  return std::all_of(cuts.begin(), cuts.end(), [&](std::int64_t cut) {
    return cut >= table.arena_bytes || std::binary_search(table.cuts.begin(), table.cuts.end(), cut);
  });
}

bool PlannedAllocator::has_arena_for(const SlotTable& table) const {
  std::lock_guard lock(mutex_);
  return is_arena_for(table);
}

void PlannedAllocator::reserve_arena(const SlotTable& table) {
  if (!upstream_.may_plan()) return;
  std::int64_t size_bytes = table.arena_bytes;
  std::vector<std::int64_t> cuts = table.cuts;
  {
    std::lock_guard lock(mutex_);
    if (is_arena_for(table) || arena_taken_ || std::exchange(reserving_, true)) return;
    if (Arena* arena = current_arena()) {
      arena->retired = true;  // no run takes it any more
      // Those it serves know of its cuts alone.
      const std::vector<std::int64_t> known = arena->cuts();
      std::erase_if(cuts, [&](std::int64_t cut) {
        return cut < arena->size_bytes() && !std::binary_search(known.begin(), known.end(), cut);
      });
      size_bytes = std::max(size_bytes, arena->size_bytes());
    }
  }
  release_arena();  // first, so that old and new are not held at once
  upstream_.release_cache();
  const Stream stream = upstream_.current_stream();
  std::vector<Arena::Block> blocks;
  try {
    blocks = allocate_blocks(size_bytes, std::move(cuts), stream);
  } catch (...) {
    std::lock_guard lock(mutex_);
    reserving_ = false;
    throw;
  }
  if (poison_.load(std::memory_order_relaxed)) {
    for (const Arena::Block& block : blocks) {
      upstream_.fill(block.base, 0xFF, static_cast<std::size_t>(block.end_bytes - block.begin_bytes), stream);
    }
  }
  std::lock_guard lock(mutex_);
  arenas_.push_back(std::make_unique<Arena>(std::move(blocks), stream));
  update_arena_range();
  reserving_ = false;
}

std::vector<Arena::Block> PlannedAllocator::allocate_blocks(std::int64_t size_bytes, std::vector<std::int64_t> cuts,
                                                            Stream stream) {
  std::vector<std::int64_t> spare = upstream_.spare_blocks(stream);
  /// Takes the smallest piece that is there anyway and large enough.
  const auto take_spare = [&](std::int64_t block_bytes) {
    const auto larger =
        std::find_if(spare.rbegin(), spare.rend(), [&](std::int64_t piece) { return piece >= block_bytes; });
    if (larger == spare.rend()) return false;
    spare.erase(std::next(larger).base());
    return true;
  };
  std::erase_if(cuts, [&](std::int64_t cut) { return cut >= size_bytes; });
  std::int64_t begin_bytes = 0;
  const bool are_there = std::all_of(
      cuts.begin(), cuts.end(), [&](std::int64_t cut) { return take_spare(cut - std::exchange(begin_bytes, cut)); });
  if (!are_there) {
    cuts.clear();
    spare = upstream_.spare_blocks(stream);
  }
  cuts.push_back(size_bytes);
  std::vector<Arena::Block> blocks;
  try {
    begin_bytes = 0;
    for (const std::int64_t end_bytes : cuts) {
      const auto bytes = static_cast<std::size_t>(end_bytes - begin_bytes);
      const bool is_apart = end_bytes == size_bytes && (begin_bytes > 0 || !take_spare(size_bytes));
      void* base = is_apart ? upstream_.allocate_apart(bytes, stream) : upstream_.allocate(bytes, stream);
      watch(base, {.size_bytes = end_bytes - begin_bytes, .tag = {}}, nullptr, stream);
      blocks.push_back({static_cast<char*>(base), begin_bytes, end_bytes});
      begin_bytes = end_bytes;
    }
  } catch (...) {
    for (const Arena::Block& block : blocks) free(block.base);
    throw;
  }
  return blocks;
}

std::int64_t PlannedAllocator::spare_bytes() {
  const std::vector<std::int64_t> pieces = spare_blocks();
  return pieces.empty() ? 0 : pieces.front();
}

std::vector<std::int64_t> PlannedAllocator::spare_blocks() {
  if (arena_bytes() != 0) return {};
  upstream_.release_cache();
  return upstream_.spare_blocks(upstream_.current_stream());
}

void PlannedAllocator::release_arena() {
  settle();
  std::vector<void*> blocks;
  {
    std::lock_guard lock(mutex_);
    if (arenas_.empty()) return;
    arenas_.back()->retired = true;
    blocks = collect_retired();
  }
  for (void* block : blocks) free(block);
}

bool PlannedAllocator::release_idle_arena() {
  const bool settled = settle();
  std::vector<void*> blocks;
  {
    std::lock_guard lock(mutex_);
    Arena* arena = current_arena();
    if (arena == nullptr || arena_taken_ || arena->has_live()) return settled;
    arena->retired = true;
    blocks = collect_retired();
  }
  for (void* block : blocks) free(block);
  return true;
}

bool PlannedAllocator::take_arena(const SlotTable& table, Stream stream, Arena*& arena) {
  settle();
  Stream before = stream;
  {
    std::lock_guard lock(mutex_);
    if (!is_arena_for(table) || arena_taken_) return false;
    arena_taken_ = true;
    arena = current_arena();
    if (arena != nullptr) {
      arena->taken = true;
      before = arena->take_for(stream);
    }
  }
  if (before == stream) return true;
  try {
    upstream_.wait(stream, before);
    for (const Arena::Block& block : arena->blocks()) upstream_.record_stream(block.base, stream);
  } catch (...) {
    give_back_arena(arena, /*retire=*/true);  // no run can tell any more whose work it follows
    throw;
  }
  return true;
}

void PlannedAllocator::give_back_arena(Arena* arena, bool retire) {
  std::vector<void*> blocks;
  {
    std::lock_guard lock(mutex_);
    arena_taken_ = false;
    if (arena != nullptr) {
      arena->taken = false;
      arena->retired |= retire;
    }
    blocks = collect_retired();
  }
  for (void* block : blocks) free(block);
}

std::vector<void*> PlannedAllocator::collect_retired() {
  std::vector<void*> blocks;
  std::erase_if(arenas_, [&](const auto& arena) {
    if (!arena->retired || arena->taken || arena->has_live()) return false;
    for (const Arena::Block& block : arena->blocks()) blocks.push_back(block.base);
    return true;
  });
  update_arena_range();
  return blocks;
}

std::int64_t PlannedAllocator::arena_bytes() const {
  std::lock_guard lock(mutex_);
  const Arena* arena = current_arena();
  return arena == nullptr ? 0 : arena->size_bytes();
}

void* PlannedAllocator::block_of(const void* pointer) const {
  std::lock_guard lock(mutex_);
  for (const auto& arena : arenas_) {
    if (const Arena::Block* block = arena->block_of(pointer)) return block->base;
  }
  return nullptr;
}

void PlannedAllocator::update_arena_range() {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  for (const auto& arena : arenas_) {
    for (const Arena::Block& block : arena->blocks()) {
      const auto base = reinterpret_cast<std::uintptr_t>(block.base);
      begin = begin == 0 ? base : std::min(begin, base);
      end = std::max(end, base + static_cast<std::uintptr_t>(block.end_bytes - block.begin_bytes));
    }
  }
  arena_begin_.store(begin, std::memory_order_release);
  arena_end_.store(end, std::memory_order_release);
}

}  // namespace stowage
