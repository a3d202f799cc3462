// SPDX-License-Identifier: Apache-2.0
#include "plugin/step_plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plugin/devices.h"

namespace stowage {
namespace {

using solver::CyclicBuffer;
using solver::CyclicLayout;

/// How many of the record's allocations came before an event.
std::int32_t allocations_before(const StepRecord& record, std::int32_t event) {
  const auto& all = record.allocations;
  const auto at = std::partition_point(all.begin(), all.end(),
                                       [&](const StepAllocation& each) { return each.allocate_event < event; });
  return static_cast<std::int32_t>(at - all.begin());
}

/// The indices of the allocations that may have a slot.
std::vector<std::size_t> find_slotted(const StepRecord& record) {
  std::vector<std::size_t> slotted;
  for (std::size_t index = 0; index < record.allocations.size(); ++index) {
    if (may_have_slot(record.allocations[index])) slotted.push_back(index);
  }
  return slotted;
}

/// Carried tensors get the offsets that are decided already, in order, where sizes agree.
void fix_carried(std::vector<CyclicBuffer>& buffers, const CarriedSlots& decided) {
  std::size_t next = 0;
  for (CyclicBuffer& buffer : buffers) {
    if (!is_carried(buffer)) continue;
    std::size_t at = next;
    while (at < decided.size_bytes.size() && decided.size_bytes[at] != buffer.size_bytes) ++at;
    if (at == decided.size_bytes.size()) continue;
    buffer.fixed_offset_bytes = decided.offset_bytes[at];
    next = at + 1;
  }
}

bool is_decided(const LeftBehind& left, const CarriedSlots& decided) {
  for (std::size_t at = 0; at < decided.size_bytes.size(); ++at) {
    if (decided.size_bytes[at] == left.size_bytes && decided.offset_bytes[at] == left.offset_bytes) return true;
  }
  return false;
}

/// What was left behind where all phases have it, but for what the step's own carried tensors stand for: those last as
/// long as either. What lay elsewhere may not lie there next time.
std::vector<solver::Obstacle> to_obstacles(const StepRecord& record, std::vector<CyclicBuffer>& buffers,
                                           const CarriedSlots& decided) {
  std::vector<solver::Obstacle> obstacles;
  for (const LeftBehind& left : record.left_behind) {
    if (!is_decided(left, decided)) continue;
    const auto same = std::find_if(buffers.begin(), buffers.end(), [&](const CyclicBuffer& buffer) {
      return buffer.fixed_offset_bytes == left.offset_bytes && buffer.size_bytes == left.size_bytes;
    });
    if (same == buffers.end()) {
      obstacles.push_back({left.offset_bytes, left.size_bytes, left.end_event});
    } else if (left.end_event <= same->allocate_event) {
      same->free_event = std::max<std::int64_t>(same->free_event, left.end_event);
    }
  }
  return obstacles;
}

CyclicLayout lay_out(std::vector<CyclicBuffer> buffers, const StepRecord& record, const StepPlanOptions& options) {
  solver::CyclicLimits limits;
  limits.layout.deadline = options.deadline;
  limits.may_alternate = options.follows_itself;
  std::vector<CyclicBuffer> free_buffers = buffers;
  fix_carried(buffers, options.carried);
  std::vector<solver::Obstacle> walls;  // the last bytes before a cut are nobody's
  for (const std::int64_t cut : options.cuts) {
    walls.push_back({cut - options.alignment_bytes, options.alignment_bytes, record.event_count});
  }
  std::vector<solver::Obstacle> obstacles = walls;
  if (!options.follows_itself) {
    for (const solver::Obstacle& left : to_obstacles(record, buffers, options.carried)) obstacles.push_back(left);
  }
  try {
    return solver::lay_out_cyclic(buffers, record.event_count, obstacles, limits);
  } catch (const std::invalid_argument&) {
    // What lies in the arena contradicts what was decided: each finds at run time what is free.
    return solver::lay_out_cyclic(free_buffers, record.event_count, walls, limits);
  }
}

/// Largest sum live at once in a step that repeats, of what `counts`.
template <typename Counts>
std::int64_t peak_of(const StepRecord& record, Counts counts) {
  std::vector<std::int64_t> change(static_cast<std::size_t>(record.event_count) + 1, 0);
  for (const StepAllocation& each : record.allocations) {
    if (!counts(each)) continue;
    change[static_cast<std::size_t>(each.allocate_event)] += each.size_bytes;
    if (each.freed_in == FreedIn::kNextStep) change[0] += each.size_bytes;
    if (may_have_slot(each)) change[static_cast<std::size_t>(free_event_of(each, record))] -= each.size_bytes;
  }
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (const std::int64_t bytes : change) peak = std::max(peak, live += bytes);
  return peak;
}

}  // namespace

std::int64_t eager_peak_bytes(const StepRecord& record) {
  return peak_of(record, [](const StepAllocation&) { return true; });
}

std::int64_t slotted_peak_bytes(const StepRecord& record) { return peak_of(record, may_have_slot); }

bool may_have_slot(const StepAllocation& allocation) { return allocation.freed_in != FreedIn::kNoStepYet; }

CyclicBuffer to_buffer(const StepRecord& record, std::size_t index, std::int64_t alignment_bytes) {
  const StepAllocation& each = record.allocations[index];
  CyclicBuffer buffer;
  buffer.id = fmt::format("allocation {}", index);
  buffer.allocate_event = each.allocate_event;
  buffer.free_event = free_event_of(each, record);
  buffer.carried = each.freed_in == FreedIn::kNextStep;
  buffer.size_bytes = each.size_bytes;
  buffer.alignment_bytes = alignment_bytes;
  return buffer;
}

std::int32_t free_event_of(const StepAllocation& each, const StepRecord& record) {
  return std::min(each.free_event, record.event_count);
}

bool is_carried(const CyclicBuffer& buffer) { return buffer.carried && buffer.free_event <= buffer.allocate_event; }

std::string digest_text(StepDigest digest) { return fmt::format("{:016x}", digest); }

void number_lanes(StepTable& table) {
  StepDigest digest = table.lanes.size();
  for (auto& lane : table.lanes) {
    StepDigest of_lane = 0;
    for (StepTable::Entry& entry : lane) entry.digest = of_lane = extend(of_lane, entry.size_bytes);
    digest = extend(digest, static_cast<std::int64_t>(of_lane));
  }
  table.digest = digest;
}

void join_lifetimes(StepRecord& record, const StepRecord& other, bool complete) {
  for (std::size_t index = 0; index < record.allocations.size(); ++index) {
    StepAllocation& mine = record.allocations[index];
    const StepAllocation& theirs = other.allocations[index];
    if (theirs.freed_in == FreedIn::kNoStepYet) {
      // That it outlived its own step is known in any case.
      if (complete || mine.freed_in == FreedIn::kSameStep) mine.freed_in = FreedIn::kNoStepYet;
      continue;
    }
    if (mine.freed_in > theirs.freed_in || mine.freed_in == FreedIn::kNoStepYet) continue;
    const std::int32_t before = allocations_before(other, theirs.free_event);
    if (mine.freed_in == theirs.freed_in && allocations_before(record, mine.free_event) >= before) continue;
    mine.freed_in = theirs.freed_in;
    mine.free_event = before == 0 ? 0 : record.allocations[static_cast<std::size_t>(before) - 1].allocate_event + 1;
  }
}

StepPlan plan_step(const StepRecord& record, const StepPlanOptions& options) {
  const std::vector<std::size_t> slotted = find_slotted(record);
  std::vector<CyclicBuffer> buffers;
  for (const std::size_t index : slotted) buffers.push_back(to_buffer(record, index, options.alignment_bytes));
  const CyclicLayout layout = lay_out(buffers, record, options);

  StepPlan plan;
  plan.table = std::make_shared<StepTable>();
  StepTable& table = *plan.table;
  table.turns = layout.turns;
  table.arena_bytes = layout.arena_bytes;
  table.cuts = options.cuts;
  std::size_t next = 0;
  for (std::size_t index = 0; index < record.allocations.size(); ++index) {
    const StepAllocation& each = record.allocations[index];
    const auto lane = static_cast<std::size_t>(each.lane);
    if (lane >= table.lanes.size()) table.lanes.resize(lane + 1);
    StepTable::Entry entry;
    entry.size_bytes = each.size_bytes;
    if (next < slotted.size() && slotted[next] == index) {
      const std::size_t buffer = next++;
      if (layout.offset_bytes[0][buffer] != solver::kNoSlot) {
        for (const auto& offsets : layout.offset_bytes) entry.offset_bytes.push_back(offsets[buffer]);
        entry.slot_bytes = round_up(each.size_bytes, options.alignment_bytes);
        if (layout.turns == 1 && is_carried(buffers[buffer])) {
          plan.carried.size_bytes.push_back(each.size_bytes);
          plan.carried.offset_bytes.push_back(layout.offset_bytes[0][buffer]);
        }
      }
    }
    table.lanes[lane].push_back(std::move(entry));
  }
  number_lanes(table);
  plan.peak_bytes = slotted_peak_bytes(record);
  plan.bound_bytes = layout.bound_bytes;
  plan.status = layout.status;
  return plan;
}

std::string to_text(const StepPlan& plan) {
  const StepTable& table = *plan.table;
  nlohmann::json json{{"turns", table.turns},
                      {"arena_bytes", table.arena_bytes},
                      {"cuts", table.cuts},
                      {"carried", {plan.carried.size_bytes, plan.carried.offset_bytes}},
                      {"lanes", nlohmann::json::array()}};
  for (const auto& lane : table.lanes) {
    nlohmann::json entries = nlohmann::json::array();
    for (const StepTable::Entry& entry : lane) {
      entries.push_back({entry.size_bytes, entry.slot_bytes, entry.offset_bytes});
    }
    json["lanes"].push_back(std::move(entries));
  }
  return json.dump();
}

namespace {

StepTable::Entry to_entry(const nlohmann::json& json, std::size_t turns, std::int64_t alignment_bytes) {
  StepTable::Entry entry;
  entry.size_bytes = json.at(0);
  entry.slot_bytes = json.at(1);
  entry.offset_bytes = json.at(2).get<std::vector<std::int64_t>>();
  const bool is_aligned = std::all_of(entry.offset_bytes.begin(), entry.offset_bytes.end(),
                                      [&](std::int64_t offset) { return offset % alignment_bytes == 0; });
  if (entry.slot_bytes != 0 &&
      (entry.slot_bytes < entry.size_bytes || entry.offset_bytes.size() != turns || !is_aligned)) {
    throw std::invalid_argument(fmt::format("cannot read the plan of a step: {} B for {} B at {} in {} turns",
                                            entry.slot_bytes, entry.size_bytes, json.at(2).dump(), turns));
  }
  return entry;
}

}  // namespace

StepPlan to_plan(const std::string& text, std::int64_t alignment_bytes) {
  StepPlan plan;
  plan.table = std::make_shared<StepTable>();
  StepTable& table = *plan.table;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    table.turns = json.at("turns");
    if (table.turns < 1 || table.turns > 2) {
      throw std::invalid_argument(fmt::format("cannot read the plan of a step: {} turns", table.turns));
    }
    table.arena_bytes = json.at("arena_bytes");
    table.cuts = json.at("cuts").get<std::vector<std::int64_t>>();
    plan.carried.size_bytes = json.at("carried").at(0).get<std::vector<std::int64_t>>();
    plan.carried.offset_bytes = json.at("carried").at(1).get<std::vector<std::int64_t>>();
    if (plan.carried.size_bytes.size() != plan.carried.offset_bytes.size()) plan.carried = {};
    for (const nlohmann::json& lane : json.at("lanes")) {
      auto& entries = table.lanes.emplace_back();
      for (const nlohmann::json& each : lane) {
        entries.push_back(to_entry(each, static_cast<std::size_t>(table.turns), alignment_bytes));
      }
    }
  } catch (const nlohmann::json::exception& failure) {
    throw std::invalid_argument(fmt::format("cannot read the plan of a step: {}", failure.what()));
  }
  number_lanes(table);
  return plan;
}

}  // namespace stowage
