// SPDX-License-Identifier: Apache-2.0
#include <cublas_v2.h>
#include <cuda.h>

#include "tests/drycuda/library_handle.h"
#include "tests/drycuda/test_support.h"

// As the code that nvcc generates calls them.
extern "C" {
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t);
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*);
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*);
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t);
}

namespace drycuda {
namespace {

constexpr char kHostFunction = 0;

void register_kernel() {
  __cudaRegisterFunction(nullptr, &kHostFunction, nullptr, "_Z3addPf", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
}

TEST(Kernels, HaveTheirRegisteredNamesAndTakeLongerForMoreBlocks) {
  register_kernel();
  const Recorder recorder;
  cudaKernel_t kernel = nullptr;
  ASSERT_EQ(__cudaGetKernel(&kernel, &kHostFunction), cudaSuccess);
  EXPECT_EQ(__cudaLaunchKernel(kernel, dim3(2, 3), dim3(32), nullptr, 0, nullptr), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernel(&kHostFunction, dim3(1000), dim3(32), nullptr, 0, nullptr), cudaSuccess);
  ASSERT_EQ(recorder.activities().size(), 2);
  EXPECT_EQ(recorder.activities()[0].kind, ActivityKind::kKernel);
  EXPECT_STREQ(recorder.activities()[0].name, "_Z3addPf");
  EXPECT_EQ(recorder.activities()[0].end_ns - recorder.activities()[0].start_ns, 2000 + 5 * 6);
  EXPECT_EQ(recorder.activities()[1].end_ns - recorder.activities()[1].start_ns, 2000 + 5 * 1000);
  EXPECT_EQ(drycuda_count("launches"), 2);
}

TEST(Kernels, OfTheDriverAreNamedToo) {
  const Recorder recorder;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&function, nullptr, "fused_add"), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(recorder.activities().size(), 1);
  EXPECT_STREQ(recorder.activities()[0].name, "fused_add");
}

TEST(Kernels, TakeTheConfigurationPushedLast) {
  const cudaStream_t stream = new_stream();
  __cudaPushCallConfiguration(dim3(1), dim3(32), 0, nullptr);
  __cudaPushCallConfiguration(dim3(7), dim3(64), 128, stream);
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  cudaStream_t popped = nullptr;
  EXPECT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &popped), cudaSuccess);
  EXPECT_EQ(grid.x, 7U);
  EXPECT_EQ(block.x, 64U);
  EXPECT_EQ(shared_bytes, 128U);
  EXPECT_EQ(popped, stream);
  EXPECT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &popped), cudaSuccess);
  EXPECT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &popped), cudaErrorMissingConfiguration);
}

TEST(Libraries, LaunchOnTheStreamOfTheirHandle) {
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  const cudaStream_t stream = new_stream();
  ASSERT_EQ(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
  const Recorder recorder;
  EXPECT_EQ(drycuda_library_launch(handle, "cublasSgemm_v2"), 0);
  ASSERT_EQ(recorder.activities().size(), 1);
  EXPECT_STREQ(recorder.activities()[0].name, "cublasSgemm_v2");
  EXPECT_EQ(recorder.activities()[0].stream, 13U);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace drycuda
