// SPDX-License-Identifier: Apache-2.0
#include "plugin/tensor_bytes.h"

#include <bit>
#include <cstring>
#include <vector>

namespace stowage {
namespace {

bool is_readable(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.device().is_cpu() && tensor.has_storage() &&
         (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr);
}

/// Calls `visit(begin, size_bytes)` for the elements, as few pieces as that takes: memory order where the elements lie
/// side by side, else logical order.
template <typename Visit>
void visit_elements(const at::Tensor& tensor, Visit visit) {
  if (tensor.numel() == 0) return;
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  const auto item_bytes = static_cast<std::int64_t>(tensor.element_size());
  if (tensor.is_non_overlapping_and_dense()) {
    visit(begin, static_cast<std::size_t>(tensor.numel() * item_bytes));
    return;
  }
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const std::int64_t last = tensor.dim() - 1;
  const bool whole_rows = strides[last] == 1;
  const std::int64_t outer_dims = whole_rows ? last : last + 1;
  const std::int64_t piece_bytes = whole_rows ? sizes[last] * item_bytes : item_bytes;
  std::vector<std::int64_t> at(static_cast<std::size_t>(outer_dims), 0);
  std::int64_t offset = 0;
  while (true) {
    visit(begin + offset * item_bytes, static_cast<std::size_t>(piece_bytes));
    std::int64_t dim = outer_dims - 1;
    for (; dim >= 0; --dim) {
      auto& index = at[static_cast<std::size_t>(dim)];
      offset += strides[dim];
      if (++index < sizes[dim]) break;
      offset -= strides[dim] * sizes[dim];
      index = 0;
    }
    if (dim < 0) return;
  }
}

void add_tensor(Digest& digest, const at::Tensor& tensor, std::int64_t& unread) {
  if (!tensor.defined()) return;
  if (!is_readable(tensor)) {
    ++unread;
    return;
  }
  digest.add(static_cast<std::int64_t>(tensor.scalar_type()));
  digest.add(tensor.is_conj() * 2 + tensor.is_neg());
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    digest.add(tensor.size(dim));
    digest.add(tensor.stride(dim));
  }
  visit_elements(tensor, [&](const char* bytes, std::size_t size_bytes) { digest.add(bytes, size_bytes); });
}

/// Calls `visit` for every value that is no container, in order.
template <typename Visit>
void visit_values(const c10::IValue& value, Visit visit) {
  if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) visit_values(each, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& each : value.toTupleRef().elements()) visit_values(each, visit);
  } else if (value.isGenericDict()) {
    for (const auto& each : value.toGenericDict()) {
      visit_values(each.key(), visit);
      visit_values(each.value(), visit);
    }
  } else {
    visit(value);
  }
}

}  // namespace

void Digest::add(const void* bytes, std::size_t size_bytes) {
  const auto* from = static_cast<const char*>(bytes);
  while (size_bytes > 0) {
    const std::size_t taken = size_bytes < sizeof(std::uint64_t) ? size_bytes : sizeof(std::uint64_t);
    std::uint64_t word = 0;
    std::memcpy(&word, from, taken);
    state_ = std::rotl(state_ ^ word, 29) * 0xff51afd7ed558ccd;  // each step is one to one in the word
    from += taken;
    size_bytes -= taken;
  }
}

Digest digest(const c10::IValue& value, std::int64_t& unread) {
  Digest digest;
  visit_values(value, [&](const c10::IValue& each) {
    if (each.isTensor()) {
      add_tensor(digest, each.toTensor(), unread);
    } else if (each.isInt()) {
      digest.add(each.toInt());
    } else if (each.isBool()) {
      digest.add(each.toBool());
    } else if (each.isDouble()) {
      digest.add(std::bit_cast<std::int64_t>(each.toDouble()));
    } else if (each.isString()) {
      digest.add(each.toStringRef().data(), each.toStringRef().size());
    }
  });
  return digest;
}

std::string bytes_of(const c10::IValue& value) {
  std::string all;
  visit_values(value, [&](const c10::IValue& each) {
    if (!each.isTensor() || !each.toTensor().defined() || !is_readable(each.toTensor())) return;
    visit_elements(each.toTensor(), [&](const char* bytes, std::size_t size_bytes) { all.append(bytes, size_bytes); });
  });
  return all;
}

}  // namespace stowage
