// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/kernels.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tests/drycuda/device.h"
#include "tests/drycuda/timeline.h"

namespace drycuda {
namespace {

constexpr std::uint64_t kKernelNs = 2000;
constexpr std::uint64_t kBlockNs = 5;

struct Names {
  std::mutex mutex;
  std::unordered_map<const void*, const char*> by_function;  // the names lie in the libraries that registered them
  std::unordered_set<std::string> kept;
};

Names& names() {
  static auto* const made = new Names;
  return *made;
}

const char* name_of(const void* function) {
  const std::lock_guard lock(names().mutex);
  const auto found = names().by_function.find(function);
  return found == names().by_function.end() ? "unregistered_kernel" : found->second;
}

struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};

// A pointer, so that it may be used after the thread's other variables are gone.
thread_local std::vector<Configuration>* configurations = nullptr;

std::uint64_t blocks_of(const dim3& grid) { return std::uint64_t{grid.x} * grid.y * grid.z; }

}  // namespace

cudaError_t launch(cudaStream_t stream, const char* name, std::uint64_t blocks) {
  return submit(stream, {.kind = ActivityKind::kKernel, .name = name, .duration_ns = kKernelNs + kBlockNs * blocks});
}

const char* keep_name(const std::string& name) {
  const std::lock_guard lock(names().mutex);
  return names().kept.insert(name).first->c_str();
}

int resident_blocks(int block_threads, std::size_t shared_bytes) {
  const int by_threads = 2048 / std::max(block_threads, 1);
  const int by_shared = shared_bytes == 0 ? 32 : static_cast<int>(228 * 1024 / (shared_bytes + 1024));
  return std::clamp(std::min(by_threads, by_shared), 1, 32);
}

extern "C" {

// Called by the code that nvcc generates; the headers that declare these are nvcc's own.

void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* device_name, int, void*, void*, void*,
                            void*, int*) {
  const std::lock_guard lock(names().mutex);
  names().by_function[host_function] = device_name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  if (!configurations) configurations = new std::vector<Configuration>;
  configurations->push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (!configurations || configurations->empty()) return fail(cudaErrorMissingConfiguration);
  const Configuration top = configurations->back();
  configurations->pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3, void**, std::size_t, cudaStream_t stream) {
  return launch(stream, name_of(function), blocks_of(grid));
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void**) {
  return launch(configuration->stream, name_of(function), blocks_of(configuration->gridDim));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 48 * 1024;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_threads,
                                                                   std::size_t shared_bytes, unsigned) {
  *blocks = resident_blocks(block_threads, shared_bytes);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_threads,
                                                          std::size_t shared_bytes) {
  *blocks = resident_blocks(block_threads, shared_bytes);
  return cudaSuccess;
}

}  // extern "C"

}  // namespace drycuda
