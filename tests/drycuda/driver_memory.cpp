// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>

#include <cuda.h>

#include "tests/drycuda/capture.h"
#include "tests/drycuda/memory.h"
#include "tests/drycuda/timeline.h"

namespace drycuda {
namespace {

// Memory without addresses is known by its handle.
void report_release(std::uint64_t handle, const Block& block) {
  note_driver_free();
  report_memory(ActivityKind::kFree, block.device, handle, block.size_bytes);
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(std::size_t* granularity_bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *granularity_bytes = kPageBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size_bytes, std::size_t alignment, CUdeviceptr,
                             unsigned long long) {
  *address = memory().reserve(size_bytes, alignment);
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size_bytes) {
  return memory().unreserve(address, size_bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size_bytes,
                     const CUmemAllocationProp* properties, unsigned long long) {
  const int device = properties->location.id;
  if (size_bytes == 0 || size_bytes % kPageBytes != 0 || device < 0 || device >= settings().devices) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = memory().create(device, size_bytes);
  if (*handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  report_memory(ActivityKind::kAllocate, device, *handle, size_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  bool known = false;
  if (const std::optional<Block> block = memory().release(handle, known)) report_release(handle, *block);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t size_bytes, std::size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  return memory().map(address, size_bytes, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t size_bytes) {
  std::map<std::uint64_t, Block> gone;
  if (!memory().unmap(address, size_bytes, gone)) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& [handle, block] : gone) report_release(handle, block);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size_bytes, const CUmemAccessDesc*, std::size_t) {
  return memory().allow(address, size_bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  const std::optional<Block> block = memory().block_of(handle);
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->device};
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* size_bytes, CUdeviceptr address) {
  const auto found = memory().find(address);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (begin) *begin = found->first;
  if (size_bytes) *size_bytes = found->second.size_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, std::size_t count, CUstream stream) {
  const cudaError_t error =
      cudaMemsetAsync(reinterpret_cast<void*>(address), static_cast<int>(value), count * 4, stream);
  return error == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto found = memory().find(address);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return cuDevicePrimaryCtxRetain(static_cast<CUcontext*>(value), found->second.device);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = found->second.device;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // extern "C"

}  // namespace drycuda
