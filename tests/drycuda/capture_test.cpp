// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "tests/drycuda/test_support.h"

namespace drycuda {
namespace {

class Capturing : public testing::Test {
 protected:
  void SetUp() override {
    pointer_ = allocate(8);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  }

  cudaError_t end() { return cudaStreamEndCapture(stream_, &graph_); }

  cudaStreamCaptureStatus status(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    return status;
  }

  cudaStream_t stream_ = new_stream();
  void* pointer_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

TEST_F(Capturing, DoesTheWorkWhenTheGraphIsLaunched) {
  const Recorder recorder;
  ASSERT_EQ(cudaMemsetAsync(pointer_, 0, 8, stream_), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(pointer_, 0, 4, stream_), cudaSuccess);
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusActive);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusNone);
  EXPECT_EQ(recorder.activities().size(), 0);

  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&executable, graph_, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, new_stream()), cudaSuccess);
  ASSERT_EQ(recorder.activities().size(), 2);
  EXPECT_EQ(recorder.activities()[1].size_bytes, 4);
  EXPECT_EQ(recorder.activities()[0].correlation, recorder.activities()[1].correlation);
  EXPECT_EQ(drycuda_count("graph_launches"), 1);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(Capturing, SpreadsToAStreamThatWaits) {
  const cudaStream_t joined = new_stream();
  ASSERT_EQ(cudaStreamWaitEvent(joined, recorded_event(stream_), 0), cudaSuccess);
  EXPECT_EQ(status(joined), cudaStreamCaptureStatusActive);
  EXPECT_EQ(status(new_stream()), cudaStreamCaptureStatusNone);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(status(joined), cudaStreamCaptureStatusNone);
}

TEST_F(Capturing, ForbidsDriverMemoryCalls) {
  void* other = nullptr;
  EXPECT_EQ(cudaMalloc(&other, 8), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(violation_text(), "cudaMalloc while a stream is capturing\n");
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaFree(pointer_), cudaSuccess);
}

TEST_F(Capturing, ForbidsFreeingAndCountsIt) {
  EXPECT_EQ(cudaFree(pointer_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(drycuda_count("driver_frees_while_capturing"), 1);
  EXPECT_EQ(drycuda_violations(), 1);
}

TEST_F(Capturing, ForbidsThemToOtherThreads) {
  std::thread([this] { EXPECT_EQ(cudaFree(pointer_), cudaErrorStreamCaptureUnsupported); }).join();
  EXPECT_EQ(drycuda_violations(), 1);
}

TEST_F(Capturing, AllowsThemInRelaxedMode) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaFree(pointer_), cudaSuccess);
  EXPECT_EQ(drycuda_count("driver_frees_while_capturing"), 1);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(drycuda_violations(), 0);
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(Capturing, ForbidsWaiting) {
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(violation_text(), "a wait for stream 13, which is capturing\n");
}

TEST_F(Capturing, KeepsOtherWorkOut) {
  const cudaEvent_t outside = recorded_event(new_stream());
  EXPECT_EQ(cudaStreamWaitEvent(stream_, outside, 0), cudaErrorStreamCaptureIsolation);
}

}  // namespace
}  // namespace drycuda
