// SPDX-License-Identifier: Apache-2.0
#include "plugin/snapshot.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

namespace stowage {
namespace {

std::vector<c10::IValue> elements_of(const c10::IValue& container) {
  if (container.isList()) return container.toListRef().vec();
  if (container.isObject()) return container.toObjectRef().slots();
  std::vector<c10::IValue> elements;
  for (const auto& entry : container.toGenericDict()) {
    elements.push_back(entry.key());
    elements.push_back(entry.value());
  }
  return elements;
}

void fill(const c10::IValue& container, const std::vector<c10::IValue>& elements) {
  if (container.isObject()) {
    for (std::size_t slot = 0; slot < elements.size(); ++slot) container.toObjectRef().setSlot(slot, elements[slot]);
  } else if (container.isList()) {
    auto list = container.toList();
    list.clear();
    for (const c10::IValue& element : elements) list.push_back(element);
  } else {
    auto dict = container.toGenericDict();
    dict.clear();
    for (std::size_t key = 0; key < elements.size(); key += 2) dict.insert(elements[key], elements[key + 1]);
  }
}

at::Tensor state_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

Snapshot::Snapshot(const torch::jit::Stack& inputs, const torch::jit::Graph& graph) {
  for (std::size_t input = 0; input < inputs.size(); ++input) add(inputs[input], graph.inputs()[input]->debugName());
  for (const torch::jit::Node* node : graph.nodes()) {
    if (node->kind() != torch::jit::prim::Constant) continue;
    if (const auto constant = torch::jit::toIValue(node->output())) add(*constant, node->output()->debugName());
  }
  add_generator(at::detail::getDefaultCPUGenerator());
}

void Snapshot::add(const c10::IValue& value, const std::string& name) {
  if (value.isTensor()) {
    add_tensor(value.toTensor(), name);
  } else if (value.isGenerator()) {
    add_generator(value.toGenerator());
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) add(element, name);
  } else if (value.isList() || value.isGenericDict() || value.isObject()) {
    if (!seen_.insert(value.internalToPointer()).second) return;
    const std::size_t at = containers_.size();
    containers_.push_back({value, elements_of(value)});
    for (std::size_t element = 0; element < containers_[at].elements.size(); ++element) {
      add(c10::IValue(containers_[at].elements[element]), name);
    }
  }
}

void Snapshot::add_tensor(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined() || !seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
  if (!tensor.has_storage() || !tensor.device().is_cpu() || tensor.layout() != c10::kStrided) {
    why_lost_ = fmt::format("the bytes of '{}' cannot be kept: it is no plain tensor on the CPU", name);
    return;
  }
  const c10::Storage& storage = tensor.storage();
  tensors_.push_back({name, tensor, storage, tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()});
  if (!seen_.insert(storage.unsafeGetStorageImpl()).second) return;
  const std::size_t size_bytes = storage.nbytes();
  void* data = storage.mutable_data();
  auto bytes = std::make_unique_for_overwrite<char[]>(size_bytes);
  if (size_bytes > 0) std::memcpy(bytes.get(), data, size_bytes);
  storages_.push_back({name, storage, data, size_bytes, std::move(bytes)});
}

void Snapshot::add_generator(at::Generator generator) {
  if (!generator.defined() || !seen_.insert(generator.unsafeGetGeneratorImpl()).second) return;
  generators_.push_back({generator, state_of(generator)});
}

std::string Snapshot::why_lost() const {
  if (!why_lost_.empty()) return why_lost_;
  for (const StoredStorage& each : storages_) {
    if (each.storage.data() != each.data || each.storage.nbytes() != each.size_bytes) {
      return fmt::format("the run gives '{}' other memory", each.name);
    }
  }
  for (const StoredTensor& each : tensors_) {
    if (each.tensor.storage().unsafeGetStorageImpl() != each.storage.unsafeGetStorageImpl()) {
      return fmt::format("the run gives '{}' another storage", each.name);
    }
  }
  return {};
}

void Snapshot::restore() {
  for (const StoredContainer& each : containers_) {
    const auto now = elements_of(each.container);
    const auto same = [](const c10::IValue& a, const c10::IValue& b) { return a.is(b); };
    if (!std::equal(now.begin(), now.end(), each.elements.begin(), each.elements.end(), same)) {
      fill(each.container, each.elements);
    }
  }
  for (const StoredTensor& each : tensors_) {
    if (each.tensor.sizes() == each.sizes && each.tensor.strides() == each.strides &&
        each.tensor.storage_offset() == each.offset) {
      continue;
    }
    each.tensor.unsafeGetTensorImpl()->set_sizes_and_strides(each.sizes, each.strides, each.offset);
  }
  for (const StoredStorage& each : storages_) {
    if (each.storage.data() == each.data && each.storage.nbytes() == each.size_bytes && each.size_bytes > 0) {
      std::memcpy(each.data, each.bytes.get(), each.size_bytes);
    }
  }
  for (StoredGenerator& each : generators_) {
    std::lock_guard lock(each.generator.mutex());
    each.generator.set_state(each.state);
  }
}

std::vector<Snapshot::State> Snapshot::states() const {
  std::vector<State> states;
  for (const StoredStorage& each : storages_) {
    Digest digest;
    digest.add(each.storage.data(), each.storage.nbytes());
    states.push_back({fmt::format("'{}'", each.name), digest});
  }
  for (const StoredGenerator& each : generators_) {
    const at::Tensor state = state_of(each.generator);
    Digest digest;
    digest.add(state.const_data_ptr(), state.nbytes());
    states.push_back({"a random generator", digest});
  }
  return states;
}

}  // namespace stowage
