// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/drycuda/activity.h"

namespace drycuda {

/// Counts what a stream was given: after the position's own work, all before it is done too.
using Position = std::uint64_t;

/// One thing for a device to do.
struct Work {
  ActivityKind kind;
  const char* name = nullptr;  ///< lives as long as the process
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t duration_ns = 0;
  std::uint8_t copy_kind = 0;
};

inline constexpr std::uint32_t kDefaultStreamNumber = 7;

struct Stream;

/// What is captured, instead of done, on the streams that take part.
struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  const void* thread;
  Stream* origin;
  bool valid = true;
  bool ended = false;
  std::vector<Work> nodes = {};
};

/// Lives as long as the process, as ranges and events refer to it.
struct Stream {
  struct Wait {
    Position at;
    Stream* other;
    Position until;
  };

  int device;
  std::uint32_t number;  ///< as CUPTI numbers streams
  unsigned flags = 0;
  int priority = 0;
  bool held = false;
  Position submitted = 0;
  Position finished = 0;  ///< may lag behind: ask `has_finished`
  std::uint64_t end_ns = 0;
  std::vector<Wait> waits = {};
  std::shared_ptr<Capture> capture = nullptr;
};

/// Guards all streams, events and captures.
std::mutex& timeline_mutex();

// --- with timeline_mutex() held ---

Stream& make_stream(unsigned flags, int priority);
/// The stream of a handle; the default stream of the current device for 0, 1 and 2; null if the handle is none.
Stream* find_stream(cudaStream_t handle);
const std::vector<Stream*>& all_streams();

bool has_finished(Stream& stream, Position position);
void finish(Stream& stream, Position position);
/// Makes what is submitted from now on wait for what `other` had been given before `until`.
void wait_for(Stream& stream, Stream& other, Position until);
/// Whether what is given to `stream` now starts after what `other` was given before `position`.
bool starts_after(const Stream& stream, Stream& other, Position position);

// --- without ---

/// Gives work to a stream: does it, or adds it to the graph that the stream captures.
cudaError_t submit(cudaStream_t handle, const Work& work);
/// Checks a copy from or to memory in a live range that the stream is about to be given: what others did in that
/// memory before the range was given out must be done by then, and its own work counts as the range's until it is.
void check_copy(cudaStream_t handle, const void* address);
/// Gives a stream all of a graph's work, as one call.
cudaError_t submit_graph(cudaStream_t handle, const std::vector<Work>& nodes);
/// Reports memory that came or went, which takes no device time.
void report_memory(ActivityKind kind, int device, std::uint64_t address, std::uint64_t size_bytes);

}  // namespace drycuda
