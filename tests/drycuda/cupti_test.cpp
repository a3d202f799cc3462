// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include <gmock/gmock.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/drycuda/cupti_double.h"

namespace drycuda {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(Cupti, RecordsAnAllocationAndItsRelease) {
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  device.act(allocation(5, 4096));
  Activity release = allocation(6, 4096);
  release.kind = ActivityKind::kFree;
  release.start_ns = release.end_ns = 950'000;
  device.act(release);
  flush();

  const auto records = device.records<CUpti_ActivityMemory4>(CUPTI_ACTIVITY_KIND_MEMORY2);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].memoryOperationType, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION);
  EXPECT_EQ(records[0].memoryKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
  EXPECT_EQ(records[0].correlationId, 5U);
  EXPECT_EQ(records[0].address, 0x7000'0000U);
  EXPECT_EQ(records[0].bytes, 4096U);
  EXPECT_EQ(records[0].timestamp, 900'000U);
  EXPECT_EQ(records[0].processId, static_cast<std::uint32_t>(getpid()));
  EXPECT_EQ(records[0].contextId, 1U);
  EXPECT_EQ(records[0].streamId, CUPTI_INVALID_STREAM_ID) << "cudaMalloc is not ordered by a stream";
  EXPECT_EQ(records[0].isAsync, 0U);
  EXPECT_EQ(records[1].memoryOperationType, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE);
  EXPECT_EQ(records[1].correlationId, 6U);
  EXPECT_EQ(records[1].timestamp, 950'000U);
}

TEST_F(Cupti, RecordsAKernel) {
  enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  std::string name = "_Z3addPfS_";
  device.act(kernel(7, name.c_str()));
  name = "overwritten";  // the name is valid only during the call
  flush();

  const auto records = device.records<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_STREQ(records[0].name, "_Z3addPfS_");
  EXPECT_EQ(records[0].start, 900'100U);
  EXPECT_EQ(records[0].end, 900'300U);
  EXPECT_EQ(records[0].completed, 900'300U);
  EXPECT_EQ(records[0].streamId, 13U);
  EXPECT_EQ(records[0].correlationId, 7U);
  EXPECT_EQ(records[0].queued, CUPTI_TIMESTAMP_UNKNOWN);
  EXPECT_EQ(records[0].blockX, 1);
}

TEST_F(Cupti, RecordsACopyAndAFill) {
  enable({CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET});
  Activity work = kernel(8, nullptr);
  work.kind = ActivityKind::kCopy;
  work.size_bytes = 64;
  work.copy_kind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  device.act(work);
  work.kind = ActivityKind::kSet;
  work.correlation = 9;
  device.act(work);
  flush();

  const auto copies = device.records<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].copyKind, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD);
  EXPECT_EQ(copies[0].srcKind, CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE);
  EXPECT_EQ(copies[0].dstKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
  EXPECT_EQ(copies[0].bytes, 64U);
  EXPECT_EQ(copies[0].start, 900'100U);
  EXPECT_EQ(copies[0].end, 900'300U);
  EXPECT_EQ(copies[0].correlationId, 8U);
  EXPECT_EQ(copies[0].copyCount, 1U);
  const auto sets = device.records<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
  ASSERT_EQ(sets.size(), 1U);
  EXPECT_EQ(sets[0].bytes, 64U);
  EXPECT_EQ(sets[0].correlationId, 9U);
  EXPECT_EQ(sets[0].memoryKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
}

TEST_F(Cupti, RecordsTheCallOnTheThreadThatMadeIt) {
  enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  device.act(kernel(7));
  flush();

  const auto calls = device.records<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME);
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].cbid, static_cast<CUpti_CallbackId>(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000));
  EXPECT_EQ(calls[0].correlationId, 7U);
  EXPECT_EQ(calls[0].threadId, static_cast<std::uint32_t>(pthread_self()));
  EXPECT_EQ(calls[0].end, 1'000'000U);
  EXPECT_LT(calls[0].start, calls[0].end);
  EXPECT_EQ(calls[0].returnValue, 0U);
}

TEST_F(Cupti, RecordsOneCallForAllThatItStarted) {
  enable({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  device.act(kernel(7));
  device.act(kernel(7));
  device.act(kernel(8));
  flush();
  EXPECT_EQ(device.records<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME).size(), 2U);
  EXPECT_EQ(device.records<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL).size(), 3U);
}

TEST_F(Cupti, RecordsOnlyWhatIsEnabled) {
  device.act(allocation(1));
  enable({CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_DRIVER});
  device.act(kernel(2));
  device.act(allocation(3));
  ASSERT_EQ(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_DRIVER), CUPTI_SUCCESS);
  device.act(kernel(4));
  flush();
  EXPECT_THAT(device.kinds(), ElementsAre(CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_DRIVER));
}

TEST_F(Cupti, LeavesTheDeviceAloneWhileNothingIsEnabled) {
  EXPECT_EQ(device.observer, nullptr);
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  EXPECT_NE(device.observer, nullptr);
  EXPECT_EQ(drycupti_is_enabled(CUPTI_ACTIVITY_KIND_MEMORY2), 1);
  ASSERT_EQ(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMORY2), CUPTI_SUCCESS);
  EXPECT_EQ(device.observer, nullptr);
  EXPECT_EQ(drycupti_is_enabled(CUPTI_ACTIVITY_KIND_MEMORY2), 0);
}

TEST_F(Cupti, RecordsChosenCallsOnly) {
  enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  ASSERT_EQ(cuptiActivityEnableRuntimeApi(CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020, 0), CUPTI_SUCCESS);
  device.act(allocation(1));
  device.act(kernel(2));
  ASSERT_EQ(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_RUNTIME), CUPTI_SUCCESS);
  ASSERT_EQ(cuptiActivityEnableRuntimeApi(CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020, 1), CUPTI_SUCCESS);
  device.act(allocation(3));
  device.act(kernel(4));
  flush();
  const auto calls = device.records<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].correlationId, 2U);
  EXPECT_EQ(calls[1].correlationId, 3U);

  enable({CUPTI_ACTIVITY_KIND_RUNTIME});  // overrides what was chosen
  device.act(allocation(5));
  flush();
  EXPECT_EQ(device.records<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME).size(), 3U);
}

TEST_F(Cupti, PrecedesACallByTheInnermostIdOfEachKind) {
  enable(
      {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 10);
  cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2, 30);
  cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 11);
  device.act(kernel(1));
  std::uint64_t last = 0;
  EXPECT_EQ(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last), CUPTI_SUCCESS);
  EXPECT_EQ(last, 11U);
  device.act(kernel(2));
  EXPECT_EQ(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, nullptr), CUPTI_SUCCESS);
  EXPECT_EQ(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2, nullptr), CUPTI_SUCCESS);
  device.act(kernel(3));
  flush();

  constexpr auto kExternal = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  constexpr auto kCall = CUPTI_ACTIVITY_KIND_RUNTIME;
  constexpr auto kKernel = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  EXPECT_THAT(device.kinds(),
              ElementsAre(kExternal, kExternal, kCall, kKernel, kExternal, kExternal, kCall, kKernel, kCall, kKernel));
  std::vector<std::uint64_t> ids;
  for (const auto& record : device.records<CUpti_ActivityExternalCorrelation>(kExternal)) {
    ids.push_back(record.correlationId * 100 + record.externalId);
    EXPECT_EQ(record.externalKind, record.externalId == 30 ? CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2
                                                           : CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);
  }
  EXPECT_THAT(ids, ElementsAre(111, 130, 210, 230));
}

TEST_F(Cupti, RecordsNoExternalIdWithoutACall) {
  enable({CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2, 30);
  device.act(kernel(1));
  flush();
  EXPECT_THAT(device.kinds(), ElementsAre(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
}

TEST_F(Cupti, KeepsExternalIdsOfThreadsApart) {
  enable({CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME});
  cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2, 30);
  std::thread([this] {
    EXPECT_EQ(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2, nullptr),
              CUPTI_ERROR_QUEUE_EMPTY);
    device.act(kernel(1));
  }).join();
  flush();
  EXPECT_THAT(device.kinds(), ElementsAre(CUPTI_ACTIVITY_KIND_RUNTIME));
}

TEST_F(Cupti, GivesEachThreadABufferUnlessTold) {
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  const auto act_twice = [this] {
    device.act(allocation(1));
    std::thread([this] { device.act(allocation(2)); }).join();
    flush();
  };
  act_twice();
  EXPECT_EQ(device.buffers.size(), 2U);

  std::uint8_t per_thread = 0;
  std::size_t size_bytes = sizeof(per_thread);
  ASSERT_EQ(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, &size_bytes, &per_thread),
            CUPTI_SUCCESS);
  act_twice();
  EXPECT_EQ(device.buffers.size(), 3U);
}

TEST_F(Cupti, ConvertsTimesToTheClientsClock) {
  // Three ticks a nanosecond, from tick 5000 on.
  static const auto ticks = [] { return 5'000 + 3 * (Double::get().now_ns - 1'000'000); };
  ASSERT_EQ(cuptiActivityRegisterTimestampCallback([]() -> std::uint64_t { return ticks(); }), CUPTI_SUCCESS);
  enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  device.now_ns = 1'001'000;
  Activity work = kernel(1);
  work.start_ns = 1'000'100;
  work.end_ns = 1'000'900;
  device.act(work);
  flush();
  const auto records = device.records<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].start, 5'300U);
  EXPECT_EQ(records[0].end, 7'700U);
  std::uint64_t now = 0;
  ASSERT_EQ(cuptiGetTimestamp(&now), CUPTI_SUCCESS);
  EXPECT_EQ(now, 8'000U);
  EXPECT_EQ(cuptiActivityRegisterTimestampCallback(nullptr), CUPTI_ERROR_INVALID_PARAMETER);
}

}  // namespace
}  // namespace drycuda
