// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "plugin/torch_headers.h"

namespace stowage {

/// A hash of bytes. Of two inputs of one length that differ in a single 8-byte word, the digests always differ.
class Digest {
 public:
  void add(const void* bytes, std::size_t size_bytes);
  void add(std::int64_t word) { add(&word, sizeof(word)); }
  std::uint64_t value() const { return state_; }
  bool operator==(const Digest&) const = default;

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

/// Types, shapes, strides and the exact bytes of all elements of a value: NaN payloads and signed zeros count, bytes
/// between the elements of a view do not. Containers are looked into, objects are not. Allocates nothing.
/// Tensors whose bytes cannot be read here (sparse, not on the CPU) are left out and counted in `unread`.
Digest digest(const c10::IValue& value, std::int64_t& unread);

/// The bytes that `digest` reads, one tensor after the other.
std::string bytes_of(const c10::IValue& value);

}  // namespace stowage
