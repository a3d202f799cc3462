// SPDX-License-Identifier: Apache-2.0
#include "plugin/reuse.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <fmt/format.h>

#include "plugin/options.h"
#include "plugin/tensor_bytes.h"
#include "solver/pointwise.h"

namespace stowage {
namespace {

// Raised whenever what may move or what may be reused changes.
constexpr const char* kPlanRules = "4";

bool is_named(std::string_view list, std::string_view kind) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view name = list.substr(0, comma);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (name == kind) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

void add(Digest& digest, c10::IntArrayRef words) {
  digest.add(static_cast<std::int64_t>(words.size()));
  for (const std::int64_t word : words) digest.add(word);
}

/// Whether ops on this thread hand their inputs to a dispatch mode, or fill what they allocate.
bool ops_do_more_than_compute() {
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return true;
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

/// Whether autograd, of either direction, might keep the tensor or read it after the op.
bool is_differentiated(const at::Tensor& tensor) {
  return (at::GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
}

enum InputKind : std::int64_t { kUndefined, kTensor, kNoInput, kSwitch, kWholeNumber, kNumber, kText };

bool add_tensor(Digest& digest, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    digest.add(kUndefined);
    return true;
  }
  const c10::DispatchKeySet keys = tensor.key_set();
  if (keys.has(c10::DispatchKey::Python) || tensor.layout() != c10::kStrided || !tensor.has_storage()) return false;
  if (!(tensor.is_cpu() || tensor.is_cuda()) || is_differentiated(tensor)) return false;
  // Compilers make two loops of complex arithmetic, one for memory that overlaps, and they round differently.
  const c10::ScalarType dtype = tensor.scalar_type();
  if (!c10::isFloatingType(dtype) && !c10::isIntegralType(dtype, /*includeBool=*/true)) return false;
  digest.add(kTensor);
  digest.add(static_cast<std::int64_t>(keys.raw_repr()));
  digest.add(static_cast<std::int64_t>(dtype));
  digest.add(tensor.storage_offset());
  add(digest, tensor.sizes());
  add(digest, tensor.strides());
  return true;
}

bool add_value(Digest& digest, const c10::IValue& value) {
  if (value.isTensor()) return add_tensor(digest, value.toTensor());
  if (value.isNone()) {
    digest.add(kNoInput);
  } else if (value.isBool()) {
    digest.add(kSwitch);
  } else if (value.isInt()) {
    digest.add(kWholeNumber);
  } else if (value.isDouble()) {
    digest.add(kNumber);
  } else if (value.isString()) {
    digest.add(kText);
    digest.add(value.toStringRef().data(), value.toStringRef().size());
  } else {
    return false;
  }
  return true;
}

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() && tensor.numel() > 0 &&
         tensor.storage().nbytes() == static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
}

}  // namespace

bool kernels_are_torchs() {
  static std::mutex mutex;  // asking for a kernel notes who asked, unguarded (OperatorEntry.cpp, 2.11)
  std::lock_guard lock(mutex);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!solver::is_pointwise(name.name)) continue;
    const auto op = dispatcher.findOp(name);
    for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      if (!op || !op->hasComputedKernelForDispatchKey(key)) continue;
      // "registered at .../aten/src/ATen/RegisterCPU_0.cpp:1": the files that torch's build generates.
      const std::string where = op->getComputedKernelForDispatchKey(key).debug();
      if (where.find("aten/src/ATen/Register") == std::string::npos) return false;
    }
  }
  return true;
}

std::string plan_rules() {
  if (!options().reuse || !kernels_are_torchs()) return fmt::format("{}, no reuse", kPlanRules);
  if (options().reuse_ops.empty()) return kPlanRules;
  return fmt::format("{}, reuse_ops {}", kPlanRules, options().reuse_ops);
}

bool may_reuse(const OpFacts& op) {
  if (!options().reuse || op.barrier || op.effect || op.has_blocks || !op.writes.empty()) return false;
  if (op.node->outputs().size() != 1 || op.node->output()->type()->kind() != c10::TypeKind::TensorType) return false;
  if (!op.may_return.front().empty()) return false;
  const std::string kind = op.node->kind().toQualString();
  return solver::is_pointwise(kind) || is_named(options().reuse_ops, kind);
}

std::optional<std::int64_t> layout_digest(c10::ArrayRef<c10::IValue> inputs, std::int32_t position) {
  if (ops_do_more_than_compute()) return std::nullopt;
  Digest digest;
  digest.add(static_cast<std::int64_t>(position));
  const c10::impl::LocalDispatchKeySet thread = c10::impl::tls_local_dispatch_key_set();
  digest.add(static_cast<std::int64_t>(thread.included_.raw_repr()));
  digest.add(static_cast<std::int64_t>(thread.excluded_.raw_repr()));
  for (const c10::IValue& input : inputs) {
    if (!add_value(digest, input)) return std::nullopt;
  }
  return static_cast<std::int64_t>(digest.value());
}

bool inputs_are_observed() {
  const auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  return observers && observers->needs_inputs_;
}

bool dies_with(const at::Tensor& tensor, std::size_t references) {
  if (tensor.use_count() != references || tensor.weak_use_count() != 1) return false;
  const c10::Storage& storage = tensor.storage();
  // Other deleters: memory that is somebody else's, or shared copy-on-write by several storages.
  if (storage.data_ptr().get_deleter() != c10::GetAllocator(storage.device_type())->raw_deleter()) return false;
  if (storage.use_count() == 1) return true;
  if (storage.use_count() != 2 || !tensor.is_view()) return false;
  const at::TensorBase& base = tensor._base();
  return base.use_count() == 1 && base.weak_use_count() == 1 && base.has_storage() &&
         base.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
}

bool ReusableInput::matches(const at::Tensor& result) const {
  return result.defined() && result.layout() == c10::kStrided && result.scalar_type() == dtype &&
         result.sizes() == c10::IntArrayRef(sizes) && result.strides() == c10::IntArrayRef(strides) &&
         fills_its_storage(result);
}

std::vector<ReusableInput> find_reusable(const torch::jit::Node& node, c10::ArrayRef<c10::IValue> inputs) {
  std::vector<ReusableInput> found;
  for (std::size_t position = 0; position < inputs.size(); ++position) {
    const auto layout = layout_digest(inputs, static_cast<std::int32_t>(position));
    if (!layout) return {};
    if (node.inputs()[position]->type()->kind() != c10::TypeKind::TensorType) continue;
    const at::Tensor& tensor = inputs[position].toTensor();
    if (!tensor.defined() || !fills_its_storage(tensor)) continue;
    bool is_first = true;
    bool is_shared = false;
    for (std::size_t other = 0; other < inputs.size(); ++other) {
      if (node.inputs()[other] == node.inputs()[position]) {
        is_first &= other >= position;
      } else if (inputs[other].isTensor() && inputs[other].toTensor().defined()) {
        is_shared |= inputs[other].toTensor().is_alias_of(tensor);
      }
    }
    if (!is_first || is_shared) continue;
    found.push_back({static_cast<std::int32_t>(position), *layout, tensor.scalar_type(), tensor.sizes().vec(),
                     tensor.strides().vec()});
  }
  return found;
}

void keep_possible_reuses(profiler::Run& run) {
  using profiler::TensorKind;
  std::vector<std::int32_t> left_behind(run.ops.size(), 0);  // by op: tensors that it allocates and does not free
  std::vector<std::int32_t> allocator(run.tensors.size(), profiler::kNone);
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    const auto tensor = static_cast<std::size_t>(allocation.tensor);
    allocator[tensor] = allocation.op;
    if (run.tensors[tensor].kind != TensorKind::kWorkspace) ++left_behind[static_cast<std::size_t>(allocation.op)];
  }
  std::erase_if(run.reuses, [&](const profiler::ReuseRecord& reuse) {
    const auto output = static_cast<std::size_t>(reuse.output);
    const auto input = static_cast<std::size_t>(reuse.input);
    const bool is_own = run.tensors[output].kind == TensorKind::kIntermediate &&
                        run.tensors[input].kind == TensorKind::kIntermediate && allocator[output] == reuse.op &&
                        allocator[input] != reuse.op && allocator[input] != profiler::kNone;
    return !is_own || run.tensors[output].size_bytes != run.tensors[input].size_bytes ||
           left_behind[static_cast<std::size_t>(reuse.op)] != 1;
  });
}

}  // namespace stowage
