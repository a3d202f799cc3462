// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "plugin/torch_headers.h"

namespace stowage {

/// Digest of a graph: of its canonical text and of what its tensor constants hold, which the text leaves out.
std::string graph_digest(const std::shared_ptr<torch::jit::Graph>& graph);

/// What a plan depends on besides the graph: shapes, strides, dtypes, devices and aliases of tensor inputs, also of
/// those that containers and objects hold, the values of whole numbers, switches and text, which inputs are None, grad
/// and inference mode, the number of threads, and on CUDA the settings that cuDNN chooses by. Not the values of floats:
/// a learning rate changes no shape. Nor numbers that objects hold: a counter may change with every call.
class Signature {
 public:
  /// Reads a region's inputs; reuses its memory.
  void read(const torch::jit::Stack& inputs);
  bool operator==(const Signature& other) const { return words_ == other.words_; }
  /// For the store.
  std::string digest() const;
  /// The device whose memory a run needs most: CUDA, where any tensor is.
  c10::Device device() const { return device_; }
  /// Whether tensors are on more than one CUDA device.
  bool has_several_devices() const { return several_devices_; }

 private:
  void add(const c10::IValue& value);
  void add_tensor(const at::Tensor& tensor);
  void add_object(const c10::ivalue::Object& object);
  void add_overlaps();

  struct Range {
    const char* begin;
    const char* end;
  };

  c10::Device device_ = c10::kCPU;
  bool several_devices_ = false;
  std::vector<std::int64_t> words_;
  std::unordered_map<const void*, std::int64_t> storages_;  ///< and objects: each has a number
  std::vector<Range> ranges_;                               ///< memory of the storages
};

}  // namespace stowage
