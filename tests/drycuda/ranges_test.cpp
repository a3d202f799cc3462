// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/test_support.h"

namespace drycuda {
namespace {

void* at(std::uint64_t address) { return reinterpret_cast<void*>(address); }

void work_on(cudaStream_t stream) {
  static void* const scratch = allocate(8);
  ASSERT_EQ(cudaMemsetAsync(scratch, 0, 8, stream), cudaSuccess);
}

TEST(Ranges, MayFollowAndTouchEachOther) {
  drycuda_range_begin(at(0x1000), 0x100, nullptr);
  drycuda_range_begin(at(0x1100), 0x100, nullptr);
  drycuda_range_end(at(0x1000));
  drycuda_range_begin(at(0x1000), 0x80, nullptr);
  drycuda_range_begin(at(0x1080), 0x80, nullptr);
  EXPECT_EQ(drycuda_live_ranges(), 3);
  EXPECT_EQ(violation_text(), "");
}

TEST(Ranges, ThatOverlapALiveOneAreViolations) {
  drycuda_range_begin(at(0x1000), 0x100, nullptr);
  drycuda_range_begin(at(0x10ff), 0x100, nullptr);
  drycuda_range_begin(at(0xf01), 0x100, nullptr);
  EXPECT_EQ(drycuda_violations(), 2);
  EXPECT_EQ(violation_text(),
            "range [0x10ff, 0x11ff) given out for stream 7 of device 0 while [0x1000, 0x1100) is live\n"
            "range [0xf01, 0x1001) given out for stream 7 of device 0 while [0x1000, 0x1100) is live\n");
}

TEST(Ranges, AreKeptWhileAnotherStreamUsesThem) {
  const cudaStream_t user = new_stream();
  drycuda_hold_stream(user);
  drycuda_range_begin(at(0x1000), 0x100, nullptr);
  drycuda_range_use(at(0x1000), user);
  work_on(user);
  drycuda_range_end(at(0x1000));
  drycuda_range_begin(at(0x1080), 0x10, nullptr);
  EXPECT_EQ(violation_text(),
            "range [0x1080, 0x1090) given out for stream 7 of device 0 while stream 13 still uses [0x1000, 0x1100)\n");
}

TEST(Ranges, AreKeptWhileACopyOfThemIsUnderWay) {
  const cudaStream_t user = new_stream();
  char host[0x100];
  void* const there = allocate(0x100);
  drycuda_hold_stream(user);
  drycuda_range_begin(there, 0x100, nullptr);
  ASSERT_EQ(cudaMemcpyAsync(host, there, 0x100, cudaMemcpyDeviceToHost, user), cudaSuccess);
  cudaEvent_t copied = nullptr;
  ASSERT_EQ(cudaEventCreate(&copied), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(copied, user), cudaSuccess);
  work_on(user);  // later work does not matter
  drycuda_range_end(there);
  drycuda_range_begin(there, 0x100, nullptr);
  EXPECT_EQ(drycuda_violations(), 1);
  drycuda_range_end(there);
  ASSERT_EQ(cudaStreamWaitEvent(nullptr, copied, 0), cudaSuccess);
  drycuda_range_begin(there, 0x100, nullptr);
  EXPECT_EQ(drycuda_violations(), 1);
}

TEST(Ranges, AreNotCopiedWhileTheirMemoryIsInUse) {
  const cudaStream_t user = new_stream();
  char host[0x100] = {};
  void* const there = allocate(0x100);
  drycuda_hold_stream(nullptr);
  drycuda_range_begin(there, 0x100, nullptr);
  work_on(nullptr);
  cudaEvent_t worked = nullptr;
  ASSERT_EQ(cudaEventCreate(&worked), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(worked, nullptr), cudaSuccess);
  drycuda_range_end(there);
  drycuda_range_begin(there, 0x100, nullptr);
  ASSERT_EQ(cudaMemcpyAsync(there, host, 0x100, cudaMemcpyHostToDevice, user), cudaSuccess);
  EXPECT_EQ(drycuda_violations(), 1);
  ASSERT_EQ(cudaStreamWaitEvent(user, worked, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(there, host, 0x100, cudaMemcpyHostToDevice, user), cudaSuccess);
  EXPECT_EQ(drycuda_violations(), 1);
}

TEST(Ranges, AreFreeOnceTheOtherStreamHasFinished) {
  const cudaStream_t user = new_stream();
  drycuda_hold_stream(user);
  drycuda_range_begin(at(0x1000), 0x100, nullptr);
  drycuda_range_use(at(0x1000), user);
  work_on(user);
  drycuda_range_end(at(0x1000));
  work_on(user);  // later work does not matter
  const std::uint64_t position = drycuda_stream_position(user) - 1;
  ASSERT_EQ(cudaStreamSynchronize(user), cudaSuccess);
  ASSERT_TRUE(drycuda_stream_finished(user, position));
  drycuda_range_begin(at(0x1000), 0x100, nullptr);
  EXPECT_EQ(violation_text(), "");
}

TEST(Ranges, AreFreeForAStreamThatWaits) {
  const cudaStream_t user = new_stream();
  const cudaStream_t waiting = new_stream();
  drycuda_hold_events(1);
  drycuda_range_begin(at(0x1000), 0x100, user);
  work_on(user);
  drycuda_range_end(at(0x1000));
  drycuda_range_begin(at(0x1000), 0x80, user);  // in the order of its own stream
  ASSERT_EQ(cudaStreamWaitEvent(waiting, recorded_event(user), 0), cudaSuccess);
  drycuda_range_begin(at(0x1080), 0x80, waiting);
  EXPECT_EQ(violation_text(), "");
  drycuda_range_end(at(0x1000));
  drycuda_range_begin(at(0x1000), 0x80, new_stream());  // did not wait
  EXPECT_EQ(drycuda_violations(), 2);                   // for both ranges that were there
}

TEST(Ranges, ThatWereNotGivenOutAreViolations) {
  drycuda_range_use(at(0x1000), nullptr);
  drycuda_range_end(at(0x1000));
  EXPECT_EQ(violation_text(),
            "a stream uses range 0x1000, which is not live\n"
            "range 0x1000 given back, which is not live\n");
}

TEST(Counters, AreFoundByNameAndReset) {
  drycuda_range_end(at(0x1000));
  EXPECT_EQ(drycuda_count("violations"), 1);
  EXPECT_EQ(drycuda_count("violation"), UINT64_MAX);
  drycuda_reset_counts();
  EXPECT_EQ(drycuda_count("violations"), 0);
  EXPECT_EQ(violation_text(), "");
}

}  // namespace
}  // namespace drycuda
