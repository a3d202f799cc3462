// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugin/planned_allocator.h"

namespace stowage {

/// The CPU's planned allocator, over the allocator that PyTorch had when this was first called. Lives forever:
/// tensors hold its deleter.
PlannedAllocator& cpu_allocator();

/// Makes PyTorch allocate CPU memory through `cpu_allocator()`; does nothing if it does already.
/// Throws `c10::Error` if the allocator beneath has no raw deleter, which ours must forward to.
void install_cpu_allocator();

/// Gives PyTorch its former allocator back; blocks that are still live go on to be freed through ours.
void remove_cpu_allocator();

}  // namespace stowage
