// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/planned_allocator.h"
#include "plugin/torch_headers.h"

namespace stowage {

/// The planned allocator of the CPU or of a CUDA device. Lives forever: tensors hold its deleter.
PlannedAllocator& allocator_of(c10::Device device);

/// Why nothing is planned there, in one line; empty if something may be.
std::string why_unplanned(c10::Device device);

/// CUDA's current device if CUDA is in use, else the CPU; the former in any case if asked for.
c10::Device default_device(c10::DeviceType type = c10::kCPU);

/// That of the CPU, and those of CUDA devices that `allocator_of` has made so far.
std::vector<PlannedAllocator*> all_allocators();

/// Makes PyTorch allocate through the planned allocators, also where it has allocated already. What cannot be had is
/// told in a note.
void install_allocators();

/// What tells the device from another: its name, and what kernels are chosen by.
std::string describe(c10::Device device);

/// Waits until the device has done all that it was given. Not while a CUDA graph is captured: that would break it.
void synchronize(c10::Device device);

/// PyTorch's alignment of the device's memory, which is that of slots.
std::int64_t alignment_bytes(c10::Device device);

/// `size_bytes` rounded up to that.
constexpr std::int64_t round_up(std::int64_t size_bytes, std::int64_t alignment_bytes) {
  return (size_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

}  // namespace stowage
