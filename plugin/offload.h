// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "plugin/torch_headers.h"

namespace stowage {

/// The operators of a tensor that leaves for host memory and comes back:
///
///     %h = stowage::offload(%x)       behind a use of %x: its storage is being copied
///     stowage::offloaded(%x, %h)      it has been: %x may die
///     %y = stowage::fetch(%h)         another tensor like it, into which its bytes are being copied
///     stowage::arrive(%y, %h)         they have been
///
/// On CUDA the copies run on two streams of their own, one each way; no call waits on the host. The host memory is
/// pinned, is allocated when the op first runs, and stays as long as the code of its graph. What a failing step leaves
/// under way, the stream that it was for waits for. On the CPU, where that
/// saves nothing and is for tests, copies are done when the call returns.
torch::jit::RegisterOperators register_offload_operators();

/// Whether a node is one of these. Nothing moves across them: copies are timed for what runs in between.
bool is_copy_point(const torch::jit::Node& node);

/// What the device's link to host memory carries in a second each way, measured once; 0 where it has none.
std::int64_t link_bytes_per_s(c10::Device device);

}  // namespace stowage
