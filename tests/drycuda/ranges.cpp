// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/drycuda/control.h"
#include "tests/drycuda/report.h"
#include "tests/drycuda/timeline.h"

namespace drycuda {
namespace {

// Work that may still read or write a range that was given back.
struct Use {
  Stream* stream;
  Position position;
};

struct LiveRange {
  std::uint64_t size_bytes;
  std::vector<Stream*> streams;  // the first is the one that it was given out to
  std::vector<Use> copies = {};
};

struct EndedRange {
  std::uint64_t begin;
  std::uint64_t size_bytes;
  std::vector<Use> uses;
};

// Guarded by timeline_mutex(), as a range's end depends on what its streams have done.
struct Ranges {
  std::map<std::uint64_t, LiveRange> live;
  std::vector<EndedRange> ended;
};

Ranges& ranges() {
  static auto* const made = new Ranges;
  return *made;
}

std::string range_text(std::uint64_t begin, std::uint64_t size_bytes) {
  return fmt::format("[{:#x}, {:#x})", begin, begin + size_bytes);
}

void forget_finished() {
  std::erase_if(ranges().ended, [](const EndedRange& range) {
    return std::all_of(range.uses.begin(), range.uses.end(),
                       [](const Use& use) { return has_finished(*use.stream, use.position); });
  });
}

void check_begin(std::uint64_t begin, std::uint64_t size_bytes, const Stream& stream) {
  const std::uint64_t end = begin + size_bytes;
  const std::string text = fmt::format("range {} given out for stream {} of device {}", range_text(begin, size_bytes),
                                       stream.number, stream.device);
  const auto next = ranges().live.lower_bound(end);
  if (next != ranges().live.begin()) {
    const auto& [other, live] = *std::prev(next);
    if (other + live.size_bytes > begin) {
      report_violation(fmt::format("{} while {} is live", text, range_text(other, live.size_bytes)));
    }
  }
  for (const EndedRange& ended : ranges().ended) {
    if (ended.begin >= end || ended.begin + ended.size_bytes <= begin) continue;
    for (const Use& use : ended.uses) {
      if (starts_after(stream, *use.stream, use.position)) continue;
      report_violation(fmt::format("{} while stream {} still uses {}", text, use.stream->number,
                                   range_text(ended.begin, ended.size_bytes)));
    }
  }
}

}  // namespace

void check_copy(cudaStream_t handle, const void* address) {
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(handle);
  const auto next = ranges().live.upper_bound(at);
  if (!stream || stream->capture || next == ranges().live.begin()) return;
  auto& [begin, live] = *std::prev(next);
  if (begin + live.size_bytes <= at) return;
  forget_finished();
  for (const EndedRange& ended : ranges().ended) {
    if (ended.begin >= begin + live.size_bytes || ended.begin + ended.size_bytes <= begin) continue;
    for (const Use& use : ended.uses) {
      if (starts_after(*stream, *use.stream, use.position)) continue;
      report_violation(fmt::format("stream {} copies {} while stream {} still uses {}", stream->number,
                                   range_text(begin, live.size_bytes), use.stream->number,
                                   range_text(ended.begin, ended.size_bytes)));
    }
  }
  std::erase_if(live.copies, [](const Use& use) { return has_finished(*use.stream, use.position); });
  live.copies.push_back({stream, stream->submitted + 1});
}

extern "C" {

void drycuda_range_begin(void* address, std::uint64_t size_bytes, void* handle) {
  if (size_bytes == 0) return;
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(static_cast<cudaStream_t>(handle));
  if (!stream) {
    report_violation(fmt::format("range {} given out for an unknown stream", range_text(begin, size_bytes)));
    return;
  }
  forget_finished();
  check_begin(begin, size_bytes, *stream);
  ranges().live.insert_or_assign(begin, LiveRange{size_bytes, {stream}});
}

void drycuda_range_use(void* address, void* handle) {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(static_cast<cudaStream_t>(handle));
  const auto found = ranges().live.find(begin);
  if (!stream || found == ranges().live.end()) {
    report_violation(fmt::format("a stream uses range {:#x}, which is not live", begin));
    return;
  }
  std::vector<Stream*>& users = found->second.streams;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
}

void drycuda_range_end(void* address) {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(timeline_mutex());
  const auto found = ranges().live.find(begin);
  if (found == ranges().live.end()) {
    report_violation(fmt::format("range {:#x} given back, which is not live", begin));
    return;
  }
  EndedRange ended{.begin = begin, .size_bytes = found->second.size_bytes, .uses = {}};
  for (Stream* stream : found->second.streams) {
    if (!has_finished(*stream, stream->submitted)) ended.uses.push_back({stream, stream->submitted});
  }
  for (const Use& copy : found->second.copies) {
    if (!has_finished(*copy.stream, copy.position)) ended.uses.push_back(copy);
  }
  ranges().live.erase(found);
  if (!ended.uses.empty()) ranges().ended.push_back(std::move(ended));
}

std::uint64_t drycuda_live_ranges() {
  const std::lock_guard lock(timeline_mutex());
  return ranges().live.size();
}

}  // extern "C"

}  // namespace drycuda
