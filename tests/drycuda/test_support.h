// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/drycuda/activity.h"
#include "tests/drycuda/control.h"

// Every test has a process of its own, as ctest starts it: the state of the devices starts anew.

namespace drycuda {

inline std::string violation_text() {
  std::string text(drycuda_violation_text(nullptr, 0), '\0');
  drycuda_violation_text(text.data(), text.size());
  text.pop_back();
  return text;
}

/// A stream as torch makes them, which waits for no other.
inline cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

inline cudaEvent_t recorded_event(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  return event;
}

inline void* allocate(std::size_t size_bytes) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, size_bytes), cudaSuccess);
  return pointer;
}

/// Keeps what the device did while it lives.
class Recorder {
 public:
  Recorder() {
    kept().clear();
    drycuda_set_observer([](const Activity& activity) { kept().push_back(activity); });
  }
  ~Recorder() { drycuda_set_observer(nullptr); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  const std::vector<Activity>& activities() const { return kept(); }

 private:
  static std::vector<Activity>& kept() {
    static std::vector<Activity> activities;
    return activities;
  }
};

}  // namespace drycuda
