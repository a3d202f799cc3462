// SPDX-License-Identifier: Apache-2.0
#include "plugin/cpu_allocator.h"

#include "plugin/torch_headers.h"

namespace stowage {
namespace {

/// PyTorch's own CPU allocator, as an upstream.
class CpuUpstream : public Upstream {
 public:
  explicit CpuUpstream(c10::Allocator* allocator) : allocator_(allocator), deleter_(allocator->raw_deleter()) {
    TORCH_CHECK(deleter_ != nullptr,
                "cannot install the planned CPU allocator: the present one has no raw deleter; enable stowage before "
                "the library that replaced it");
  }

  void* allocate(std::size_t size_bytes, Stream) override { return allocator_->raw_allocate(size_bytes); }
  void free(void* pointer) noexcept override { deleter_(pointer); }
  bool runs_backward() override { return torch::autograd::get_current_graph_task_id() >= 0; }
  c10::Allocator* allocator() const { return allocator_; }

 private:
  c10::Allocator* allocator_;
  c10::DeleterFnPtr deleter_;
};

CpuUpstream& cpu_upstream() {
  static auto* upstream = new CpuUpstream(c10::GetCPUAllocator());
  return *upstream;
}

void delete_cpu(void* pointer) { cpu_allocator().free(pointer); }

/// The allocator that PyTorch sees. `raw_allocate` (oneDNN uses it) demands that context and pointer are one, and that
/// every block has the raw deleter; so the deleter finds a slot from its address, never from a context object.
class CpuAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (size_bytes == 0) return {nullptr, nullptr, &delete_cpu, cpu};
    PlannedAllocator& planned = cpu_allocator();
    void* pointer =
        planned.intercepts(size_bytes) ? planned.allocate(size_bytes) : cpu_upstream().allocate(size_bytes, 0);
    return {pointer, pointer, &delete_cpu, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_cpu; }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override {
    default_copy_data(to, from, size_bytes);
  }
};

CpuAllocator& wrapper() {
  static auto* allocator = new CpuAllocator();
  return *allocator;
}

// Above the default of 0, so that a library that sets its allocator later at default priority does not displace ours.
constexpr std::uint8_t kPriority = 1;

}  // namespace

PlannedAllocator& cpu_allocator() {
  static auto* allocator = new PlannedAllocator(cpu_upstream());
  return *allocator;
}

void install_cpu_allocator() {
  cpu_allocator();  // takes the upstream before we stand in its place
  c10::SetCPUAllocator(&wrapper(), kPriority);
}

void remove_cpu_allocator() {
  if (c10::GetCPUAllocator() == &wrapper()) c10::SetCPUAllocator(cpu_upstream().allocator(), kPriority);
}

}  // namespace stowage
