// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "tests/drycuda/capture.h"
#include "tests/drycuda/device.h"
#include "tests/drycuda/report.h"
#include "tests/drycuda/timeline.h"

namespace drycuda {
namespace {

struct Event {
  Stream* stream = nullptr;  // null until recorded
  Position position = 0;
  std::uint64_t time_ns = 0;
  std::shared_ptr<Capture> capture;
};

Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

bool is_finished(const Event& event) { return !event.stream || has_finished(*event.stream, event.position); }

// Waiting for a stream that captures would wait forever: it does nothing until its graph runs.
cudaError_t synchronize(Stream* stream) {
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    stream->capture->valid = false;
    report_violation(fmt::format("a wait for stream {}, which is capturing", stream->number));
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  count(Counter::kSynchronizations);
  finish(*stream, stream->submitted);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  const std::lock_guard lock(timeline_mutex());
  *handle = reinterpret_cast<cudaStream_t>(&make_stream(flags, priority));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }

// The stream goes on to finish what it was given.
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const std::lock_guard lock(timeline_mutex());
  const Stream* const stream = find_stream(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  const std::lock_guard lock(timeline_mutex());
  const Stream* const stream = find_stream(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  return has_finished(*stream, stream->submitted) ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const std::lock_guard lock(timeline_mutex());
  return synchronize(find_stream(handle));
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = allow_unsafe_call("cudaDeviceSynchronize"); error != cudaSuccess) return error;
  const std::lock_guard lock(timeline_mutex());
  count(Counter::kSynchronizations);
  for (Stream* stream : all_streams()) {
    if (stream->device == current_device()) finish(*stream, stream->submitted);
  }
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  count(Counter::kStreamWaits);
  const Event& event = event_of(event_handle);
  if (!event.stream) return cudaSuccess;
  if (event.capture) {
    if (event.capture->ended) return fail(cudaErrorCapturedEvent);
    if (stream->capture && stream->capture != event.capture) return fail(cudaErrorStreamCaptureMerge);
    stream->capture = event.capture;  // so a capture spreads to other streams
    return cudaSuccess;
  }
  if (stream->capture) return fail(cudaErrorStreamCaptureIsolation);
  stream->end_ns = std::max(stream->end_ns, event.time_ns);
  wait_for(*stream, *event.stream, event.position);
  return cudaSuccess;
}

// Called at once, though the stream may be held: nobody here waits for a callback.
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* argument, unsigned) {
  callback(stream, cudaSuccess, argument);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* argument) {
  function(argument);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  *handle = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const std::lock_guard lock(timeline_mutex());
  delete &event_of(handle);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(stream_handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  if (!stream->capture) ++stream->submitted;
  event_of(handle) = {.stream = stream,
                      .position = stream->submitted,
                      .time_ns = std::max(stream->end_ns, drycuda_now_ns()),
                      .capture = stream->capture};
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  if (const cudaError_t error = allow_unsafe_call("cudaEventQuery"); error != cudaSuccess) return error;
  const std::lock_guard lock(timeline_mutex());
  const Event& event = event_of(handle);
  if (event.capture) return fail(cudaErrorCapturedEvent);
  return is_finished(event) ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  if (const cudaError_t error = allow_unsafe_call("cudaEventSynchronize"); error != cudaSuccess) return error;
  const std::lock_guard lock(timeline_mutex());
  const Event& event = event_of(handle);
  if (event.capture) return fail(cudaErrorCapturedEvent);
  count(Counter::kSynchronizations);
  if (event.stream) finish(*event.stream, event.position);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  const std::lock_guard lock(timeline_mutex());
  const Event& start = event_of(start_handle);
  const Event& end = event_of(end_handle);
  if (!start.stream || !end.stream) return fail(cudaErrorInvalidResourceHandle);
  if (!is_finished(start) || !is_finished(end)) return fail(cudaErrorNotReady);
  *milliseconds = static_cast<float>(static_cast<double>(end.time_ns) - static_cast<double>(start.time_ns)) / 1e6F;
  return cudaSuccess;
}

}  // extern "C"

}  // namespace drycuda
