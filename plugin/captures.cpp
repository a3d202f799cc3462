// SPDX-License-Identifier: Apache-2.0
#include "plugin/captures.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <typeinfo>
#include <unordered_map>

namespace stowage {
namespace {

using torch::autograd::Node;
using torch::jit::Stack;

/// A node's name within the process: sequence numbers count by thread (function.h, 2.11).
struct NodeId {
  std::uint64_t thread = 0;
  std::uint64_t sequence = 0;

  bool operator==(const NodeId&) const = default;
};

struct Remembered {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< so that no other gets its address
  NodeId node;
};

struct Memory {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Remembered> storages;
  std::size_t next_sweep = 64;
};

Memory& memory() {
  static auto* instance = new Memory();
  return *instance;
}

void sweep(Memory& of) {
  if (of.storages.size() < of.next_sweep) return;
  std::erase_if(of.storages, [](const auto& each) { return each.second.storage.expired(); });
  of.next_sweep = std::max<std::size_t>(64, 2 * of.storages.size());
}

/// The storages that nothing but tensors of the stack holds, which nothing else holds either.
std::vector<c10::Storage> held_by_alone(const Stack& outputs) {
  std::unordered_map<const c10::TensorImpl*, std::uint32_t> references;  // by tensor: how often the stack has it
  std::unordered_map<const c10::StorageImpl*, std::vector<const at::Tensor*>> tensors_of;
  for (const c10::IValue& output : outputs) {
    if (!output.isTensor() || !output.toTensor().defined() || !output.toTensor().has_storage()) continue;
    const at::Tensor& tensor = output.toTensor();
    if (++references[tensor.unsafeGetTensorImpl()] > 1) continue;
    tensors_of[tensor.storage().unsafeGetStorageImpl()].push_back(&tensor);
  }
  std::vector<c10::Storage> alone;
  for (const auto& [storage, tensors] : tensors_of) {
    const bool is_alone = tensors.front()->storage().use_count() == tensors.size() &&
                          std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
                            return tensor->use_count() == references[tensor->unsafeGetTensorImpl()];
                          });
    if (is_alone) alone.push_back(tensors.front()->storage());
  }
  return alone;
}

}  // namespace

void remember_outputs(const Stack& outputs) {
  if (!at::GradMode::is_enabled() || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return;
  const std::uint64_t next = at::sequence_number::peek();
  if (next == 0) return;
  const NodeId newest{at::RecordFunction::currentThreadId(), next - 1};
  const std::vector<c10::Storage> alone = held_by_alone(outputs);
  std::lock_guard lock(memory().mutex);
  sweep(memory());
  for (const c10::Storage& storage : alone) {
    memory().storages.insert_or_assign(storage.unsafeGetStorageImpl(),
                                       Remembered{storage.getWeakStorageImpl(), newest});
  }
}

Node* running_backward() {
  const std::shared_ptr<Node> node = torch::autograd::get_current_node();
  if (node == nullptr) return nullptr;
  // The class has no header: its name within graph_executor.cpp (2.11).
  const Node& of = *node;
  return std::strstr(typeid(of).name(), "DifferentiableGraphBackward") == nullptr ? nullptr : node.get();
}

bool saved_without_hooks(const Node& node, c10::ArrayRef<c10::IValue> captures) {
  const NodeId id{node.thread_id(), node.sequence_nr()};
  std::lock_guard lock(memory().mutex);
  return std::any_of(captures.begin(), captures.end(), [&](const c10::IValue& capture) {
    if (!capture.isTensor() || !capture.toTensor().defined() || !capture.toTensor().has_storage()) return false;
    const auto found = memory().storages.find(capture.toTensor().storage().unsafeGetStorageImpl());
    return found != memory().storages.end() && found->second.node == id;
  });
}

}  // namespace stowage
