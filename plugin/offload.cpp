// SPDX-License-Identifier: Apache-2.0
#include "plugin/offload.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "plugin/devices.h"
#include "plugin/note.h"

namespace stowage {
namespace {

using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

/// One stream each way.
struct Streams {
  explicit Streams(c10::Device device)
      : out(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
        back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}
  c10::Stream out;
  c10::Stream back;
};

const Streams& streams_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, Streams> streams;
  std::lock_guard lock(mutex);
  return streams.try_emplace(device.index(), device).first->second;
}

/// Host memory: pinned for a device, else the heap's, which the planned allocator does not see.
class HostBuffer {
 public:
  HostBuffer(c10::Device device, std::int64_t size_bytes)
      : size_bytes_(size_bytes), device_(device), copied_(device.type()) {
    if (device.is_cpu()) {
      heap_ = std::make_unique<char[]>(static_cast<std::size_t>(size_bytes));
    } else {
      pinned_ = at::empty({size_bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    }
  }

  bool fits(c10::Device device, std::int64_t size_bytes) const {
    return device_ == device && size_bytes_ == size_bytes;
  }
  char* heap() const { return heap_.get(); }
  const at::Tensor& pinned() const { return pinned_; }
  /// The end of the latest copy from or to here.
  c10::Event& copied() { return copied_; }

 private:
  std::int64_t size_bytes_;
  c10::Device device_;
  std::unique_ptr<char[]> heap_;
  at::Tensor pinned_;
  c10::Event copied_;
};

/// All of a storage, as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(),
                                                        caffe2::TypeMeta::Make<std::uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(tensor.storage().nbytes())});
  return bytes;
}

/// A tensor that is on its way, or away.
class Away final : public torch::CustomClassHolder {
 public:
  Away(const at::Tensor& tensor, std::shared_ptr<HostBuffer> buffer)
      : device_(tensor.device()),
        keys_(tensor.key_set()),
        dtype_(tensor.dtype()),
        sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()),
        offset_(tensor.storage_offset()),
        size_bytes_(static_cast<std::int64_t>(tensor.storage().nbytes())),
        buffer_(std::move(buffer)),
        issued_(device_.type()) {
    if (device_.is_cpu()) {
      std::memcpy(buffer_->heap(), tensor.storage().data(), static_cast<std::size_t>(size_bytes_));
    } else {
      copy(buffer_->pinned(), bytes_of(tensor), streams_of(device_).out);
    }
  }

  /// A step that failed gives up memory to or from which a copy may be under way.
  ~Away() override try { wait(); } catch (const std::exception&) {
    // The device has failed, or is gone.
  }

  /// What the current stream is given from here on runs behind the copy.
  void wait() {
    if (std::exchange(is_copying_, false)) buffer_->copied().block(*stream_);
  }

  at::Tensor fetch() {
    const at::Tensor bytes = at::empty({size_bytes_}, at::TensorOptions().dtype(at::kByte).device(device_));
    if (device_.is_cpu()) {
      std::memcpy(bytes.storage().mutable_data(), buffer_->heap(), static_cast<std::size_t>(size_bytes_));
    } else {
      copy(bytes, buffer_->pinned(), streams_of(device_).back);
    }
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(bytes.storage()), keys_, dtype_);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset_);
    return tensor;
  }

 private:
  /// Behind all that the current stream has been given, on another; and behind the copy before from or to this host
  /// memory, which may have been for a step on yet another.
  void copy(const at::Tensor& to, const at::Tensor& from, c10::Stream on) {
    stream_ = current_stream(device_);
    issued_.record(*stream_);
    issued_.block(on);
    buffer_->copied().block(on);
    {
      const c10::StreamGuard guard(on);
      to.copy_(from, /*non_blocking=*/true);
    }
    buffer_->copied().record(on);
    is_copying_ = true;
  }

  const c10::Device device_;
  const c10::DispatchKeySet keys_;
  const caffe2::TypeMeta dtype_;
  const std::vector<std::int64_t> sizes_;
  const std::vector<std::int64_t> strides_;
  const std::int64_t offset_;
  const std::int64_t size_bytes_;
  const std::shared_ptr<HostBuffer> buffer_;
  c10::Event issued_;                  ///< what the current stream had been given when the copy was asked for
  std::optional<c10::Stream> stream_;  ///< that waits for the copy
  bool is_copying_ = false;
};

/// The host memory of some code, all of whose copies share one operation (`add_to_operator_table` in
/// jit/runtime/interpreter/code_impl.h, 2.11). It grows to what is away at any one time.
class Buffers {
 public:
  std::shared_ptr<HostBuffer> take(c10::Device device, std::int64_t size_bytes) {
    std::lock_guard lock(mutex_);
    for (const std::shared_ptr<HostBuffer>& buffer : all_) {
      if (buffer.use_count() == 1 && buffer->fits(device, size_bytes)) return buffer;
    }
    return all_.emplace_back(std::make_shared<HostBuffer>(device, size_bytes));
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<HostBuffer>> all_;
};

c10::intrusive_ptr<Away> pop_away(Stack& stack) {
  return c10::static_intrusive_pointer_cast<Away>(torch::jit::pop(stack).toCapsule());
}

torch::jit::Operation make_offload(const Node*) {
  return [buffers = std::make_shared<Buffers>()](Stack& stack) {
    const at::Tensor tensor = torch::jit::pop(stack).toTensor();
    TORCH_CHECK(tensor.defined() && tensor.has_storage(), "cannot offload a tensor without a storage");
    auto buffer = buffers->take(tensor.device(), static_cast<std::int64_t>(tensor.storage().nbytes()));
    stack.push_back(c10::IValue::make_capsule(c10::make_intrusive<Away>(tensor, std::move(buffer))));
  };
}

/// Of `stowage::offloaded` and `stowage::arrive`.
torch::jit::Operation make_wait(const Node*) {
  return [](Stack& stack) {
    pop_away(stack)->wait();
    torch::jit::drop(stack, 1);
  };
}

torch::jit::Operation make_fetch(const Node*) {
  return [](Stack& stack) { stack.emplace_back(pop_away(stack)->fetch()); };
}

/// 0 where there is no memory to measure with.
std::int64_t measure_bytes_per_s(c10::Device device) try {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  const at::Tensor there = at::empty({kBytes}, at::TensorOptions().dtype(at::kByte).device(device));
  const at::Tensor here = at::empty({kBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  const auto time = [&](const at::Tensor& to, const at::Tensor& from) {
    to.copy_(from, /*non_blocking=*/true);  // the first wakes the link
    synchronize(device);
    const auto begin = std::chrono::steady_clock::now();
    to.copy_(from, /*non_blocking=*/true);
    synchronize(device);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double slower_s = std::max({time(here, there), time(there, here), 1e-6});
  return static_cast<std::int64_t>(static_cast<double>(kBytes) / slower_s);
} catch (const c10::Error& error) {
  note(fmt::format("nothing is copied to host memory: {}", first_line(error.what())));
  return 0;
}

}  // namespace

torch::jit::RegisterOperators register_offload_operators() {
  using torch::jit::Operator;
  // Schemas do not tell what they do: without this, those that return nothing would be taken for dead code.
  constexpr auto kConservative = c10::AliasAnalysisKind::CONSERVATIVE;
  return torch::jit::RegisterOperators({
      Operator("stowage::offload(Tensor x) -> Capsule", make_offload, kConservative),
      Operator("stowage::offloaded(Tensor x, Capsule h) -> ()", make_wait, kConservative),
      Operator("stowage::fetch(Capsule h) -> Tensor", make_fetch, kConservative),
      Operator("stowage::arrive(Tensor y, Capsule h) -> ()", make_wait, kConservative),
  });
}

bool is_copy_point(const Node& node) {
  static const std::array kKinds = {
      Symbol::fromQualString("stowage::offload"), Symbol::fromQualString("stowage::offloaded"),
      Symbol::fromQualString("stowage::fetch"), Symbol::fromQualString("stowage::arrive")};
  return std::find(kKinds.begin(), kKinds.end(), node.kind()) != kKinds.end();
}

std::int64_t link_bytes_per_s(c10::Device device) {
  if (!device.is_cuda()) return 0;
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::int64_t> measured;
  std::lock_guard lock(mutex);
  const auto found = measured.find(device.index());
  if (found != measured.end()) return found->second;
  return measured[device.index()] = measure_bytes_per_s(device);
}

}  // namespace stowage
