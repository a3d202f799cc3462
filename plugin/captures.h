// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugin/torch_headers.h"

namespace stowage {

/// Remembers the storages that only `outputs` hold, as the forward of a `prim::DifferentiableGraph` may have made them
/// just now: nothing else may be run between the region and this. Not where hooks pack what autograd saves.
/// Holds no memory: weak references alone. Thread safe.
void remember_outputs(const torch::jit::Stack& outputs);

/// The backward of a `prim::DifferentiableGraph` that this thread is running, or null.
torch::autograd::Node* running_backward();

/// Whether the backward `node` saved `captures` without hooks, so that it holds each tensor once, by itself. True only
/// where one of them was remembered while `node` was the newest of its thread: nobody but the forward's captures holds
/// it then, so the forward went on to capture it, in the thread's mode of that moment.
bool saved_without_hooks(const torch::autograd::Node& node, c10::ArrayRef<c10::IValue> captures);

}  // namespace stowage
