// SPDX-License-Identifier: Apache-2.0
#include "solver/pointwise.h"

#include <algorithm>
#include <array>

namespace stowage::solver {

bool is_pointwise(std::string_view kind) {
  // Sorted.
  static constexpr std::array<std::string_view, 59> kNames = {
      "_log_softmax",  "_log_softmax_backward_data",
      "_softmax",      "_softmax_backward_data",
      "abs",           "add",
      "addcdiv",       "addcmul",
      "ceil",          "clamp",
      "clamp_max",     "clamp_min",
      "cos",           "div",
      "elu",           "elu_backward",
      "erf",           "exp",
      "expm1",         "floor",
      "gelu",          "gelu_backward",
      "hardsigmoid",   "hardsigmoid_backward",
      "hardswish",     "hardswish_backward",
      "hardtanh",      "hardtanh_backward",
      "leaky_relu",    "leaky_relu_backward",
      "lerp",          "log",
      "log1p",         "maximum",
      "minimum",       "mish",
      "mish_backward", "mul",
      "neg",           "pow",
      "reciprocal",    "relu",
      "rsqrt",         "rsub",
      "sigmoid",       "sigmoid_backward",
      "sign",          "silu",
      "silu_backward", "sin",
      "softplus",      "softplus_backward",
      "sqrt",          "square",
      "sub",           "tanh",
      "tanh_backward", "threshold_backward",
      "where",
  };
  constexpr std::string_view kNamespace = "aten";
  if (!kind.starts_with(kNamespace)) return false;
  kind.remove_prefix(kNamespace.size());
  if (kind.starts_with("::")) {
    kind.remove_prefix(2);
  } else if (kind.starts_with('.')) {
    kind.remove_prefix(1);
    kind = kind.substr(0, kind.find('.'));  // without the overload
  } else {
    return false;
  }
  return std::binary_search(kNames.begin(), kNames.end(), kind);
}

}  // namespace stowage::solver
