// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/timeline.h"

#include <algorithm>
#include <array>
#include <map>

#include "tests/drycuda/control.h"
#include "tests/drycuda/device.h"
#include "tests/drycuda/report.h"
#include "tests/drycuda/settings.h"

namespace drycuda {
namespace {

constexpr std::uint32_t kFirstStreamNumber = 13;

struct Streams {
  std::mutex mutex;
  std::vector<Stream*> all;  // never freed
  std::array<Stream*, kMaxDevices> defaults{};
  bool hold_all = false;
};

Streams& streams() {
  static auto* const made = new Streams;
  return *made;
}

Stream& add_stream(int device, std::uint32_t number, unsigned flags, int priority) {
  return *streams().all.emplace_back(
      new Stream{.device = device, .number = number, .flags = flags, .priority = priority, .held = streams().hold_all});
}

Counter counter_of(ActivityKind kind) {
  if (kind == ActivityKind::kKernel) return Counter::kLaunches;
  return kind == ActivityKind::kCopy ? Counter::kCopies : Counter::kSets;
}

Activity start(Stream& stream, const Work& work, std::uint32_t correlation) {
  const std::uint64_t start_ns = std::max(stream.end_ns, drycuda_now_ns());
  stream.end_ns = start_ns + work.duration_ns;
  ++stream.submitted;
  count(counter_of(work.kind));
  return {.kind = work.kind,
          .correlation = correlation,
          .device = static_cast<std::uint32_t>(stream.device),
          .context = static_cast<std::uint32_t>(stream.device) + 1,
          .stream = stream.number,
          .address = work.address,
          .size_bytes = work.size_bytes,
          .start_ns = start_ns,
          .end_ns = stream.end_ns,
          .copy_kind = work.copy_kind,
          .name = work.name};
}

// Whether `stream` gets to `at` only after `other` has got to `position`, by the waits between streams.
bool follows(const Stream& stream, Position at, const Stream& other, Position position) {
  std::map<const Stream*, Position> reached{{&stream, at}};  // how far streams must have got by then
  std::vector<const Stream*> open{&stream};
  while (!open.empty()) {
    const Stream& next = *open.back();
    open.pop_back();
    for (const Stream::Wait& wait : next.waits) {
      if (wait.at > reached[&next]) continue;
      if (wait.other == &other && wait.until >= position) return true;
      const auto [known, is_new] = reached.try_emplace(wait.other, wait.until);
      if (!is_new && known->second >= wait.until) continue;
      known->second = std::max(known->second, wait.until);
      open.push_back(wait.other);
    }
  }
  return false;
}

void hold(Stream& stream) {
  has_finished(stream, stream.submitted);
  stream.held = true;
}

}  // namespace

std::mutex& timeline_mutex() { return streams().mutex; }

Stream& make_stream(unsigned flags, int priority) {
  const auto number = kFirstStreamNumber + static_cast<std::uint32_t>(streams().all.size());
  return add_stream(current_device(), number, flags, priority);
}

Stream* find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    Stream*& stream = streams().defaults[current_device()];
    if (!stream) stream = &add_stream(current_device(), kDefaultStreamNumber, 0, 0);
    return stream;
  }
  auto* const stream = reinterpret_cast<Stream*>(handle);
  const std::vector<Stream*>& all = streams().all;
  return std::find(all.begin(), all.end(), stream) == all.end() ? nullptr : stream;
}

const std::vector<Stream*>& all_streams() { return streams().all; }

bool has_finished(Stream& stream, Position position) {
  if (position <= stream.finished) return true;
  if (stream.held) return false;
  for (const Stream::Wait& wait : stream.waits) {
    if (wait.at <= position && !has_finished(*wait.other, wait.until)) return false;
  }
  finish(stream, position);
  return true;
}

void finish(Stream& stream, Position position) {
  if (position <= stream.finished) return;
  for (const Stream::Wait& wait : stream.waits) {
    if (wait.at <= position) finish(*wait.other, wait.until);
  }
  std::erase_if(stream.waits, [position](const Stream::Wait& wait) { return wait.at <= position; });
  stream.finished = position;
}

void wait_for(Stream& stream, Stream& other, Position until) {
  ++stream.submitted;
  if (&stream != &other && !has_finished(other, until)) stream.waits.push_back({stream.submitted, &other, until});
}

bool starts_after(const Stream& stream, Stream& other, Position position) {
  return &stream == &other || has_finished(other, position) || follows(stream, stream.submitted, other, position);
}

cudaError_t submit(cudaStream_t handle, const Work& work) {
  Activity activity;
  {
    const std::lock_guard lock(timeline_mutex());
    Stream* const stream = find_stream(handle);
    if (!stream) return fail(cudaErrorInvalidResourceHandle);
    if (stream->capture) {
      stream->capture->nodes.push_back(work);
      return cudaSuccess;
    }
    activity = start(*stream, work, next_correlation());
  }
  observe(activity);
  return cudaSuccess;
}

cudaError_t submit_graph(cudaStream_t handle, const std::vector<Work>& nodes) {
  std::vector<Activity> activities;
  activities.reserve(nodes.size());
  const std::uint32_t correlation = next_correlation();
  {
    const std::lock_guard lock(timeline_mutex());
    Stream* const stream = find_stream(handle);
    if (!stream) return fail(cudaErrorInvalidResourceHandle);
    for (const Work& node : nodes) activities.push_back(start(*stream, node, correlation));
  }
  count(Counter::kGraphLaunches);
  for (const Activity& activity : activities) observe(activity);
  return cudaSuccess;
}

void report_memory(ActivityKind kind, int device, std::uint64_t address, std::uint64_t size_bytes) {
  const std::uint64_t now_ns = drycuda_now_ns();
  observe({.kind = kind,
           .correlation = next_correlation(),
           .device = static_cast<std::uint32_t>(device),
           .context = static_cast<std::uint32_t>(device) + 1,
           .stream = kDefaultStreamNumber,
           .address = address,
           .size_bytes = size_bytes,
           .start_ns = now_ns,
           .end_ns = now_ns,
           .copy_kind = 0,
           .name = nullptr});
}

extern "C" {

void drycuda_hold_events(int hold_them) {
  if (!hold_them) {
    drycuda_release_events();
    return;
  }
  const std::lock_guard lock(timeline_mutex());
  streams().hold_all = true;
  for (Stream* stream : streams().all) hold(*stream);
}

void drycuda_hold_stream(void* handle) {
  const std::lock_guard lock(timeline_mutex());
  if (Stream* const stream = find_stream(static_cast<cudaStream_t>(handle))) hold(*stream);
}

void drycuda_release_events() {
  const std::lock_guard lock(timeline_mutex());
  streams().hold_all = false;
  for (Stream* stream : streams().all) stream->held = false;
}

std::uint64_t drycuda_stream_position(void* handle) {
  const std::lock_guard lock(timeline_mutex());
  const Stream* const stream = find_stream(static_cast<cudaStream_t>(handle));
  return stream ? stream->submitted : 0;
}

int drycuda_stream_finished(void* handle, std::uint64_t position) {
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(static_cast<cudaStream_t>(handle));
  return stream && has_finished(*stream, position) ? 1 : 0;
}

}  // extern "C"

}  // namespace drycuda
