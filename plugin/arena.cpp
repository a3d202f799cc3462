// SPDX-License-Identifier: Apache-2.0
#include "plugin/arena.h"

#include <algorithm>
#include <utility>

namespace stowage {

std::vector<std::int64_t> Arena::cuts() const {
  std::vector<std::int64_t> cuts;
  for (std::size_t block = 1; block < blocks_.size(); ++block) cuts.push_back(blocks_[block].begin_bytes);
  return cuts;
}

const Arena::Block& Arena::block_at(std::int64_t offset_bytes) const {
  const auto after =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return offset_bytes < block.end_bytes; });
  return after == blocks_.end() ? blocks_.back() : *after;
}

char* Arena::address_of(std::int64_t offset_bytes) const {
  const Block& block = block_at(offset_bytes);
  return block.base + (offset_bytes - block.begin_bytes);
}

const Arena::Block* Arena::block_of(const void* pointer) const {
  for (const Block& block : blocks_) {
    if (block.contains(pointer)) return &block;
  }
  return nullptr;
}

std::vector<Arena::Span>::iterator Arena::find(const void* pointer) {
  const Block* block = block_of(pointer);
  if (block == nullptr) return live_.end();
  const std::int64_t begin = block->begin_bytes + (static_cast<const char*>(pointer) - block->base);
  const auto at = std::lower_bound(live_.begin(), live_.end(), begin,
                                   [](const Span& span, std::int64_t offset) { return span.begin_bytes < offset; });
  return at != live_.end() && at->begin_bytes == begin ? at : live_.end();
}

Stream Arena::take_for(Stream stream) { return std::exchange(stream_, stream); }

bool Arena::try_place(Slot slot, StepTag tag) {
  if (slot.offset_bytes < 0 || slot.size_bytes > size_bytes() - slot.offset_bytes) return false;
  const std::int64_t end_bytes = slot.offset_bytes + slot.size_bytes;
  if (end_bytes > block_at(slot.offset_bytes).end_bytes) return false;
  const auto after = std::lower_bound(live_.begin(), live_.end(), slot.offset_bytes,
                                      [](const Span& span, std::int64_t begin) { return span.begin_bytes < begin; });
  if (after != live_.end() && after->begin_bytes < end_bytes) return false;
  if (after != live_.begin() && std::prev(after)->end_bytes > slot.offset_bytes) return false;
  live_.insert(after, {.begin_bytes = slot.offset_bytes, .end_bytes = end_bytes, .stream = stream_, .tag = tag});
  return true;
}

bool Arena::try_share(Slot slot) {
  const auto span = find(address_of(slot.offset_bytes));
  if (span == live_.end() || span->holders != 1 || span->size_bytes() != slot.size_bytes) return false;
  if (span->ticket != 0 || span->stream != stream_ || has_guest(*span)) return false;
  ++span->holders;
  return true;
}

void Arena::use_on(const void* pointer, Stream stream) {
  const auto span = find(pointer);
  if (span == live_.end() || span->stream == stream) return;
  const Guest guest{span->begin_bytes, stream};
  if (std::find(guests_.begin(), guests_.end(), guest) == guests_.end()) guests_.push_back(guest);
}

bool Arena::has_guest(const Span& span) const {
  return std::any_of(guests_.begin(), guests_.end(),
                     [&](const Guest& guest) { return guest.begin_bytes == span.begin_bytes; });
}

std::optional<Arena::LetGo> Arena::let_go(const void* pointer, std::uint64_t ticket) {
  const auto span = find(pointer);
  if (span == live_.end() || span->ticket != 0 || --span->holders > 0) return std::nullopt;
  if (span->stream == stream_ && !has_guest(*span)) return LetGo{.may_end = true, .span = *span};
  span->ticket = ticket;
  Quarantine quarantine{.ticket = ticket, .pointer = address_of(span->begin_bytes), .streams = {}, .events = {}};
  if (span->stream != stream_) quarantine.streams.push_back(span->stream);
  std::erase_if(guests_, [&](const Guest& guest) {
    if (guest.begin_bytes != span->begin_bytes) return false;
    quarantine.streams.push_back(guest.stream);
    return true;
  });
  quarantines_.push_back(std::move(quarantine));
  return LetGo{.may_end = false, .span = *span};
}

void Arena::end(const void* pointer) { live_.erase(find(pointer)); }

void Arena::set_events(std::uint64_t ticket, std::vector<std::shared_ptr<Event>> events) {
  for (Quarantine& each : quarantines_) {
    if (each.ticket != ticket) continue;
    if (each.events.empty()) each.events = std::move(events);
    return;
  }
}

std::optional<Arena::Span> Arena::end_quarantine(std::uint64_t ticket) {
  const auto found = std::find_if(quarantines_.begin(), quarantines_.end(),
                                  [&](const Quarantine& each) { return each.ticket == ticket; });
  if (found == quarantines_.end()) return std::nullopt;
  const auto span = find(found->pointer);
  quarantines_.erase(found);
  const Span ended = *span;
  live_.erase(span);
  return ended;
}

}  // namespace stowage
