// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti_buffers.h"

#include <algorithm>
#include <new>
#include <utility>

namespace stowage::profiler {

CuptiBuffers& CuptiBuffers::instance() {
  static CuptiBuffers* const kBuffers = new CuptiBuffers;  // CUPTI may give a buffer back while static objects die
  return *kBuffers;
}

bool CuptiBuffers::open() {
  const std::lock_guard lock(mutex_);
  if (recording_) return false;
  recording_ = true;
  ++recordings_;
  full_.clear();
  full_.reserve(kMaxBuffers);  // so that `take` allocates nothing
  return true;
}

CuptiBuffers::Left CuptiBuffers::close() {
  const std::lock_guard lock(mutex_);
  recording_ = false;
  const auto missing =
      std::ranges::count_if(given_, [&](const auto& given) { return given.second.recording == recordings_; });
  return {.full = std::exchange(full_, {}), .missing = missing};
}

void CUPTIAPI CuptiBuffers::request(std::uint8_t** buffer, std::size_t* size_bytes, std::size_t* max_records) {
  *buffer = instance().give();
  *size_bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI CuptiBuffers::complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                                     std::size_t valid_bytes) {
  instance().take(buffer, valid_bytes);
}

std::uint8_t* CuptiBuffers::give() {
  try {
    auto bytes = std::make_unique_for_overwrite<std::uint8_t[]>(kBufferBytes);
    const std::lock_guard lock(mutex_);
    if (given_.size() + full_.size() >= kMaxBuffers) return nullptr;
    std::uint8_t* const buffer = bytes.get();
    given_.emplace(buffer, Given{.bytes = std::move(bytes), .recording = recordings_});
    return buffer;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void CuptiBuffers::take(std::uint8_t* buffer, std::size_t valid_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = given_.find(buffer);
  if (found == given_.end()) return;
  if (recording_ && found->second.recording == recordings_) {
    full_.push_back({.bytes = std::move(found->second.bytes), .valid_bytes = std::min(valid_bytes, kBufferBytes)});
  }
  given_.erase(found);
}

}  // namespace stowage::profiler
