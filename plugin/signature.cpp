// SPDX-License-Identifier: Apache-2.0
#include "plugin/signature.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

namespace stowage {

using torch::jit::Stack;

void Signature::read(const Stack& inputs) {
  words_.clear();
  storages_.clear();
  words_.push_back(at::GradMode::is_enabled());
  words_.push_back(at::get_num_threads());  // kernels size their workspace by it
  for (const c10::IValue& input : inputs) add(input);
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
  } else {
    words_.push_back(8);
  }
}

void Signature::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    words_.push_back(9);
    return;
  }
  words_.insert(words_.end(),
                {10, static_cast<std::int64_t>(tensor.scalar_type()), static_cast<std::int64_t>(tensor.device().type()),
                 tensor.device().index(), static_cast<std::int64_t>(tensor.layout()), tensor.dim()});
  words_.insert(words_.end(), tensor.sizes().begin(), tensor.sizes().end());
  if (!tensor.has_storage()) return;
  if (tensor.layout() == c10::kStrided) words_.insert(words_.end(), tensor.strides().begin(), tensor.strides().end());
  // Inputs that share a storage have its number.
  const auto number = static_cast<std::int64_t>(storages_.size());
  const auto storage = storages_.try_emplace(tensor.storage().unsafeGetStorageImpl(), number).first;
  words_.insert(words_.end(),
                {tensor.storage_offset(), static_cast<std::int64_t>(tensor.storage().nbytes()), storage->second});
}

std::string Signature::digest() const {
  std::string text;
  for (const std::int64_t word : words_) text += fmt::format("{} ", word);
  return c10::sha1(text).str();
}

}  // namespace stowage
