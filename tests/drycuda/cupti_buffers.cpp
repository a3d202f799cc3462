// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/cupti_buffers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/drycuda/cupti_clock.h"

namespace drycuda::cupti {

void Buffers::set_callbacks(CUpti_BuffersCallbackRequestFunc on_request,
                            CUpti_BuffersCallbackCompleteFunc on_complete) {
  request_ = on_request;
  complete_ = on_complete;
}

Buffers::Buffer Buffers::request() const {
  Buffer buffer;
  if (request_ != nullptr) request_(&buffer.data, &buffer.size_bytes, &buffer.max_records);
  if (buffer.data != nullptr && clear_new_) std::memset(buffer.data, 0, buffer.size_bytes);
  return buffer;
}

void Buffers::append(std::uint64_t queue, const void* record, std::size_t size_bytes, std::uint64_t complete_ns) {
  if (drop_next_ > 0) {
    --drop_next_;
    ++dropped_;
    return;
  }
  if (const auto old = open_.find(queue); old != open_.end() && !old->second.has_room(size_bytes)) {
    full_.push_back(old->second);
    open_.erase(old);
  }
  if (!open_.contains(queue)) {
    if (const Buffer fresh = request(); fresh.has_room(size_bytes)) {
      open_.emplace(queue, fresh);
    } else {
      ++dropped_;
      if (fresh.data != nullptr) full_.push_back(fresh);
    }
  }
  if (const auto found = open_.find(queue); found != open_.end()) {
    Buffer& buffer = found->second;
    std::memcpy(buffer.data + buffer.used_bytes, record, size_bytes);
    buffer.used_bytes += size_bytes;
    ++buffer.records;
    buffer.complete_ns = std::max(buffer.complete_ns, complete_ns);
    if (buffer.max_records == buffer.records) {
      full_.push_back(buffer);
      open_.erase(found);
    }
  }
  give_back_full(false);
}

void Buffers::flush(bool forced) {
  const std::uint64_t now_ns = device_now_ns();
  std::erase_if(open_, [&](const auto& open) {
    if (!forced && open.second.complete_ns > now_ns) return false;
    full_.push_back(open.second);
    return true;
  });
  give_back_full(forced);
}

void Buffers::give_back_full(bool forced) {
  const std::uint64_t now_ns = device_now_ns();
  const auto first_ready = std::stable_partition(
      full_.begin(), full_.end(), [&](const Buffer& buffer) { return !forced && buffer.complete_ns > now_ns; });
  const std::vector<Buffer> ready(first_ready, full_.end());
  full_.erase(first_ready, full_.end());
  // The client may call back, and so change what is held and who is called.
  const auto complete = complete_;
  for (const Buffer& buffer : ready) complete(nullptr, 0, buffer.data, buffer.size_bytes, buffer.used_bytes);
}

std::uint64_t Buffers::take_dropped() { return std::exchange(dropped_, 0); }

}  // namespace drycuda::cupti
