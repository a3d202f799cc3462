// SPDX-License-Identifier: Apache-2.0
#include "plugin/cuda_upstream.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "plugin/forwarding_allocator.h"

namespace stowage {
namespace {

using c10::cuda::CUDAGuard;

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(const NativeAllocator& native) : native_(native) {}

  void record(c10::cuda::CUDAStream stream) { event_.record(stream); }
  bool is_done() noexcept override try {
    // Asking would break a capture that is under way.
    return native_.pools_in_use.load(std::memory_order_acquire) == 0 && event_.query();
  } catch (const c10::Error&) {
    return false;  // the device has failed, or is gone
  }

 private:
  const NativeAllocator& native_;
  at::cuda::CUDAEvent event_;  // without timing
};

/// Has each segment from the driver, as large as it must be: with expandable segments they come in pages of 20 MiB.
class DriverAllocator final : public ForwardingAllocator {
 public:
  using ForwardingAllocator::ForwardingAllocator;

  void* raw_alloc(std::size_t size_bytes) override {
    // Another thread may begin to capture at any time.
    const c10::cuda::CUDAStreamCaptureModeGuard allow_while_capturing(cudaStreamCaptureModeRelaxed);
    void* pointer = nullptr;
    const cudaError_t error = cudaMalloc(&pointer, size_bytes);
    if (error == cudaSuccess) return pointer;
    (void)cudaGetLastError();
    if (error != cudaErrorMemoryAllocation) C10_CUDA_CHECK(error);
    return nullptr;
  }
  void raw_delete(void* pointer) override {
    const c10::cuda::CUDAStreamCaptureModeGuard allow_while_capturing(cudaStreamCaptureModeRelaxed);
    C10_CUDA_CHECK_WARN(cudaFree(pointer));
  }
};

/// Of cached blocks: the allocator tells another one while its caching is off.
c10::DeleterFnPtr caching_deleter(c10::cuda::CUDACachingAllocator::CUDAAllocator& native) {
  const bool is_on = native.isEnabled();
  if (!is_on) native.enable(true);
  const c10::DeleterFnPtr deleter = native.raw_deleter();
  if (!is_on) native.enable(false);
  return deleter;
}

}  // namespace

NativeAllocator::NativeAllocator(c10::cuda::CUDACachingAllocator::CUDAAllocator* native)
    : allocator(native), deleter(caching_deleter(*native)) {}

void NativeAllocator::record_stream(void* block, c10::DeviceIndex device, c10::cuda::CUDAStream stream) {
  // It takes only what has its own deleter.
  c10::DataPtr data(block, block, deleter, c10::Device(c10::kCUDA, device));
  allocator->recordStream(data, stream);
  data.release_context();
}

void NativeAllocator::leave_pool() {
  int count = pools_in_use.load(std::memory_order_acquire);
  while (count > 0 && !pools_in_use.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel)) continue;
}

c10::cuda::CUDAStream CudaUpstream::cuda_stream(Stream stream) const {
  return c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(stream), device_);
}

void* CudaUpstream::allocate(std::size_t size_bytes, Stream stream) {
  const CUDAGuard guard(device_);
  return native_.allocator->raw_alloc_with_stream(size_bytes, reinterpret_cast<cudaStream_t>(stream));
}

void CudaUpstream::free(void* pointer) noexcept {
  std::optional<c10::MempoolId_t> pool;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = apart_.find(pointer); found != apart_.end()) {
      pool = found->second;
      apart_.erase(found);
    }
  }
  native_.deleter(pointer);
  if (pool) empty_pool(*pool);
}

/// The allocator of cudaMallocAsync knows neither blocks nor pools with an allocator of their own.
bool CudaUpstream::knows_pools() const { return native_.allocator->name() == "native"; }

std::vector<std::int64_t> CudaUpstream::spare_blocks(Stream stream) {
  if (!knows_pools()) return {};
  std::vector<std::int64_t> pieces;
  for (const auto& segment : native_.allocator->snapshot({0, 0}, /*include_traces=*/false).segments) {
    if (segment.device != device_ || segment.stream != reinterpret_cast<cudaStream_t>(stream)) continue;
    // Small blocks are cached among themselves; a pool's are for those who allocate from it.
    if (!segment.is_large || segment.owner_private_pool_id != c10::MempoolId_t{0, 0}) continue;
    for (const auto& block : segment.blocks) {
      if (!block.allocated && !block.active) pieces.push_back(static_cast<std::int64_t>(block.size));
    }
  }
  std::sort(pieces.begin(), pieces.end(), std::greater<>());
  return pieces;
}

void* CudaUpstream::allocate_apart(std::size_t size_bytes, Stream stream) {
  // Blocks up to 1 MiB share segments of 2 MiB; those below 10 MiB would take one of 20 MiB.
  constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
  constexpr std::size_t kOwnSegmentBytes = std::size_t{10} << 20;
  if (size_bytes <= kSmallBytes || !knows_pools()) return allocate(size_bytes, stream);
  const CUDAGuard guard(device_);
  // Not at::cuda::MemPool: as it dies it gives its memory back, and ends the process where that cannot be.
  const c10::MempoolId_t pool = at::cuda::MemPool::graph_pool_handle();
  native_.allocator->createOrIncrefPool(device_, pool, std::make_shared<DriverAllocator>(*native_.allocator));
  const auto this_thread = std::this_thread::get_id();
  native_.allocator->beginAllocateToPool(device_, pool,
                                         [=](cudaStream_t) { return std::this_thread::get_id() == this_thread; });
  void* pointer = nullptr;
  try {
    pointer = allocate(std::max(size_bytes, kOwnSegmentBytes), stream);
  } catch (...) {
    leave_pool(pool);
    empty_pool(pool);
    throw;
  }
  leave_pool(pool);
  std::lock_guard lock(mutex_);
  apart_[pointer] = pool;
  return pointer;
}

/// Nobody allocates from it any more: it goes when its last block does.
void CudaUpstream::leave_pool(c10::MempoolId_t pool) {
  native_.allocator->endAllocateToPool(device_, pool);
  for (int holder = 0; holder < 2; ++holder) native_.allocator->releasePool(device_, pool);  // its maker, its user
}

void CudaUpstream::empty_pool(c10::MempoolId_t pool) noexcept try {
  if (native_.pools_in_use.load(std::memory_order_acquire) == 0) native_.allocator->emptyCache(pool);
} catch (const c10::Error&) {
  // Another thread allocates from a pool of its own, or the device has failed.
}

bool CudaUpstream::may_serve() {
  return native_.pools_in_use.load(std::memory_order_acquire) == 0 && native_.allocator->isEnabled();
}

bool CudaUpstream::may_plan() {
  if (!may_serve()) return false;
  const CUDAGuard guard(device_);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None;
}

void CudaUpstream::release_cache() {
  if (native_.pools_in_use.load(std::memory_order_acquire) != 0) return;
  native_.allocator->emptyCache({0, 0});
  free_direct(nullptr);
}

void* CudaUpstream::allocate_direct(std::size_t size_bytes) {
  // A fraction of the device is what the native allocator may take; we would not count in it.
  if (native_.allocator->getMemoryFraction(device_) < 1.0) return nullptr;
  const CUDAGuard guard(device_);
  // Another thread may begin to capture at any time.
  const c10::cuda::CUDAStreamCaptureModeGuard allow_while_capturing(cudaStreamCaptureModeRelaxed);
  void* pointer = nullptr;
  if (cudaMalloc(&pointer, size_bytes) == cudaSuccess) return pointer;
  (void)cudaGetLastError();
  return nullptr;
}

void CudaUpstream::free_direct(void* pointer) noexcept {
  std::vector<void*> blocks;
  {
    std::lock_guard lock(mutex_);
    if (pointer != nullptr) to_free_.push_back(pointer);
    if (native_.pools_in_use.load(std::memory_order_acquire) == 0) blocks.swap(to_free_);
  }
  // The driver waits for all work before it frees, that of other streams too. At exit there may be no driver any more.
  for (void* block : blocks) (void)cudaFree(block);
}

void CudaUpstream::wait(Stream waiting, Stream stream) {
  const CUDAGuard guard(device_);
  at::cuda::CUDAEvent event;
  event.record(cuda_stream(stream));
  event.block(cuda_stream(waiting));
}

void CudaUpstream::record_stream(void* block, Stream stream) {
  native_.record_stream(block, device_, cuda_stream(stream));
}

std::unique_ptr<Event> CudaUpstream::record_event(Stream stream) noexcept try {
  if (native_.pools_in_use.load(std::memory_order_acquire) != 0) return nullptr;
  const CUDAGuard guard(device_);
  auto event = std::make_unique<CudaEvent>(native_);
  event->record(cuda_stream(stream));
  return event;
} catch (const c10::Error&) {
  return nullptr;
}

void CudaUpstream::fill(void* pointer, int byte, std::size_t size_bytes, Stream stream) noexcept {
  // It would become part of a graph that is being captured, or break the capture.
  if (native_.pools_in_use.load(std::memory_order_acquire) != 0) return;
  (void)cudaMemsetAsync(pointer, byte, size_bytes, reinterpret_cast<cudaStream_t>(stream));
}

}  // namespace stowage
