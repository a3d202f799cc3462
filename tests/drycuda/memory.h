// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "tests/drycuda/address_space.h"
#include "tests/drycuda/settings.h"

namespace drycuda {

/// A piece of physical memory: what `cudaMalloc` or `cuMemCreate` charged to a device.
struct Block {
  int device;
  std::uint64_t size_bytes;  ///< as asked for
  std::uint64_t taken_bytes;
};

struct MemoryInfo {
  std::uint64_t used_bytes;
  std::uint64_t peak_bytes;
  std::uint64_t free_bytes;
  std::uint64_t total_bytes;
};

/// The memory of all devices: who has how much, and which address is on which device. Thread-safe.
class Memory {
 public:
  Memory();

  /// Physical memory with its address, as `cudaMalloc`; 0 if the device is full.
  std::uint64_t allocate(int device, std::uint64_t size_bytes);
  std::optional<Block> free(std::uint64_t address);

  /// Addresses without memory, as `cuMemAddressReserve`; 0 if there are none.
  std::uint64_t reserve(std::uint64_t size_bytes, std::uint64_t alignment);
  bool unreserve(std::uint64_t address, std::uint64_t size_bytes);
  /// Memory without addresses, as `cuMemCreate`; 0 if the device is full.
  std::uint64_t create(int device, std::uint64_t size_bytes);
  bool retain(std::uint64_t handle);
  /// Gives a reference up. The memory goes back, and is returned, once nobody holds it and it is mapped nowhere.
  std::optional<Block> release(std::uint64_t handle, bool& known);
  /// The three report what CUDA would reject as violations, and return false.
  bool map(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t handle);
  bool unmap(std::uint64_t address, std::uint64_t size_bytes, std::map<std::uint64_t, Block>& gone);
  bool allow(std::uint64_t address, std::uint64_t size_bytes);

  /// The start, size and device of the memory at an address, if there is any.
  std::optional<std::pair<std::uint64_t, Block>> find(std::uint64_t address);
  std::optional<Block> block_of(std::uint64_t handle);
  MemoryInfo info(int device);
  void reset_peak(int device);
  void set_total(int device, std::uint64_t total_bytes);

 private:
  struct Device {
    std::uint64_t used_bytes = 0;
    std::uint64_t peak_bytes = 0;
    std::uint64_t total_bytes = 0;
  };
  struct Physical {
    Block block;
    std::uint64_t references = 1;
    std::uint64_t mappings = 0;
  };
  struct Mapping {
    std::uint64_t size_bytes;
    std::uint64_t handle;
  };

  bool charge(int device, std::uint64_t size_bytes);
  std::optional<Block> drop_if_unused(std::uint64_t handle);
  bool is_mapped(std::uint64_t address, std::uint64_t size_bytes) const;

  std::mutex mutex_;
  AddressSpace space_;
  std::array<Device, kMaxDevices> devices_;
  std::map<std::uint64_t, Block> blocks_;
  std::map<std::uint64_t, std::uint64_t> reservations_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::unordered_map<std::uint64_t, Physical> physical_;
  std::uint64_t last_handle_ = 0x5d00'0000;
};

/// Made at first use and never destroyed: CUDA is called until the process ends.
Memory& memory();

}  // namespace drycuda
