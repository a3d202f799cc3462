// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "plugin/tensor_bytes.h"
#include "plugin/torch_headers.h"

namespace stowage {

/// What a graph finds before it runs, to run it twice: bytes and shapes of the tensors among its inputs and constants,
/// also of those in containers and objects, those containers and objects themselves, the state of random generators.
/// What custom ops keep for themselves is not in it. Holds a reference to everything; its copies are not the
/// allocator's.
class Snapshot {
 public:
  Snapshot(const torch::jit::Stack& inputs, const torch::jit::Graph& graph);

  /// Why `restore` cannot bring everything back, as far as is known now; empty if it can.
  std::string why_lost() const;
  void restore();

  struct State {
    std::string name;
    Digest digest;
  };
  /// How storages and generators are now, in an order that depends on the snapshot alone.
  std::vector<State> states() const;

 private:
  struct StoredStorage {
    std::string name;
    c10::Storage storage;
    void* data;
    std::size_t size_bytes;
    std::unique_ptr<char[]> bytes;
  };
  struct StoredTensor {
    std::string name;
    at::Tensor tensor;
    c10::Storage storage;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::int64_t offset;
  };
  struct StoredContainer {
    c10::IValue container;
    std::vector<c10::IValue> elements;  ///< of a dict, keys and values in turn
  };
  struct StoredGenerator {
    at::Generator generator;
    at::Tensor state;
  };

  void add(const c10::IValue& value, const std::string& name);
  void add_tensor(const at::Tensor& tensor, const std::string& name);
  void add_generator(at::Generator generator);

  std::unordered_set<const void*> seen_;
  std::vector<StoredStorage> storages_;
  std::vector<StoredTensor> tensors_;
  std::vector<StoredContainer> containers_;
  std::vector<StoredGenerator> generators_;
  std::string why_lost_;
};

}  // namespace stowage
