// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>
#include <sys/mman.h>

#include "tests/drycuda/control.h"
#include "tests/drycuda/report.h"

namespace drycuda {
namespace {

std::string range_text(std::uint64_t address, std::uint64_t size_bytes) {
  return fmt::format("[{:#x}, {:#x})", address, address + size_bytes);
}

}  // namespace

Memory::Memory() : space_(kSpaceBegin, kSpaceBytes) {
  auto* const begin = reinterpret_cast<void*>(kSpaceBegin);
  if (mmap(begin, kSpaceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) !=
      begin) {
    std::fprintf(stderr, "drycuda: cannot reserve 16 TiB of addresses at %p; lift the limit on virtual memory\n",
                 begin);
    std::abort();
  }
  for (Device& device : devices_) device.total_bytes = settings().total_bytes;
}

bool Memory::charge(int index, std::uint64_t size_bytes) {
  Device& device = devices_[index];
  if (device.used_bytes + size_bytes + settings().context_bytes > device.total_bytes) {
    count(Counter::kOutOfMemory);
    return false;
  }
  device.used_bytes += size_bytes;
  device.peak_bytes = std::max(device.peak_bytes, device.used_bytes);
  return true;
}

std::uint64_t Memory::allocate(int device, std::uint64_t size_bytes) {
  const std::uint64_t taken_bytes = round_up(size_bytes, kPageBytes);
  const std::lock_guard lock(mutex_);
  if (!charge(device, taken_bytes)) return 0;
  const std::uint64_t address = space_.take(taken_bytes, kPageBytes);
  if (address == 0) {
    devices_[device].used_bytes -= taken_bytes;
    return 0;
  }
  blocks_[address] = {device, size_bytes, taken_bytes};
  count(Counter::kDriverMallocs);
  return address;
}

std::optional<Block> Memory::free(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return std::nullopt;
  const Block block = found->second;
  blocks_.erase(found);
  devices_[block.device].used_bytes -= block.taken_bytes;
  space_.give(address);
  count(Counter::kDriverFrees);
  return block;
}

std::uint64_t Memory::reserve(std::uint64_t size_bytes, std::uint64_t alignment) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t taken_bytes = round_up(size_bytes, kPageBytes);
  const std::uint64_t address = space_.take(taken_bytes, std::max<std::uint64_t>(alignment, kPageBytes));
  if (address != 0) reservations_[address] = taken_bytes;
  return address;
}

bool Memory::unreserve(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != round_up(size_bytes, kPageBytes)) {
    report_violation(fmt::format("cuMemAddressFree of {}, which is no reservation", range_text(address, size_bytes)));
    return false;
  }
  if (const auto mapping = mappings_.lower_bound(address);
      mapping != mappings_.end() && mapping->first < address + size_bytes) {
    report_violation(fmt::format("cuMemAddressFree of {}, where memory is mapped", range_text(address, size_bytes)));
    return false;
  }
  reservations_.erase(found);
  space_.give(address);
  return true;
}

std::uint64_t Memory::create(int device, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (!charge(device, size_bytes)) return 0;
  count(Counter::kDriverMallocs);
  physical_[++last_handle_] = {.block = {device, size_bytes, size_bytes}};
  return last_handle_;
}

bool Memory::retain(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = physical_.find(handle);
  if (found == physical_.end()) return false;
  ++found->second.references;
  return true;
}

std::optional<Block> Memory::drop_if_unused(std::uint64_t handle) {
  const auto found = physical_.find(handle);
  if (found->second.references > 0 || found->second.mappings > 0) return std::nullopt;
  const Block block = found->second.block;
  physical_.erase(found);
  devices_[block.device].used_bytes -= block.taken_bytes;
  count(Counter::kDriverFrees);
  return block;
}

std::optional<Block> Memory::release(std::uint64_t handle, bool& known) {
  const std::lock_guard lock(mutex_);
  const auto found = physical_.find(handle);
  known = found != physical_.end() && found->second.references > 0;
  if (!known) {
    report_violation(fmt::format("cuMemRelease of handle {:#x}, which nobody holds", handle));
    return std::nullopt;
  }
  --found->second.references;
  return drop_if_unused(handle);
}

bool Memory::map(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto physical = physical_.find(handle);
  const auto reservation = reservations_.upper_bound(address);
  const auto next = mappings_.lower_bound(address + size_bytes);
  const char* wrong = nullptr;
  if (physical == physical_.end() || physical->second.block.size_bytes != size_bytes) {
    wrong = "which is not the size of its memory";
  } else if (reservation == reservations_.begin() ||
             std::prev(reservation)->first + std::prev(reservation)->second < address + size_bytes) {
    wrong = "which is not reserved";
  } else if (next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.size_bytes > address) {
    wrong = "where memory is mapped already";
  }
  if (wrong) {
    report_violation(fmt::format("cuMemMap to {}, {}", range_text(address, size_bytes), wrong));
    return false;
  }
  mappings_[address] = {size_bytes, handle};
  ++physical->second.mappings;
  return true;
}

bool Memory::is_mapped(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::uint64_t end = address + size_bytes;
  for (auto at = mappings_.find(address); at != mappings_.end() && at->first == address; ++at) {
    address += at->second.size_bytes;
    if (address >= end) return address == end;
  }
  return false;
}

bool Memory::unmap(std::uint64_t address, std::uint64_t size_bytes, std::map<std::uint64_t, Block>& gone) {
  const std::lock_guard lock(mutex_);
  if (!is_mapped(address, size_bytes)) {
    report_violation(fmt::format("cuMemUnmap of {}, which is not what was mapped", range_text(address, size_bytes)));
    return false;
  }
  const auto first = mappings_.find(address);
  const auto end = mappings_.lower_bound(address + size_bytes);
  for (auto mapping = first; mapping != end; ++mapping) {
    --physical_.at(mapping->second.handle).mappings;
    if (const auto block = drop_if_unused(mapping->second.handle)) gone[mapping->second.handle] = *block;
  }
  mappings_.erase(first, end);
  return true;
}

bool Memory::allow(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (is_mapped(address, size_bytes)) return true;
  report_violation(fmt::format("cuMemSetAccess to {}, which is not what was mapped", range_text(address, size_bytes)));
  return false;
}

std::optional<std::pair<std::uint64_t, Block>> Memory::find(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  if (auto next = blocks_.upper_bound(address); next != blocks_.begin()) {
    const auto& [begin, block] = *std::prev(next);
    if (address < begin + block.taken_bytes) return std::pair{begin, block};
  }
  if (auto next = mappings_.upper_bound(address); next != mappings_.begin()) {
    const auto& [begin, mapping] = *std::prev(next);
    if (address < begin + mapping.size_bytes) return std::pair{begin, physical_.at(mapping.handle).block};
  }
  return std::nullopt;
}

std::optional<Block> Memory::block_of(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = physical_.find(handle);
  return found == physical_.end() ? std::nullopt : std::optional(found->second.block);
}

MemoryInfo Memory::info(int index) {
  const std::lock_guard lock(mutex_);
  const Device& device = devices_[index];
  const std::uint64_t taken_bytes = device.used_bytes + settings().context_bytes;
  return {.used_bytes = device.used_bytes,
          .peak_bytes = device.peak_bytes,
          .free_bytes = device.total_bytes - std::min(device.total_bytes, taken_bytes),
          .total_bytes = device.total_bytes};
}

void Memory::reset_peak(int device) {
  const std::lock_guard lock(mutex_);
  devices_[device].peak_bytes = devices_[device].used_bytes;
}

void Memory::set_total(int device, std::uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  devices_[device].total_bytes = total_bytes;
}

Memory& memory() {
  static auto* const made = new Memory;
  return *made;
}

extern "C" {

std::uint64_t drycuda_used_bytes(int device) { return memory().info(device).used_bytes; }
std::uint64_t drycuda_peak_bytes(int device) { return memory().info(device).peak_bytes; }
void drycuda_reset_peak(int device) { memory().reset_peak(device); }
void drycuda_set_total_bytes(int device, std::uint64_t total_bytes) { memory().set_total(device, total_bytes); }

}  // extern "C"

}  // namespace drycuda
