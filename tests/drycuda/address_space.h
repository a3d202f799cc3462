// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace drycuda {

/// Where device memory is: one range of addresses for all devices, of which the host may touch none.
inline constexpr std::uint64_t kSpaceBegin = 0x2000'0000'0000;
inline constexpr std::uint64_t kSpaceBytes = std::uint64_t{16} << 40;

inline bool is_device_address(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer) - kSpaceBegin < kSpaceBytes;
}

/// Gives out addresses, the lowest that fit first, so that every run of a program sees the same ones. Not thread-safe.
class AddressSpace {
 public:
  AddressSpace(std::uint64_t begin, std::uint64_t size_bytes) { free_[begin] = size_bytes; }

  /// 0 if there is no room.
  std::uint64_t take(std::uint64_t size_bytes, std::uint64_t alignment);
  /// Takes back all of what `take` gave at `address`; 0 if it gave nothing there, else the size.
  std::uint64_t give(std::uint64_t address);

 private:
  std::map<std::uint64_t, std::uint64_t> free_;
  std::map<std::uint64_t, std::uint64_t> taken_;
};

}  // namespace drycuda
