// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plugin/planned_allocator.h"

namespace stowage {

/// The planned allocator of a CUDA device, over the caching allocator that PyTorch had when this was first called.
/// Lives forever: tensors hold its deleter. From any thread.
PlannedAllocator& cuda_allocator(int device);

/// How many of those there are: of devices 0, 1, ...
int cuda_allocator_count();

/// Makes PyTorch allocate CUDA memory through `cuda_allocator()`, whether CUDA is in use already or not. Does nothing
/// if it does already. Returns why CUDA memory is not planned, in one line; empty if it is.
///
/// For good: outside planned runs everything is handed on, and tensors that hold our deleter outlive any run. PyTorch's
/// own allocator would take them for strangers, and ignore the streams that they are recorded on.
std::string install_cuda_allocator();

/// Why CUDA memory is not planned now, in one line; empty if it is.
std::string why_no_cuda_allocator();

}  // namespace stowage
