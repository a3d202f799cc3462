// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "plugin/torch_headers.h"
#include "plugin/upstream.h"

namespace stowage {

inline Stream to_stream(c10::cuda::CUDAStream stream) { return reinterpret_cast<Stream>(stream.stream()); }

/// The CUDA allocator that was there before ours, and what must be known of its use. Thread safe.
struct NativeAllocator {
  explicit NativeAllocator(c10::cuda::CUDACachingAllocator::CUDAAllocator* native);

  /// `block`, which it allocated, is used on `stream` too.
  void record_stream(void* block, c10::DeviceIndex device, c10::cuda::CUDAStream stream);
  /// One pool less is in use; one that came into use before our time was not counted.
  bool knows_pools() const;
  void leave_pool();

  c10::cuda::CUDACachingAllocator::CUDAAllocator* const allocator;
  const c10::DeleterFnPtr deleter;
  /// CUDA graphs under capture, and memory pools that threads allocate from. While there is one the driver must not
  /// free memory, nor be asked for events.
  std::atomic<int> pools_in_use{0};
};

/// A CUDA device's memory, from the native allocator.
class CudaUpstream final : public Upstream {
 public:
  CudaUpstream(NativeAllocator& native, c10::DeviceIndex device) : native_(native), device_(device) {}

  void* allocate(std::size_t size_bytes, Stream stream) override;
  void free(void* pointer) noexcept override;
  Stream current_stream() override { return to_stream(c10::cuda::getCurrentCUDAStream(device_)); }
  bool may_plan() override;
  bool may_serve() override;
  bool runs_backward() override { return torch::autograd::get_current_graph_task_id() >= 0; }
  void release_cache() override;
  std::vector<std::int64_t> spare_blocks(Stream stream) override;
  void* allocate_apart(std::size_t size_bytes, Stream stream) override;
  void* allocate_direct(std::size_t size_bytes) override;
  void free_direct(void* pointer) noexcept override;
  void wait(Stream waiting, Stream stream) override;
  void record_stream(void* block, Stream stream) override;
  std::unique_ptr<Event> record_event(Stream stream) noexcept override;
  void fill(void* pointer, int byte, std::size_t size_bytes, Stream stream) noexcept override;

 private:
  c10::cuda::CUDAStream cuda_stream(Stream stream) const;
  bool knows_pools() const;
  void leave_pool(c10::MempoolId_t pool);
  /// Gives back what the pool holds unused. If that cannot be now, the native allocator does when it next gives back
  /// what it holds unused itself.
  void empty_pool(c10::MempoolId_t pool) noexcept;

  NativeAllocator& native_;
  const c10::DeviceIndex device_;
  std::mutex mutex_;                                   ///< guards what follows
  std::vector<void*> to_free_;                         ///< direct blocks that died while the driver must not free
  std::unordered_map<void*, c10::MempoolId_t> apart_;  ///< by block, the pool that it is alone in
};

}  // namespace stowage
