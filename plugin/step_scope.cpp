// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_scope.h"

#include <algorithm>
#include <utility>

namespace stowage {

Thread this_thread() {
  static thread_local char mark;
  return &mark;
}

StepDigest extend(StepDigest digest, std::int64_t size_bytes) {
  // SplitMix64's finalizer (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
  StepDigest mixed = digest + 0x9e3779b97f4a7c15ULL + static_cast<StepDigest>(size_bytes);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
  return mixed ^ (mixed >> 31);
}

StepDigest digest_of(const StepRecord& record) {
  std::vector<StepDigest> lanes;
  for (const StepAllocation& allocation : record.allocations) {
    const auto lane = static_cast<std::size_t>(allocation.lane);
    if (lane >= lanes.size()) lanes.resize(lane + 1);
    lanes[lane] = extend(lanes[lane], allocation.size_bytes);
  }
  StepDigest digest = lanes.size();
  for (const StepDigest lane : lanes) digest = extend(digest, static_cast<std::int64_t>(lane));
  return digest;
}

void StepScope::begin(Thread thread, Stream stream) {
  std::swap(before_, now_);
  now_.allocations.clear();
  now_.left_behind.clear();
  now_.event_count = 0;
  lanes_.assign(1, {.thread = thread});
  counters_ = {};
  table_before_ = std::exchange(table_, nullptr);
  stream_ = stream;
  is_disturbed_ = false;
  has_run_backward_ = false;
  is_in_order_ = true;
  is_open_ = true;
  ++number_;
}

bool StepScope::end(bool complete) {
  is_open_ = false;
  now_.left_behind = left_behind();
  if (table_ != nullptr) table_->next_turn = (turn_ + 1) % table_->turns;
  return complete && !is_disturbed_;
}

std::vector<LeftBehind> StepScope::left_behind() const {
  std::vector<LeftBehind> left;
  for (const StepAllocation& each : before_.allocations) {
    if (each.offset_bytes < 0 || each.freed_in == FreedIn::kSameStep) continue;
    const std::int32_t end = each.freed_in == FreedIn::kNextStep ? each.free_event : now_.event_count;
    if (end > 0) left.push_back({each.offset_bytes, each.size_bytes, end});
  }
  return left;
}

std::int32_t StepScope::lane_of(Thread thread) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].thread == thread) return static_cast<std::int32_t>(lane);
  }
  lanes_.push_back({.thread = thread});
  return static_cast<std::int32_t>(lanes_.size()) - 1;
}

std::vector<Thread> StepScope::threads() const {
  std::vector<Thread> threads;
  for (const Lane& lane : lanes_) threads.push_back(lane.thread);
  return threads;
}

StepScope::Wanted StepScope::allocate(Thread thread, std::int64_t size_bytes) {
  const std::int32_t lane = lane_of(thread);
  Wanted wanted;
  wanted.tag = {number_, static_cast<std::int32_t>(now_.allocations.size())};
  now_.allocations.push_back({.lane = lane, .size_bytes = size_bytes, .allocate_event = now_.event_count++});
  const bool was_in_order = is_in_order_;
  const StepTable::Entry* entry = match(lane, size_bytes);
  wanted.leaves_plans = was_in_order && !is_in_order_;
  if (entry == nullptr) return wanted;
  wanted.is_planned = true;
  wanted.entry = static_cast<std::int32_t>(entry - table_->lanes[static_cast<std::size_t>(lane)].data());
  wanted.slot_bytes = entry->slot_bytes;
  if (entry->slot_bytes > 0) wanted.offset_bytes = entry->offset_bytes[static_cast<std::size_t>(turn_)];
  return wanted;
}

const StepTable::Entry* StepScope::match(std::int32_t lane_index, std::int64_t size_bytes) {
  Lane& lane = lanes_[static_cast<std::size_t>(lane_index)];
  ++lane.count;
  lane.digest = extend(lane.digest, size_bytes);
  std::rotate(lane.recent.begin(), lane.recent.begin() + 1, lane.recent.end());
  lane.recent.back() = size_bytes;

  const auto entries_of = [&]() -> const std::vector<StepTable::Entry>* {
    const auto at = static_cast<std::size_t>(lane_index);
    return table_ != nullptr && at < table_->lanes.size() ? &table_->lanes[at] : nullptr;
  };
  const auto next = [&]() -> const StepTable::Entry* {
    const auto* entries = entries_of();
    if (entries == nullptr || lane.position >= entries->size()) return nullptr;
    const StepTable::Entry& entry = (*entries)[lane.position];
    return entry.size_bytes == size_bytes ? &entry : nullptr;
  };
  const StepTable::Entry* entry = next();
  if (entry == nullptr && is_in_order_ && change_table()) entry = next();
  if (entry != nullptr) {
    if (lane.floor == lane.position) ++lane.floor;
    ++lane.position;
    lane.searches = 0;
    return entry;
  }
  is_in_order_ = false;
  if (table_ == nullptr) return find_table(lane_index);
  const auto* entries = entries_of();
  return entries == nullptr ? nullptr : find_position(lane, *entries);
}

/// The likeliest plan in which the lane's last sizes are found. Only near the step's begin: what has gone on for longer
/// without a plan is something else.
const StepTable::Entry* StepScope::find_table(std::int32_t lane_index) {
  Lane& lane = lanes_[static_cast<std::size_t>(lane_index)];
  if (lane_index != 0 || lane.count > kLatestStart) return nullptr;
  for (const auto& table : tables_) {
    const StepTable::Entry* entry = find_position(lane, table->lanes.front());
    if (entry == nullptr) continue;
    table_ = table;
    turn_ = table->next_turn;
    return entry;
  }
  return nullptr;
}

bool StepScope::change_table() {
  const auto fits = [&](const StepTable& table) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const auto count = static_cast<std::size_t>(lanes_[lane].count);
      if (count == 0) continue;
      if (lane >= table.lanes.size() || count > table.lanes[lane].size()) return false;
      if (table.lanes[lane][count - 1].digest != lanes_[lane].digest) return false;
    }
    return true;
  };
  for (const auto& table : tables_) {
    if (table == table_ || !fits(*table)) continue;
    table_ = table;
    turn_ = table->next_turn;
    return true;
  }
  return false;
}

/// The nearest place at which the plan has the lane's last sizes; the last of them is there. Not before that from which
/// the lane has come: tensors that are made after the others of their size, as an optimizer's state is after the
/// gradients, would take slots of those, and keep them.
const StepTable::Entry* StepScope::find_position(Lane& lane, const std::vector<StepTable::Entry>& entries) {
  if (static_cast<std::size_t>(lane.count) < kContext || entries.size() < kContext || lane.searches >= kMostSearches) {
    return nullptr;
  }
  const auto is_here = [&](std::size_t end) {
    return std::equal(
        lane.recent.begin(), lane.recent.end(), entries.begin() + static_cast<std::ptrdiff_t>(end - kContext),
        [](std::int64_t size_bytes, const StepTable::Entry& entry) { return size_bytes == entry.size_bytes; });
  };
  const auto found_at = [&](std::size_t end) {
    if (end > lane.position) lane.floor = lane.position;
    lane.position = end;
    lane.searches = 0;
    return &entries[end - 1];
  };
  for (std::size_t end = std::max(kContext, lane.position + 1); end <= entries.size(); ++end) {
    if (is_here(end)) return found_at(end);
  }
  for (std::size_t end = std::min(lane.position, entries.size()); end > lane.floor && end >= kContext; --end) {
    if (is_here(end)) return found_at(end);
  }
  ++lane.searches;
  return nullptr;
}

void StepScope::hit(const Wanted& wanted) {
  StepAllocation& allocation = now_.allocations[static_cast<std::size_t>(wanted.tag.index)];
  allocation.offset_bytes = wanted.offset_bytes;
  allocation.entry = wanted.entry;
  counters_.hits.add(allocation.size_bytes);
}

void StepScope::free(StepTag tag) {
  if (tag.step == 0) return;
  const auto index = static_cast<std::size_t>(tag.index);
  if (tag.step == number_) {
    StepAllocation& allocation = now_.allocations[index];
    allocation.freed_in = is_open_ ? FreedIn::kSameStep : FreedIn::kNextStep;
    if (is_open_) allocation.free_event = now_.event_count++;
  } else if (tag.step + 1 == number_ && is_open_) {
    StepAllocation& allocation = before_.allocations[index];
    allocation.freed_in = FreedIn::kNextStep;
    allocation.free_event = now_.event_count++;
  }
}

bool StepScope::is_as_planned() const {
  if (table_ == nullptr || !is_in_order_ || lanes_.size() > table_->lanes.size()) return false;
  for (std::size_t lane = 0; lane < table_->lanes.size(); ++lane) {
    const std::size_t count = lane < lanes_.size() ? static_cast<std::size_t>(lanes_[lane].count) : 0;
    if (count != table_->lanes[lane].size()) return false;
  }
  return true;
}

}  // namespace stowage
