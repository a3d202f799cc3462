// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "tests/drycuda/capture.h"
#include "tests/drycuda/device.h"
#include "tests/drycuda/memory.h"
#include "tests/drycuda/report.h"
#include "tests/drycuda/timeline.h"

namespace drycuda {
namespace {

// Page-locked memory of the host: address and size.
struct HostMemory {
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> ranges;
};

HostMemory& host_memory() {
  static auto* const made = new HostMemory;
  return *made;
}

void add_host_range(void* address, std::size_t size_bytes) {
  const std::lock_guard lock(host_memory().mutex);
  host_memory().ranges[reinterpret_cast<std::uint64_t>(address)] = size_bytes;
}

bool drop_host_range(void* address) {
  const std::lock_guard lock(host_memory().mutex);
  return host_memory().ranges.erase(reinterpret_cast<std::uint64_t>(address)) == 1;
}

bool is_host_range(const void* pointer) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const std::lock_guard lock(host_memory().mutex);
  const auto next = host_memory().ranges.upper_bound(address);
  return next != host_memory().ranges.begin() && address < std::prev(next)->first + std::prev(next)->second;
}

cudaError_t allocate(void** pointer, std::size_t size_bytes) {
  *pointer = nullptr;
  if (size_bytes == 0) return cudaSuccess;
  const std::uint64_t address = memory().allocate(current_device(), size_bytes);
  if (address == 0) return fail(cudaErrorMemoryAllocation);
  *pointer = reinterpret_cast<void*>(address);
  report_memory(ActivityKind::kAllocate, current_device(), address, size_bytes);
  return cudaSuccess;
}

cudaError_t release(void* pointer) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const std::optional<Block> block = memory().free(address);
  if (!block) {
    report_violation(fmt::format("cudaFree of {:#x}, which is no allocation", address));
    return fail(cudaErrorInvalidValue);
  }
  report_memory(ActivityKind::kFree, block->device, address, block->size_bytes);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t size_bytes) {
  if (const cudaError_t error = allow_unsafe_call("cudaMalloc"); error != cudaSuccess) return error;
  return allocate(pointer, size_bytes);
}

cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  note_driver_free();
  if (const cudaError_t error = allow_unsafe_call("cudaFree"); error != cudaSuccess) return error;
  return release(pointer);
}

cudaError_t cudaMallocManaged(void** pointer, std::size_t size_bytes, unsigned) {
  return cudaMalloc(pointer, size_bytes);
}

// Pools are not modelled: memory comes from the driver and goes back to it at once.
cudaError_t cudaMallocAsync(void** pointer, std::size_t size_bytes, cudaStream_t) {
  return allocate(pointer, size_bytes);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return pointer ? release(pointer) : cudaSuccess; }

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  static char pools[kMaxDevices];
  *pool = reinterpret_cast<cudaMemPool_t>(&pools[device]);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  const MemoryInfo info = memory().info(current_device());
  const bool is_peak = attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh;
  *static_cast<std::uint64_t*>(value) = is_peak ? info.peak_bytes : info.used_bytes;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const MemoryInfo info = memory().info(current_device());
  *free_bytes = info.free_bytes;
  *total_bytes = info.total_bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t size_bytes, unsigned) {
  *pointer = std::aligned_alloc(4096, round_up(size_bytes + (size_bytes == 0), 4096));
  if (!*pointer) return fail(cudaErrorMemoryAllocation);
  add_host_range(*pointer, size_bytes);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, std::size_t size_bytes) { return cudaHostAlloc(pointer, size_bytes, 0); }

cudaError_t cudaFreeHost(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (!drop_host_range(pointer)) return fail(cudaErrorInvalidValue);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, std::size_t size_bytes, unsigned) {
  add_host_range(pointer, size_bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  return drop_host_range(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  if (const auto found = memory().find(reinterpret_cast<std::uint64_t>(pointer))) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = found->second.device;
    attributes->devicePointer = const_cast<void*>(pointer);
  } else if (is_host_range(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_device();
    attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = is_device_address(pointer) ? nullptr : const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

}  // extern "C"

}  // namespace drycuda
