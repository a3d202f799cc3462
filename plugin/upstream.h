// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace stowage {

/// A stream of work on a device, by its handle; 0 on the CPU, where work is done when a call returns.
using Stream = std::intptr_t;
/// The default stream, where 0 already says something else. Its other handle (cudaStreamLegacy in driver_types.h).
inline constexpr Stream kDefaultStream = 1;

/// A point in the work of a stream. Destroyed on any thread.
class Event {
 public:
  virtual ~Event() = default;
  /// Whether the stream is known to have come past it. Does not wait.
  virtual bool is_done() noexcept = 0;
};

/// The allocator beneath, and the order of work on its device. Called from any thread; under a lock of ours only
/// `fill`. The defaults are the CPU's.
class Upstream {
 public:
  virtual ~Upstream() = default;

  /// Memory for work on `stream`. Throws its own out-of-memory error.
  virtual void* allocate(std::size_t size_bytes, Stream stream) = 0;
  virtual void free(void* pointer) noexcept = 0;

  /// The stream that the calling thread's work goes to.
  virtual Stream current_stream() { return 0; }
  /// Whether a run of the calling thread may be profiled or planned now.
  virtual bool may_plan() { return true; }
  /// Whether memory of an arena may be given out now, in a run that began when it might: nobody has allocations go to a
  /// pool of their own. Asked at every allocation of a step.
  virtual bool may_serve() { return true; }
  /// Whether the calling thread does the work of a backward.
  virtual bool runs_backward() { return false; }
  /// Gives memory back to the device that is held, but unused.
  virtual void release_cache() {}

  /// How large the blocks are, the largest first, that `allocate` would take from what it holds unused, and could not
  /// give back for what lies beside them.
  virtual std::vector<std::int64_t> spare_blocks(Stream /*stream*/) { return {}; }
  /// As `allocate`, in as little memory of the device as it takes.
  virtual void* allocate_apart(std::size_t size_bytes, Stream stream) { return allocate(size_bytes, stream); }

  /// One block of the driver's own for each call, so that a profiler sees it; null where that cannot be had.
  virtual void* allocate_direct(std::size_t /*size_bytes*/) { return nullptr; }
  virtual void free_direct(void* /*pointer*/) noexcept {}

  /// Makes work that `waiting` gets from now on follow what `stream` has got so far. Throws where it cannot.
  virtual void wait(Stream /*waiting*/, Stream /*stream*/) {}
  /// `block`, from `allocate`, is used on `stream` too.
  virtual void record_stream(void* /*block*/, Stream /*stream*/) {}
  /// What `stream` has got so far; null where that cannot be told now.
  virtual std::unique_ptr<Event> record_event(Stream /*stream*/) noexcept { return nullptr; }
  /// Sets every byte, in the order of `stream`.
  virtual void fill(void* pointer, int byte, std::size_t size_bytes, Stream /*stream*/) noexcept {
    std::memset(pointer, byte, size_bytes);
  }
};

}  // namespace stowage
