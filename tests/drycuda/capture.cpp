// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/capture.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/drycuda/device.h"
#include "tests/drycuda/report.h"
#include "tests/drycuda/timeline.h"

namespace drycuda {
namespace {

struct Graph {
  std::vector<Work> nodes;
};

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const made = new std::vector<std::shared_ptr<Capture>>;
  return *made;
}

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
// Its address names the thread.
thread_local const char thread_mark = 0;

bool forbids_unsafe_calls(const Capture& capture) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed || capture.mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == &thread_mark) return true;
  return mode_of_thread == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
}

cudaStreamCaptureStatus status_of(const Stream& stream) {
  if (!stream.capture) return cudaStreamCaptureStatusNone;
  return stream.capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
}

}  // namespace

cudaError_t allow_unsafe_call(const char* call) {
  const std::lock_guard lock(timeline_mutex());
  bool allowed = true;
  for (const std::shared_ptr<Capture>& capture : captures()) {
    if (!forbids_unsafe_calls(*capture)) continue;
    allowed = capture->valid = false;
  }
  if (allowed) return cudaSuccess;
  report_violation(fmt::format("{} while a stream is capturing", call));
  return fail(cudaErrorStreamCaptureUnsupported);
}

void note_driver_free() {
  const std::lock_guard lock(timeline_mutex());
  if (!captures().empty()) count(Counter::kDriverFreesWhileCapturing);
}

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  static unsigned long long last_id = 0;
  const std::lock_guard lock(timeline_mutex());
  Stream* const stream = find_stream(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  if (stream->number == kDefaultStreamNumber) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return fail(cudaErrorIllegalState);
  stream->capture =
      std::make_shared<Capture>(Capture{.id = ++last_id, .mode = mode, .thread = &thread_mark, .origin = stream});
  captures().push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const std::lock_guard lock(timeline_mutex());
  *graph = nullptr;
  Stream* const stream = find_stream(handle);
  if (!stream || !stream->capture || stream->capture->origin != stream) return fail(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  for (Stream* other : all_streams()) {
    if (other->capture == capture) other->capture = nullptr;
  }
  capture->ended = true;
  std::erase(captures(), capture);
  if (!capture->valid) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(new Graph{std::move(capture->nodes)});
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(timeline_mutex());
  const Stream* const stream = find_stream(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  *status = status_of(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* dependency_count) {
  const std::lock_guard lock(timeline_mutex());
  const Stream* const stream = find_stream(handle);
  if (!stream) return fail(cudaErrorInvalidResourceHandle);
  *status = status_of(*stream);
  if (id) *id = stream->capture ? stream->capture->id : 0;
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (dependency_count) *dependency_count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return submit_graph(stream, reinterpret_cast<Graph*>(executable)->nodes);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Graph*>(executable);
  return cudaSuccess;
}

// Only how many: the nodes themselves are not modelled.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* node_count) {
  *node_count = reinterpret_cast<Graph*>(graph)->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         std::size_t* dependency_count) {
  *dependency_count = 0;
  return cudaSuccess;
}

}  // extern "C"

}  // namespace drycuda
