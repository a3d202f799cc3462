// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <cupti.h>

namespace drycuda::cupti {

/// The client's buffers: requested when a record needs room, given back when full or flushed and all that they hold is
/// complete. Calls the client from within; the caller holds the library's lock, which is recursive, as the client may
/// call back.
class Buffers {
 public:
  void set_callbacks(CUpti_BuffersCallbackRequestFunc on_request, CUpti_BuffersCallbackCompleteFunc on_complete);
  bool has_callbacks() const { return request_ != nullptr; }
  /// Whether a new buffer is cleared before it is filled.
  void clear_new(bool clear) { clear_new_ = clear; }

  /// Appends to the buffer of `queue`; the record is complete once the device's clock has passed `complete_ns`.
  /// Counts the record as dropped where the client gives no buffer that has room for it.
  void append(std::uint64_t queue, const void* record, std::size_t size_bytes, std::uint64_t complete_ns);
  /// Gives back what is complete, full or not; all of it if `forced`.
  void flush(bool forced);
  /// The next `count` records are dropped.
  void drop_next(std::uint64_t count) { drop_next_ = count; }
  /// Records dropped since the last call.
  std::uint64_t take_dropped();
  std::size_t held() const { return open_.size() + full_.size(); }

 private:
  struct Buffer {
    std::uint8_t* data = nullptr;
    std::size_t size_bytes = 0;
    std::size_t used_bytes = 0;
    std::size_t records = 0;
    std::size_t max_records = 0;  ///< 0: as many as fit
    std::uint64_t complete_ns = 0;

    bool has_room(std::size_t bytes) const {
      return data != nullptr && used_bytes + bytes <= size_bytes && (max_records == 0 || records < max_records);
    }
  };

  Buffer request() const;
  void give_back_full(bool forced);

  CUpti_BuffersCallbackRequestFunc request_ = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete_ = nullptr;
  bool clear_new_ = true;
  std::map<std::uint64_t, Buffer> open_;
  std::vector<Buffer> full_;  ///< awaiting completion of what they hold
  std::uint64_t drop_next_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace drycuda::cupti
