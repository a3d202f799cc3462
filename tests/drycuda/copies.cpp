// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <cuda_runtime_api.h>

#include "tests/drycuda/address_space.h"
#include "tests/drycuda/device.h"
#include "tests/drycuda/memory.h"
#include "tests/drycuda/timeline.h"

namespace drycuda {
namespace {

// As `CUpti_ActivityMemcpyKind` numbers them.
constexpr std::uint8_t kHostToDevice = 1;
constexpr std::uint8_t kDeviceToHost = 2;
constexpr std::uint8_t kDeviceToDevice = 8;
constexpr std::uint8_t kHostToHost = 9;
constexpr std::uint8_t kPeerToPeer = 10;

constexpr std::uint64_t kBaseNs = 1000;
constexpr std::uint64_t kHostBytesPerNs = 50;
constexpr std::uint64_t kPeerBytesPerNs = 300;
constexpr std::uint64_t kDeviceBytesPerNs = 1300;

int device_of(const void* pointer) {
  const auto found = memory().find(reinterpret_cast<std::uint64_t>(pointer));
  return found ? found->second.device : current_device();
}

Work copy_work(const void* target, const void* source, std::size_t size_bytes) {
  Work work{.kind = ActivityKind::kCopy,
            .address = reinterpret_cast<std::uint64_t>(target),
            .size_bytes = size_bytes,
            .copy_kind = kHostToHost};
  std::uint64_t bytes_per_ns = kHostBytesPerNs;
  if (is_device_address(target) && is_device_address(source)) {
    const bool is_peer = device_of(target) != device_of(source);
    work.copy_kind = is_peer ? kPeerToPeer : kDeviceToDevice;
    bytes_per_ns = is_peer ? kPeerBytesPerNs : kDeviceBytesPerNs;
  } else if (is_device_address(target)) {
    work.copy_kind = kHostToDevice;
  } else if (is_device_address(source)) {
    work.copy_kind = kDeviceToHost;
  }
  work.duration_ns = kBaseNs + size_bytes / bytes_per_ns;
  return work;
}

// What the host sees of a copy: devices hold nothing, so what comes from there is zero.
void fill_host(void* target, const void* source, std::size_t size_bytes) {
  if (is_device_address(target)) return;
  if (is_device_address(source)) {
    std::memset(target, 0, size_bytes);
  } else {
    std::memmove(target, source, size_bytes);
  }
}

Work set_work(void* target, std::size_t size_bytes) {
  return {.kind = ActivityKind::kSet,
          .address = reinterpret_cast<std::uint64_t>(target),
          .size_bytes = size_bytes,
          .duration_ns = kBaseNs + size_bytes / kDeviceBytesPerNs};
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size_bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (size_bytes == 0) return cudaSuccess;
  fill_host(target, source, size_bytes);
  check_copy(stream, target);
  check_copy(stream, source);
  return submit(stream, copy_work(target, source, size_bytes));
}

cudaError_t cudaMemcpy(void* target, const void* source, std::size_t size_bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(target, source, size_bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, std::size_t size_bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpy2DAsync(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
                              std::size_t width_bytes, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (width_bytes == 0 || height == 0) return cudaSuccess;
  for (std::size_t row = 0; row < height; ++row) {
    fill_host(static_cast<char*>(target) + row * target_pitch, static_cast<const char*>(source) + row * source_pitch,
              width_bytes);
  }
  return submit(stream, copy_work(target, source, width_bytes * height));
}

cudaError_t cudaMemsetAsync(void* target, int value, std::size_t size_bytes, cudaStream_t stream) {
  if (size_bytes == 0) return cudaSuccess;
  if (!is_device_address(target)) std::memset(target, value, size_bytes);
  return submit(stream, set_work(target, size_bytes));
}

cudaError_t cudaMemset(void* target, int value, std::size_t size_bytes) {
  return cudaMemsetAsync(target, value, size_bytes, nullptr);
}

// One place for all symbols of a device: nothing is ever read there.
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static const std::uint64_t place = memory().reserve(kPageBytes, kPageBytes);
  *address = reinterpret_cast<void*>(place);
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void*, const void* source, std::size_t size_bytes, std::size_t, cudaMemcpyKind) {
  void* place = nullptr;
  cudaGetSymbolAddress(&place, nullptr);
  return cudaMemcpy(place, source, size_bytes, cudaMemcpyHostToDevice);
}

}  // extern "C"

}  // namespace drycuda
