// SPDX-License-Identifier: Apache-2.0
#include "plugin/cuda_allocator.h"

#include <array>
#include <atomic>
#include <mutex>

#include <fmt/format.h>

#include "plugin/cuda_upstream.h"
#include "plugin/forwarding_allocator.h"
#include "plugin/torch_headers.h"

namespace stowage {
namespace {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;

void delete_cuda(void* pointer);

DeviceIndex current_device() {
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

/// The allocator that stood there before ours.
NativeAllocator& native_allocator() {
  static auto* instance = new NativeAllocator(caching::get());
  return *instance;
}

/// The planned allocators of devices 0 to `count() - 1`. Never destroyed.
class Devices {
 public:
  int count() const { return count_.load(std::memory_order_acquire); }

  PlannedAllocator& at(DeviceIndex device) {
    if (device >= count()) make(device + 1);
    return *allocators_[static_cast<std::size_t>(device)];
  }

 private:
  void make(int count) {
    std::lock_guard lock(mutex_);
    for (int device = count_.load(std::memory_order_relaxed); device < count; ++device) {
      auto* upstream = new CudaUpstream(native_allocator(), static_cast<DeviceIndex>(device));
      allocators_.at(static_cast<std::size_t>(device)) = new PlannedAllocator(*upstream);
      count_.store(device + 1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::atomic<int> count_{0};
  std::array<PlannedAllocator*, C10_COMPILE_TIME_MAX_GPUS> allocators_{};
};

Devices& devices() {
  static auto* instance = new Devices();
  return *instance;
}

/// Nobody runs out of memory because of an arena that no run needs at the time.
template <typename Allocate>
auto with_idle_arenas(Allocate allocate) {
  try {
    return allocate();
  } catch (const c10::OutOfMemoryError&) {
    if (!devices().at(current_device()).release_idle_arena()) throw;
  }
  return allocate();
}

/// The caching allocator that PyTorch sees: takes the requests of planned and profiled runs, and hands everything else
/// to the native one (torch 2.11, c10/cuda/CUDACachingAllocator.h). So statistics, snapshots, pools and out-of-memory
/// messages are the native allocator's; an arena is one or two of its blocks.
class CudaAllocator final : public ForwardingAllocator {
 public:
  explicit CudaAllocator(NativeAllocator& native) : ForwardingAllocator(*native.allocator), native_(native) {}

  DataPtr allocate(std::size_t size_bytes) override {
    const DeviceIndex device = current_device();
    PlannedAllocator& planned = devices().at(device);
    if (size_bytes != 0 && planned.intercepts(size_bytes)) {
      const Stream stream = to_stream(c10::cuda::getCurrentCUDAStream(device));
      void* pointer = with_idle_arenas([&] { return planned.allocate(size_bytes, stream); });
      return {pointer, pointer, &delete_cuda, c10::Device(c10::kCUDA, device)};
    }
    DataPtr data = with_idle_arenas([&] { return upstream_.allocate(size_bytes); });
    // The native deleter knows nothing of blocks that we watch. With caching off it is another one, which stays.
    (void)data.compare_exchange_deleter(native_.deleter, &delete_cuda);
    return data;
  }
  void* raw_alloc(std::size_t size_bytes) override {
    return raw_alloc_with_stream(size_bytes, c10::cuda::getCurrentCUDAStream());
  }
  void* raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) override {
    PlannedAllocator& planned = devices().at(current_device());
    if (size_bytes != 0 && planned.intercepts(size_bytes)) {
      return with_idle_arenas([&] { return planned.allocate(size_bytes, reinterpret_cast<Stream>(stream)); });
    }
    return with_idle_arenas([&] { return upstream_.raw_alloc_with_stream(size_bytes, stream); });
  }
  void raw_delete(void* pointer) override { delete_cuda(pointer); }
  c10::DeleterFnPtr raw_deleter() const override {
    return upstream_.isEnabled() ? &delete_cuda : upstream_.raw_deleter();  // with caching off, blocks of another kind
  }

  using CUDAAllocator::recordStream;
  void recordStream(const DataPtr& data, CUDAStream stream) override {
    if (data.get() == nullptr) return;
    if (data.get_deleter() != &delete_cuda) {
      upstream_.recordStream(data, stream);
    } else if (!devices().at(data.device().index()).record_stream(data.get(), to_stream(stream))) {
      native_.record_stream(data.get(), data.device().index(), stream);
    }
  }

  // What another process opens is the block that an arena is.
  void* getBaseAllocation(void* pointer, std::size_t* size) override {
    return upstream_.getBaseAllocation(native_block(pointer), size);
  }
  caching::ShareableHandle shareIpcHandle(void* pointer) override {
    void* block = native_block(pointer);
    caching::ShareableHandle handle = upstream_.shareIpcHandle(block);
    handle.offset += static_cast<char*>(pointer) - static_cast<char*>(block);
    return handle;
  }

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    native_.pools_in_use.fetch_add(1, std::memory_order_acq_rel);
    upstream_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    upstream_.endAllocateToPool(device, pool);
    native_.leave_pool();
  }

 private:
  static void* native_block(void* pointer) {
    for (int device = 0; device < devices().count(); ++device) {
      if (void* block = devices().at(static_cast<DeviceIndex>(device)).block_of(pointer)) return block;
    }
    return pointer;
  }

  NativeAllocator& native_;
};

/// Not told the device: asks each, which is a few loads.
void delete_cuda(void* pointer) {
  for (int device = 0; device < devices().count(); ++device) {
    if (devices().at(static_cast<DeviceIndex>(device)).try_free(pointer)) return;
  }
  native_allocator().deleter(pointer);
}

CudaAllocator& wrapper() {
  static auto* allocator = new CudaAllocator(native_allocator());
  return *allocator;
}

}  // namespace

PlannedAllocator& cuda_allocator(int device) { return devices().at(static_cast<DeviceIndex>(device)); }

int cuda_allocator_count() { return devices().count(); }

std::string why_no_cuda_allocator() {
  if (caching::get() == &wrapper()) return {};
  if (native_allocator().deleter == nullptr) {
    return fmt::format(
        "the allocator '{}' has no raw deleter; enable stowage before the library that replaced PyTorch's",
        native_allocator().allocator->name());
  }
  return fmt::format(
      "the allocator '{}' has taken the place of stowage's; enable stowage after the library that did so",
      caching::get()->name());
}

std::string install_cuda_allocator() {
  NativeAllocator& native = native_allocator();
  if (caching::get() == native.allocator && native.deleter != nullptr) {
    native.pools_in_use.store(0, std::memory_order_release);
    caching::allocator.store(&wrapper());
    c10::SetAllocator(c10::kCUDA, &wrapper());
  }
  return why_no_cuda_allocator();
}

}  // namespace stowage
