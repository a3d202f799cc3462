// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include <cuda.h>

#include "tests/drycuda/address_space.h"
#include "tests/drycuda/settings.h"
#include "tests/drycuda/test_support.h"

namespace drycuda {
namespace {

// Before the settings are read.
[[maybe_unused]] const int devices_set = setenv("DRYCUDA_DEVICES", "2", 1);

constexpr CUdeviceptr kNoHint = 0;

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp properties{};
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return properties;
}

TEST(Memory, StartsAtTheSameAddressInEveryProcess) {
  EXPECT_EQ(allocate(1), reinterpret_cast<void*>(kSpaceBegin));
  EXPECT_EQ(allocate(1), reinterpret_cast<void*>(kSpaceBegin + kPageBytes));
}

TEST(Memory, IsChargedInPages) {
  std::size_t free_before = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  EXPECT_EQ(total, std::size_t{81559} << 20);
  EXPECT_EQ(free_before, std::size_t{81559 - 512} << 20);
  void* const pointer = allocate(kPageBytes + 1);
  std::size_t free_after = 0;
  cudaMemGetInfo(&free_after, &total);
  EXPECT_EQ(free_before - free_after, 2 * kPageBytes);
  EXPECT_EQ(drycuda_used_bytes(0), 2 * kPageBytes);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(drycuda_used_bytes(0), 0);
  EXPECT_EQ(drycuda_peak_bytes(0), 2 * kPageBytes);
}

TEST(Memory, RunsOutAndRecovers) {
  drycuda_set_total_bytes(0, std::size_t{512 + 4} << 20);
  void* const first = allocate(kPageBytes);
  void* second = nullptr;
  EXPECT_EQ(cudaMalloc(&second, 2 * kPageBytes), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(drycuda_count("out_of_memory"), 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 2 * kPageBytes), cudaSuccess);
}

TEST(Memory, CreatedForMappingRunsOutToo) {
  drycuda_set_total_bytes(1, std::size_t{512 + 2} << 20);
  const CUmemAllocationProp properties = on_device(1);
  CUmemGenericAllocationHandle first = 0;
  CUmemGenericAllocationHandle second = 0;
  EXPECT_EQ(cuMemCreate(&first, kPageBytes, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemCreate(&second, kPageBytes, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cuMemCreate(&second, kPageBytes, &properties, 0), CUDA_SUCCESS);
}

TEST(Memory, BelongsToTheDeviceThatWasCurrent) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* const pointer = allocate(kPageBytes);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cudaPointerAttributes attributes{};
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, static_cast<char*>(pointer) + 100), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 1);
  EXPECT_EQ(drycuda_used_bytes(0), 0);
  EXPECT_EQ(drycuda_used_bytes(1), kPageBytes);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
}

TEST(Memory, OfTheHostIsToldApart) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 100, 0), cudaSuccess);
  cudaPointerAttributes attributes{};
  cudaPointerGetAttributes(&attributes, pinned);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  int unregistered = 0;
  cudaPointerGetAttributes(&attributes, &unregistered);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(MemoryDeathTest, OfADeviceCrashesTheHostThatTouchesIt) {
  auto* const pointer = static_cast<volatile char*>(allocate(1));
  EXPECT_DEATH(*pointer = 1, "");
}

TEST(Memory, IsReadAsZero) {
  void* const device = allocate(8);
  std::uint64_t host = 7;
  EXPECT_EQ(cudaMemcpy(device, &host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host, 0);
}

TEST(Memory, FreedTwiceIsAViolation) {
  void* const pointer = allocate(1);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaErrorInvalidValue);
  EXPECT_EQ(violation_text(), "cudaFree of 0x200000000000, which is no allocation\n");
}

TEST(Mapping, IsBackedByItsDeviceUntilUnmapped) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, 4 * kPageBytes, 0, kNoHint, 0), CUDA_SUCCESS);
  const CUmemAllocationProp properties = on_device(1);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kPageBytes, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(address + kPageBytes, kPageBytes, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemSetAccess(address + kPageBytes, kPageBytes, nullptr, 0), CUDA_SUCCESS);
  cudaPointerAttributes attributes{};
  cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(address + kPageBytes));
  EXPECT_EQ(attributes.device, 1);
  cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(address));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(drycuda_used_bytes(1), kPageBytes);  // still mapped
  EXPECT_EQ(cuMemUnmap(address + kPageBytes, kPageBytes), CUDA_SUCCESS);
  EXPECT_EQ(drycuda_used_bytes(1), 0);
  EXPECT_EQ(cuMemAddressFree(address, 4 * kPageBytes), CUDA_SUCCESS);
  EXPECT_EQ(violation_text(), "");
}

TEST(Mapping, MisusedIsAViolation) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, 2 * kPageBytes, 0, kNoHint, 0), CUDA_SUCCESS);
  ASSERT_EQ(address, kSpaceBegin);
  const CUmemAllocationProp properties = on_device(0);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kPageBytes, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(address + 2 * kPageBytes, kPageBytes, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address, 2 * kPageBytes, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address, kPageBytes, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(address, kPageBytes, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(address, 2 * kPageBytes, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(address, 2 * kPageBytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(address, 2 * kPageBytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(violation_text(),
            "cuMemMap to [0x200000400000, 0x200000600000), which is not reserved\n"
            "cuMemMap to [0x200000000000, 0x200000400000), which is not the size of its memory\n"
            "cuMemMap to [0x200000000000, 0x200000200000), where memory is mapped already\n"
            "cuMemSetAccess to [0x200000000000, 0x200000400000), which is not what was mapped\n"
            "cuMemUnmap of [0x200000000000, 0x200000400000), which is not what was mapped\n"
            "cuMemAddressFree of [0x200000000000, 0x200000400000), where memory is mapped\n"
            "cuMemRelease of handle 0x5d000001, which nobody holds\n");
}

}  // namespace
}  // namespace drycuda
