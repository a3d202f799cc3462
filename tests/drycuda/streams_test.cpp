// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/test_support.h"

namespace drycuda {
namespace {

TEST(Events, CompleteAtOnceUnlessHeld) {
  const cudaStream_t stream = new_stream();
  const cudaEvent_t early = recorded_event(stream);
  EXPECT_EQ(cudaEventQuery(early), cudaSuccess);
  drycuda_hold_events(1);
  const cudaEvent_t late = recorded_event(stream);
  EXPECT_EQ(cudaEventQuery(early), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(late), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  drycuda_release_events();
  EXPECT_EQ(cudaEventQuery(late), cudaSuccess);
}

TEST(Events, AreHeldOnOneStream) {
  const cudaStream_t held = new_stream();
  const cudaStream_t other = new_stream();
  drycuda_hold_stream(held);
  EXPECT_EQ(cudaEventQuery(recorded_event(held)), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(recorded_event(other)), cudaSuccess);
}

TEST(Events, WaitedForFinishWhatCameBeforeThem) {
  drycuda_hold_events(1);
  const cudaStream_t stream = new_stream();
  const cudaEvent_t first = recorded_event(stream);
  const cudaEvent_t second = recorded_event(stream);
  EXPECT_EQ(cudaEventSynchronize(first), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(first), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(second), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(second), cudaSuccess);
  EXPECT_EQ(drycuda_count("synchronizations"), 2);
}

TEST(Events, OfAStreamThatWaitsFollowTheOther) {
  const cudaStream_t held = new_stream();
  const cudaStream_t waiting = new_stream();
  drycuda_hold_stream(held);
  const cudaEvent_t before = recorded_event(waiting);
  ASSERT_EQ(cudaStreamWaitEvent(waiting, recorded_event(held), 0), cudaSuccess);
  const cudaEvent_t after = recorded_event(waiting);
  EXPECT_EQ(drycuda_count("stream_waits"), 1);
  EXPECT_EQ(cudaEventQuery(before), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(after), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(waiting), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(held), cudaSuccess);  // the wait for `waiting` was one for it
}

TEST(Events, AreFinishedByTheDevice) {
  drycuda_hold_events(1);
  const cudaEvent_t event = recorded_event(new_stream());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST(Streams, SayWhatHasFinished) {
  const cudaStream_t stream = new_stream();
  drycuda_hold_stream(stream);
  const std::uint64_t before = drycuda_stream_position(stream);
  ASSERT_EQ(cudaMemsetAsync(allocate(8), 0, 8, stream), cudaSuccess);
  const std::uint64_t after = drycuda_stream_position(stream);
  EXPECT_TRUE(drycuda_stream_finished(stream, before));
  EXPECT_FALSE(drycuda_stream_finished(stream, after));
  drycuda_release_events();
  EXPECT_TRUE(drycuda_stream_finished(stream, after));
}

TEST(Streams, UnknownAreRejected) {
  int not_a_stream = 0;
  EXPECT_EQ(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(&not_a_stream)), cudaErrorInvalidResourceHandle);
}

TEST(Activity, TakesItsTurnOnTheStream) {
  void* const pointer = allocate(2'600'000);
  const cudaStream_t stream = new_stream();
  const Recorder recorder;
  ASSERT_EQ(cudaMemsetAsync(pointer, 0, 2'600'000, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(pointer, 0, 1300, stream), cudaSuccess);
  ASSERT_EQ(recorder.activities().size(), 2);
  const Activity& first = recorder.activities()[0];
  const Activity& second = recorder.activities()[1];
  EXPECT_EQ(first.kind, ActivityKind::kSet);
  EXPECT_EQ(first.address, reinterpret_cast<std::uint64_t>(pointer));
  EXPECT_EQ(first.size_bytes, 2'600'000);
  EXPECT_EQ(first.end_ns - first.start_ns, 3000);  // 1000 and 2,600,000 B at 1300 B/ns
  EXPECT_GE(second.start_ns, first.end_ns);
  EXPECT_NE(first.correlation, second.correlation);
  EXPECT_EQ(first.stream, second.stream);
  EXPECT_GT(first.stream, 7U);
  EXPECT_EQ(first.context, 1U);
}

TEST(Activity, TellsOfMemoryAndCopies) {
  const Recorder recorder;
  void* const pointer = allocate(100);
  int host = 0;
  cudaMemcpy(pointer, &host, sizeof host, cudaMemcpyHostToDevice);
  cudaMemcpy(&host, pointer, sizeof host, cudaMemcpyDeviceToHost);
  cudaFree(pointer);
  ASSERT_EQ(recorder.activities().size(), 4);
  EXPECT_EQ(recorder.activities()[0].kind, ActivityKind::kAllocate);
  EXPECT_EQ(recorder.activities()[0].size_bytes, 100);
  EXPECT_EQ(recorder.activities()[1].copy_kind, 1);
  EXPECT_EQ(recorder.activities()[1].stream, 7U);
  EXPECT_EQ(recorder.activities()[2].copy_kind, 2);
  EXPECT_EQ(recorder.activities()[3].kind, ActivityKind::kFree);
  EXPECT_EQ(recorder.activities()[3].address, recorder.activities()[0].address);
  EXPECT_EQ(recorder.activities()[3].size_bytes, 100);
}

TEST(Activity, NamesCopiesBetweenDevices) {
  void* const first = allocate(3000);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* const second = allocate(3000);
  const Recorder recorder;
  EXPECT_EQ(cudaMemcpyPeerAsync(second, 1, first, 0, 3000, nullptr), cudaSuccess);
  ASSERT_EQ(recorder.activities().size(), 1);
  EXPECT_EQ(recorder.activities()[0].copy_kind, 10);
  EXPECT_EQ(recorder.activities()[0].device, 1U);
  EXPECT_EQ(recorder.activities()[0].context, 2U);
  EXPECT_EQ(recorder.activities()[0].end_ns - recorder.activities()[0].start_ns, 1000 + 3000 / 300);
}

}  // namespace
}  // namespace drycuda
