// SPDX-License-Identifier: Apache-2.0
#include "plugin/signature.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stowage {

using torch::jit::Stack;

namespace {

void add_constant(const at::Tensor& tensor, std::string& text) {
  text += fmt::format("\n{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  if (tensor.layout() != c10::kStrided || !tensor.device().is_cpu()) return;
  const at::Tensor values = tensor.detach().contiguous().resolve_conj().resolve_neg();
  const auto size_bytes = static_cast<std::size_t>(values.numel()) * values.itemsize();
  text += ' ' + c10::sha1(std::string(static_cast<const char*>(values.const_data_ptr()), size_bytes)).str();
}

void add_constants(const torch::jit::Block& block, std::string& text) {
  for (const torch::jit::Node* node : block.nodes()) {
    if (node->kind() == torch::jit::prim::Constant) {
      const auto value = torch::jit::toIValue(node->output());
      if (!value) continue;
      value->visit([&](const c10::IValue& part) {
        if (part.isTensor() && part.toTensor().defined()) add_constant(part.toTensor(), text);
        return false;
      });
    }
    for (const torch::jit::Block* inner : node->blocks()) add_constants(*inner, text);
    if (node->hasAttribute(torch::jit::attr::Subgraph)) {
      add_constants(*node->g(torch::jit::attr::Subgraph)->block(), text);
    }
  }
}

}  // namespace

std::string graph_digest(const std::shared_ptr<torch::jit::Graph>& graph) {
  const auto canonical = torch::jit::Canonicalize(graph, /*keep_unique_names=*/false);
  std::string text = canonical->toString(/*print_source_locations=*/false);
  add_constants(*canonical->block(), text);
  return c10::sha1(text).str();
}

void Signature::read(const Stack& inputs) {
  words_.clear();
  storages_.clear();
  ranges_.clear();
  device_ = c10::kCPU;
  several_devices_ = false;
  words_.push_back(at::GradMode::is_enabled());
  words_.push_back(c10::InferenceMode::is_enabled());
  words_.push_back(at::get_num_threads());  // kernels size their workspace by it
  for (const c10::IValue& input : inputs) add(input);
  add_overlaps();
  if (device_.is_cuda()) {
    const at::Context& context = at::globalContext();  // cuDNN's algorithms differ in their workspace
    words_.insert(words_.end(), {context.benchmarkCuDNN(), context.deterministicCuDNN(),
                                 context.deterministicAlgorithms(), context.userEnabledCuDNN()});
  }
}

/// Whether any memory is in two storages, as two `torch.from_numpy` of one array are.
void Signature::add_overlaps() {
  auto by_begin = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  std::sort(ranges_.begin(), ranges_.end(), by_begin);
  auto overlap = [](const Range& a, const Range& b) { return b.begin < a.end; };
  words_.push_back(std::adjacent_find(ranges_.begin(), ranges_.end(), overlap) != ranges_.end());
}

void Signature::add(const c10::IValue& value) {
  if (value.isTensor()) {
    add_tensor(value.toTensor());
  } else if (value.isInt()) {
    words_.insert(words_.end(), {1, value.toInt()});
  } else if (value.isBool()) {
    words_.insert(words_.end(), {2, value.toBool()});
  } else if (value.isNone()) {
    words_.push_back(3);
  } else if (value.isDouble()) {
    words_.push_back(4);
  } else if (value.isString()) {
    words_.insert(words_.end(), {5, static_cast<std::int64_t>(std::hash<std::string>()(value.toStringRef()))});
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    words_.insert(words_.end(), {6, static_cast<std::int64_t>(elements.size())});
    for (const c10::IValue& element : elements) add(element);
  } else if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    words_.insert(words_.end(), {7, static_cast<std::int64_t>(elements.size())});
    for (const c10::IValue& element : elements) add(element);
  } else if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    words_.insert(words_.end(), {11, static_cast<std::int64_t>(dict.size())});
    for (const auto& entry : dict) {
      add(entry.key());
      add(entry.value());
    }
  } else if (value.isObject()) {
    add_object(value.toObjectRef());
  } else {
    words_.push_back(8);
  }
}

void Signature::add_object(const c10::ivalue::Object& object) {
  const auto [number, is_new] = storages_.try_emplace(&object, static_cast<std::int64_t>(storages_.size()));
  words_.insert(words_.end(), {12, number->second});
  if (!is_new) return;
  for (const c10::IValue& slot : object.slots()) {
    if (slot.isInt() || slot.isBool() || slot.isString()) continue;
    add(slot);
  }
}

void Signature::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    words_.push_back(9);
    return;
  }
  if (tensor.is_cuda()) {
    several_devices_ |= device_.is_cuda() && device_ != tensor.device();
    device_ = tensor.device();
  }
  words_.insert(words_.end(),
                {10, static_cast<std::int64_t>(tensor.scalar_type()), static_cast<std::int64_t>(tensor.device().type()),
                 tensor.device().index(), static_cast<std::int64_t>(tensor.layout()), tensor.dim()});
  words_.insert(words_.end(), tensor.sizes().begin(), tensor.sizes().end());
  if (!tensor.has_storage()) return;
  if (tensor.layout() == c10::kStrided) words_.insert(words_.end(), tensor.strides().begin(), tensor.strides().end());
  // Inputs that share a storage have its number.
  const auto number = static_cast<std::int64_t>(storages_.size());
  const c10::Storage& storage = tensor.storage();
  const auto size_bytes = static_cast<std::int64_t>(storage.nbytes());
  const auto [named, is_new] = storages_.try_emplace(storage.unsafeGetStorageImpl(), number);
  words_.insert(words_.end(), {tensor.storage_offset(), size_bytes, named->second});
  if (!is_new || size_bytes == 0) return;
  const auto* begin = static_cast<const char*>(storage.data());
  if (begin != nullptr) ranges_.push_back({begin, begin + size_bytes});
}

std::string Signature::digest() const {
  std::string text;
  for (const std::int64_t word : words_) text += fmt::format("{} ", word);
  return c10::sha1(text).str();
}

}  // namespace stowage
