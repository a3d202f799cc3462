// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "plugin/torch_headers.h"

namespace stowage {

namespace caching = c10::cuda::CUDACachingAllocator;

/// Does as another CUDA allocator does (torch 2.11, c10/cuda/CUDACachingAllocator.h): a base for those that do
/// something else in some of it. Forwards every virtual, since the defaults of many throw.
class ForwardingAllocator : public caching::CUDAAllocator {
 public:
  /// `upstream` must outlive it.
  explicit ForwardingAllocator(caching::CUDAAllocator& upstream) : upstream_(upstream) {}

  c10::DataPtr allocate(std::size_t size_bytes) override { return upstream_.allocate(size_bytes); }
  void* raw_alloc(std::size_t size_bytes) override { return upstream_.raw_alloc(size_bytes); }
  void* raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) override {
    return upstream_.raw_alloc_with_stream(size_bytes, stream);
  }
  void raw_delete(void* pointer) override { upstream_.raw_delete(pointer); }
  c10::DeleterFnPtr raw_deleter() const override { return upstream_.raw_deleter(); }
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    upstream_.recordStream(data, stream);
  }
  void* getBaseAllocation(void* pointer, std::size_t* size) override {
    return upstream_.getBaseAllocation(pointer, size);
  }
  caching::ShareableHandle shareIpcHandle(void* pointer) override { return upstream_.shareIpcHandle(pointer); }
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    upstream_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    upstream_.endAllocateToPool(device, pool);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return data.get() == data.get_context(); }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override {
    upstream_.copy_data(to, from, size_bytes);
  }
  bool initialized() override { return upstream_.initialized(); }
  void init(int device_count) override { upstream_.init(device_count); }
  std::string name() override { return upstream_.name(); }
  void enable(bool on) override { upstream_.enable(on); }
  bool isEnabled() const override { return upstream_.isEnabled(); }
  double getMemoryFraction(c10::DeviceIndex device) override { return upstream_.getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    upstream_.setMemoryFraction(fraction, device);
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return upstream_.getMemoryInfo(device);
  }
  void emptyCache(c10::MempoolId_t pool) override { upstream_.emptyCache(pool); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override { upstream_.cacheInfo(device, largest); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return upstream_.getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { upstream_.resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { upstream_.resetPeakStats(device); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return upstream_.getExpandableSegmentSizes(device);
  }
  caching::SnapshotInfo snapshot(c10::MempoolId_t pool, bool traces) override {
    return upstream_.snapshot(pool, traces);
  }
  bool isHistoryEnabled() override { return upstream_.isHistoryEnabled(); }
  void recordHistory(bool on, c10::CachingDeviceAllocator::CreateContextFn context, std::size_t max_entries,
                     c10::CachingDeviceAllocator::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    upstream_.recordHistory(on, context, max_entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) override {
    upstream_.recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override { upstream_.pushCompileContext(context); }
  void popCompileContext() override { upstream_.popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { upstream_.setUserMetadata(metadata); }
  std::string getUserMetadata() override { return upstream_.getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    upstream_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) override {
    upstream_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override { upstream_.releasePool(device, pool); }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return upstream_.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    upstream_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override {
    upstream_.setUseOnOOM(device, pool, use);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override { upstream_.setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return upstream_.checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return upstream_.getIpcDevPtr(std::move(handle)); }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override {
    upstream_.enablePeerAccess(device, other);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t size_bytes,
                          cudaStream_t stream, bool peer) override {
    return upstream_.memcpyAsync(to, to_device, from, from_device, size_bytes, stream, peer);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return upstream_.getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                  std::shared_ptr<caching::AllocatorState> state) override {
    return upstream_.setCheckpointPoolState(device, std::move(state));
  }

 protected:
  caching::CUDAAllocator& upstream_;
};

}  // namespace stowage
