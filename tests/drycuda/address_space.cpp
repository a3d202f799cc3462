// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/address_space.h"

#include <iterator>

#include "tests/drycuda/settings.h"

namespace drycuda {

std::uint64_t AddressSpace::take(std::uint64_t size_bytes, std::uint64_t alignment) {
  for (const auto& room : free_) {
    const auto [begin, room_bytes] = room;  // copies: the room goes
    const std::uint64_t address = round_up(begin, alignment);
    const std::uint64_t end = address + size_bytes;
    if (end > begin + room_bytes) continue;
    free_.erase(begin);
    if (address > begin) free_[begin] = address - begin;
    if (end < begin + room_bytes) free_[end] = begin + room_bytes - end;
    taken_[address] = size_bytes;
    return address;
  }
  return 0;
}

std::uint64_t AddressSpace::give(std::uint64_t address) {
  const auto found = taken_.find(address);
  if (found == taken_.end()) return 0;
  const std::uint64_t size_bytes = found->second;
  taken_.erase(found);
  auto room = free_.emplace(address, size_bytes).first;
  if (const auto next = std::next(room); next != free_.end() && next->first == address + size_bytes) {
    room->second += next->second;
    free_.erase(next);
  }
  if (room != free_.begin()) {
    if (const auto before = std::prev(room); before->first + before->second == room->first) {
      before->second += room->second;
      free_.erase(room);
    }
  }
  return size_bytes;
}

}  // namespace drycuda
