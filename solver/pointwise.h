// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace stowage::solver {

/// Whether an op of this kind ("aten::add", "aten.add.Tensor") reads and writes the same index of its tensors, once
/// (or, as softmax does, reads a whole row before it writes any of it), and allocates nothing but its result: the
/// result may then take the place of an input of the same dtype and strides. Each is tested bit for bit in
/// tests/plugin/test_reuse.py.
bool is_pointwise(std::string_view kind);

}  // namespace stowage::solver
