// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <thread>

#include <gmock/gmock.h>

#include "tests/drycuda/cupti_double.h"

namespace drycuda {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::size_t kRecordBytes = sizeof(CUpti_ActivityMemory4);

TEST_F(Cupti, GivesBackAFullBufferAndFillsTheNext) {
  device.buffer_bytes = 2 * kRecordBytes + 8;
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  device.act(allocation(1));
  device.act(allocation(2));
  EXPECT_THAT(device.valid_bytes, IsEmpty());
  EXPECT_EQ(drycupti_buffers_held(), 1U);
  device.act(allocation(3));
  EXPECT_THAT(device.valid_bytes, ElementsAre(2 * kRecordBytes));
  flush();
  EXPECT_THAT(device.valid_bytes, ElementsAre(2 * kRecordBytes, kRecordBytes));
  EXPECT_EQ(drycupti_buffers_held(), 0U);
  EXPECT_EQ(dropped(), 0U);
}

TEST_F(Cupti, PutsNoMoreRecordsThanAskedIntoABuffer) {
  device.max_records = 2;
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  for (std::uint32_t correlation = 1; correlation <= 5; ++correlation) device.act(allocation(correlation));
  EXPECT_THAT(device.valid_bytes, ElementsAre(2 * kRecordBytes, 2 * kRecordBytes));
  flush();
  EXPECT_THAT(device.valid_bytes, ElementsAre(2 * kRecordBytes, 2 * kRecordBytes, kRecordBytes));
}

TEST_F(Cupti, DropsAndCountsWhatHasNoBuffer) {
  device.buffer_bytes = 0;
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  device.act(allocation(1));
  device.act(allocation(2));
  device.buffer_bytes = 1 << 12;
  device.act(allocation(3));
  flush();
  EXPECT_EQ(device.records<CUpti_ActivityMemory4>(CUPTI_ACTIVITY_KIND_MEMORY2).size(), 1U);
  EXPECT_EQ(dropped(), 2U);
  EXPECT_EQ(dropped(), 0U) << "reading the count resets it";
}

TEST_F(Cupti, DropsAndCountsWhatFitsNoBuffer) {
  device.buffer_bytes = kRecordBytes - 8;
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  device.act(allocation(1));
  EXPECT_THAT(device.valid_bytes, ElementsAre(0U)) << "the buffer goes back empty";
  EXPECT_EQ(dropped(), 1U);
}

TEST_F(Cupti, ClearsBuffersUnlessTold) {
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  const auto last_byte = [this] { return reinterpret_cast<const std::uint8_t*>(device.memory.back().get())[1 << 15]; };
  device.act(allocation(1));
  flush();
  EXPECT_EQ(last_byte(), 0);
  std::uint8_t zeroed_by_client = 1;
  std::size_t size_bytes = sizeof(zeroed_by_client);
  cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size_bytes, &zeroed_by_client);
  device.act(allocation(2));
  flush();
  EXPECT_EQ(last_byte(), 0xa5);
}

TEST_F(Cupti, HoldsBackUnfinishedWorkUnlessForced) {
  enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  Activity work = kernel(1);
  work.end_ns = device.now_ns + 100;
  device.act(work);
  flush();
  EXPECT_THAT(device.kinds(), IsEmpty());
  device.act(kernel(2));  // finished, but in one buffer with what is not
  flush();
  EXPECT_THAT(device.kinds(), IsEmpty());
  device.now_ns += 100;
  flush();
  EXPECT_THAT(device.valid_bytes, ElementsAre(2 * sizeof(CUpti_ActivityKernel10)));

  work.end_ns = device.now_ns + 100;
  device.act(work);
  ASSERT_EQ(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), CUPTI_SUCCESS);
  EXPECT_EQ(device.kinds().size(), 3U);
}

TEST_F(Cupti, HoldsBackAFullBufferWithUnfinishedWork) {
  device.max_records = 1;
  enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  Activity work = kernel(1);
  work.end_ns = device.now_ns + 100;
  device.act(work);
  EXPECT_THAT(device.kinds(), IsEmpty());
  EXPECT_EQ(drycupti_buffers_held(), 1U);
  device.now_ns += 100;
  device.act(kernel(2));
  EXPECT_EQ(device.kinds().size(), 2U);
}

TEST_F(Cupti, LosesNothingOfThreadsThatRecordAtOnce) {
  constexpr std::uint32_t kEach = 500;
  device.max_records = 3;
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  const auto act = [this](std::uint32_t first) {
    for (std::uint32_t correlation = first; correlation < first + kEach; ++correlation) {
      device.act(allocation(correlation));
    }
  };
  std::thread other(act, kEach);
  act(0);
  other.join();
  flush();
  std::set<std::uint32_t> seen;
  for (const auto& record : device.records<CUpti_ActivityMemory4>(CUPTI_ACTIVITY_KIND_MEMORY2)) {
    seen.insert(record.correlationId);
  }
  EXPECT_EQ(seen.size(), 2 * kEach);
  EXPECT_EQ(dropped(), 0U);
}

TEST_F(Cupti, ReadsRecordsToTheEndAndNoFurther) {
  CUpti_ActivityMemory4 records[2]{};
  auto* buffer = reinterpret_cast<std::uint8_t*>(records);
  records[0].kind = CUPTI_ACTIVITY_KIND_MEMORY2;
  CUpti_Activity* record = nullptr;
  EXPECT_EQ(cuptiActivityGetNextRecord(nullptr, 8, &record), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, 0, &record), CUPTI_ERROR_MAX_LIMIT_REACHED);
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, kRecordBytes - 8, &record), CUPTI_ERROR_INVALID_KIND) << "cut off";
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, sizeof(records), &record), CUPTI_SUCCESS);
  EXPECT_EQ(record, reinterpret_cast<CUpti_Activity*>(records));
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, sizeof(records), &record), CUPTI_ERROR_INVALID_KIND) << "kind 0";
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, kRecordBytes, &record), CUPTI_ERROR_MAX_LIMIT_REACHED);
}

TEST_F(Cupti, GivesBuffersToWhoRegisteredLast) {
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  device.act(allocation(1));
  static std::size_t taken = 0;
  taken = 0;
  const auto take = [](CUcontext, std::uint32_t, std::uint8_t*, std::size_t, std::size_t) { ++taken; };
  ASSERT_EQ(cuptiActivityRegisterCallbacks(request_buffer, take), CUPTI_SUCCESS);
  flush();
  EXPECT_EQ(taken, 1U) << "although the other client gave the buffer";
  EXPECT_THAT(device.valid_bytes, IsEmpty());
}

TEST_F(Cupti, NeedsCallbacksToFlush) {
  EXPECT_EQ(cuptiActivityRegisterCallbacks(request_buffer, nullptr), CUPTI_ERROR_INVALID_PARAMETER);
  ASSERT_EQ(cuptiFinalize(), CUPTI_SUCCESS);
  EXPECT_EQ(cuptiActivityFlushAll(0), CUPTI_ERROR_INVALID_OPERATION);
}

TEST_F(Cupti, ChecksAttributes) {
  std::size_t value = 0;
  std::size_t size_bytes = sizeof(value);
  EXPECT_EQ(cuptiActivityGetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &size_bytes, &value), CUPTI_SUCCESS);
  EXPECT_EQ(value, 3'200'000U);
  value = 1'000;
  EXPECT_EQ(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &size_bytes, &value), CUPTI_SUCCESS);
  value = 0;
  EXPECT_EQ(cuptiActivityGetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &size_bytes, &value), CUPTI_SUCCESS);
  EXPECT_EQ(value, 1'000U);
  size_bytes = 4;
  EXPECT_EQ(cuptiActivityGetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &size_bytes, &value),
            CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT);
  EXPECT_EQ(cuptiActivitySetAttribute(static_cast<CUpti_ActivityAttribute>(99), &size_bytes, &value),
            CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, nullptr, &value),
            CUPTI_ERROR_INVALID_PARAMETER);
}

}  // namespace
}  // namespace drycuda
