// SPDX-License-Identifier: Apache-2.0
//
// An allocator above torch's own that tells dry CUDA which ranges of memory are in use, so that memory given out twice
// is found out. After c10/cuda/CUDACachingAllocator.h of torch 2.11: every virtual function is forwarded, those with a
// default too, as many defaults throw.
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "tests/drycuda/control.h"

namespace drycuda {
namespace {

using c10::DataPtr;
using c10::DeleterFnPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::cuda::CUDAStream;
using namespace c10::cuda::CUDACachingAllocator;

struct Given {
  void* address;
  DeleterFnPtr deleter;  // null for memory without a DataPtr
};

// By context, which is all that a deleter is passed. Never destroyed, as tensors may outlive it.
struct GivenOut {
  std::mutex mutex;
  std::unordered_map<void*, Given> by_context;
};

GivenOut& given_out() {
  static auto* const made = new GivenOut;
  return *made;
}

void begin(void* context, const Given& given, std::size_t size_bytes, cudaStream_t stream) {
  {
    const std::lock_guard lock(given_out().mutex);
    given_out().by_context[context] = given;
  }
  drycuda_range_begin(given.address, size_bytes, stream);
}

std::optional<Given> find(void* context) {
  const std::lock_guard lock(given_out().mutex);
  const auto found = given_out().by_context.find(context);
  return found == given_out().by_context.end() ? std::nullopt : std::optional(found->second);
}

// The range ends before the allocator beneath may give it out again.
std::optional<Given> end(void* context) {
  const std::optional<Given> given = find(context);
  if (!given) return std::nullopt;
  drycuda_range_end(given->address);
  const std::lock_guard lock(given_out().mutex);
  given_out().by_context.erase(context);
  return given;
}

class Witness;
Witness* installed = nullptr;

void delete_context(void* context);

class Witness final : public CUDAAllocator {
 public:
  explicit Witness(CUDAAllocator* upstream) : upstream_(upstream) {}
  CUDAAllocator* upstream() const { return upstream_; }

  DataPtr allocate(std::size_t size_bytes) override {
    DataPtr pointer = upstream_->allocate(size_bytes);
    const DeleterFnPtr deleter = pointer.get_deleter();
    // Without a context, nobody is told when the memory goes.
    if (!pointer.get_context() || !pointer.compare_exchange_deleter(deleter, &delete_context)) return pointer;
    begin(pointer.get_context(), {pointer.get(), deleter}, size_bytes, c10::cuda::getCurrentCUDAStream());
    return pointer;
  }

  void* raw_alloc(std::size_t size_bytes) override {
    return raw_begin(upstream_->raw_alloc(size_bytes), size_bytes, c10::cuda::getCurrentCUDAStream());
  }
  void* raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) override {
    return raw_begin(upstream_->raw_alloc_with_stream(size_bytes, stream), size_bytes, stream);
  }
  void raw_delete(void* pointer) override {
    end(pointer);
    upstream_->raw_delete(pointer);
  }
  DeleterFnPtr raw_deleter() const override { return &delete_context; }

  using CUDAAllocator::recordStream;
  void recordStream(const DataPtr& pointer, CUDAStream stream) override {
    const std::optional<Given> given =
        pointer.get_deleter() == &delete_context ? find(pointer.get_context()) : std::nullopt;
    if (!given || !given->deleter) {
      upstream_->recordStream(pointer, stream);
      return;
    }
    drycuda_range_use(given->address, stream.stream());
    // Allocators know their own pointers by the deleter.
    DataPtr original(pointer.get(), pointer.get_context(), given->deleter, pointer.device());
    upstream_->recordStream(original, stream);
    original.release_context();
  }

  bool is_simple_data_ptr(const DataPtr& pointer) const override { return pointer.get() == pointer.get_context(); }
  void copy_data(void* target, const void* source, std::size_t size_bytes) const override {
    upstream_->copy_data(target, source, size_bytes);
  }
  bool initialized() override { return upstream_->initialized(); }
  void emptyCache(MempoolId_t pool) override { upstream_->emptyCache(pool); }
  DeviceStats getDeviceStats(DeviceIndex device) override { return upstream_->getDeviceStats(device); }
  void resetAccumulatedStats(DeviceIndex device) override { upstream_->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { upstream_->resetPeakStats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) override {
    return upstream_->getMemoryInfo(device);
  }
  void init(int device_count) override { upstream_->init(device_count); }
  double getMemoryFraction(DeviceIndex device) override { return upstream_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    upstream_->setMemoryFraction(fraction, device);
  }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return upstream_->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { upstream_->enable(value); }
  bool isEnabled() const override { return upstream_->isEnabled(); }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override { upstream_->cacheInfo(device, largest); }
  void* getBaseAllocation(void* pointer, std::size_t* size) override {
    return upstream_->getBaseAllocation(pointer, size);
  }
  SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return upstream_->snapshot(pool, traces); }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    upstream_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override { upstream_->endAllocateToPool(device, pool); }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { upstream_->releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return upstream_->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    upstream_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    upstream_->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { upstream_->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return upstream_->checkPoolLiveAllocations(device, pool, expected);
  }
  ShareableHandle shareIpcHandle(void* pointer) override { return upstream_->shareIpcHandle(pointer); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return upstream_->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return upstream_->isHistoryEnabled(); }
  void recordHistory(bool enabled, CreateContextFn recorder, std::size_t max_entries, RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    upstream_->recordHistory(enabled, recorder, max_entries, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) override {
    upstream_->recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override { upstream_->pushCompileContext(context); }
  void popCompileContext() override { upstream_->popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { upstream_->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return upstream_->getUserMetadata(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    upstream_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    upstream_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override { upstream_->enablePeerAccess(device, peer); }
  cudaError_t memcpyAsync(void* target, int target_device, const void* source, int source_device,
                          std::size_t size_bytes, cudaStream_t stream, bool peers) override {
    return upstream_->memcpyAsync(target, target_device, source, source_device, size_bytes, stream, peers);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return upstream_->getCheckpointState(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    return upstream_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return upstream_->name(); }

 private:
  static void* raw_begin(void* pointer, std::size_t size_bytes, cudaStream_t stream) {
    if (pointer) begin(pointer, {pointer, nullptr}, size_bytes, stream);
    return pointer;
  }

  CUDAAllocator* upstream_;
};

void delete_context(void* context) {
  const std::optional<Given> given = end(context);
  if (given && given->deleter) {
    given->deleter(context);
  } else {
    installed->upstream()->raw_delete(context);
  }
}

void use(CUDAAllocator* chosen) {
  allocator.store(chosen);
  c10::SetAllocator(c10::kCUDA, chosen, 0);
}

}  // namespace
}  // namespace drycuda

// Neither while another thread allocates. What was given out stays watched after the witness is removed.

extern "C" __attribute__((visibility("default"))) void witness_install() {
  using drycuda::installed;
  c10::cuda::CUDACachingAllocator::CUDAAllocator* const upstream = c10::cuda::CUDACachingAllocator::get();
  if (upstream == installed) return;
  installed = new drycuda::Witness(upstream);  // never destroyed: a deleter may still need it
  drycuda::use(installed);
}

extern "C" __attribute__((visibility("default"))) void witness_remove() {
  if (c10::cuda::CUDACachingAllocator::get() == drycuda::installed) drycuda::use(drycuda::installed->upstream());
}
