// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <cupti.h>
#include <gtest/gtest.h>

#include "tests/drycuda/activity.h"
#include "tests/drycuda/cupti_control.h"

namespace drycuda {

/// A device that does what a test says, on a clock that a test sets, and a client that keeps what it is given.
struct Double {
  Observer observer = nullptr;
  std::uint64_t now_ns = 1'000'000;

  std::size_t buffer_bytes = 1 << 16;  ///< of the buffers that the client gives; 0: it gives none
  std::size_t max_records = 0;
  std::vector<std::unique_ptr<std::uint64_t[]>> memory;
  std::vector<std::vector<const CUpti_Activity*>> buffers;  ///< given back: their records
  std::vector<std::size_t> valid_bytes;

  static Double& get() {
    static Double instance;
    return instance;
  }

  void act(const Activity& activity) const {
    if (observer != nullptr) observer(activity);
  }

  template <typename Record>
  std::vector<Record> records(CUpti_ActivityKind kind) const {
    std::vector<Record> found;
    for (const auto& buffer : buffers) {
      for (const CUpti_Activity* record : buffer) {
        if (record->kind == kind) found.push_back(*reinterpret_cast<const Record*>(record));
      }
    }
    return found;
  }

  /// Of all records, in the order in which they came.
  std::vector<CUpti_ActivityKind> kinds() const {
    std::vector<CUpti_ActivityKind> found;
    for (const auto& buffer : buffers) {
      for (const CUpti_Activity* record : buffer) found.push_back(record->kind);
    }
    return found;
  }
};

inline void request_buffer(std::uint8_t** buffer, std::size_t* size_bytes, std::size_t* max_records) {
  Double& the = Double::get();
  *buffer = nullptr;
  *size_bytes = the.buffer_bytes;
  *max_records = the.max_records;
  if (the.buffer_bytes == 0) return;
  the.memory.push_back(std::make_unique<std::uint64_t[]>(the.buffer_bytes / 8 + 1));
  *buffer = reinterpret_cast<std::uint8_t*>(the.memory.back().get());
  std::memset(*buffer, 0xa5, the.buffer_bytes);
}

inline void complete_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size_bytes,
                            std::size_t valid_bytes) {
  Double& the = Double::get();
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(stream, 0U);
  EXPECT_EQ(size_bytes, the.buffer_bytes);
  the.valid_bytes.push_back(valid_bytes);
  the.buffers.emplace_back();
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
    the.buffers.back().push_back(record);
}

inline std::uint64_t device_clock() { return Double::get().now_ns; }

/// A library as after loading, with a client whose timestamps are the device's times.
class Cupti : public testing::Test {
 protected:
  void SetUp() override {
    device = Double{};
    drycupti_reset();
    ASSERT_EQ(cuptiActivityRegisterCallbacks(request_buffer, complete_buffer), CUPTI_SUCCESS);
    ASSERT_EQ(cuptiActivityRegisterTimestampCallback(device_clock), CUPTI_SUCCESS);
  }

  void TearDown() override { drycupti_reset(); }

  static void enable(std::initializer_list<CUpti_ActivityKind> kinds) {
    for (const auto kind : kinds) ASSERT_EQ(cuptiActivityEnable(kind), CUPTI_SUCCESS);
  }

  static void flush() { ASSERT_EQ(cuptiActivityFlushAll(0), CUPTI_SUCCESS); }

  static std::size_t dropped() {
    std::size_t count = 0;
    EXPECT_EQ(cuptiActivityGetNumDroppedRecords(nullptr, 0, &count), CUPTI_SUCCESS);
    return count;
  }

  Double& device = Double::get();
};

inline Activity allocation(std::uint32_t correlation, std::uint64_t size_bytes = 4096) {
  return {ActivityKind::kAllocate, correlation, 0, 1, 7, 0x7000'0000, size_bytes, 900'000, 900'000, 0, nullptr};
}

inline Activity kernel(std::uint32_t correlation, const char* name = "_Z3addPfS_") {
  return {ActivityKind::kKernel, correlation, 0, 1, 13, 0, 0, 900'100, 900'300, 0, name};
}

}  // namespace drycuda
