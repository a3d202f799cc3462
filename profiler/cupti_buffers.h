// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <cupti.h>

namespace stowage::profiler {

/// The memory that CUPTI fills. CUPTI has one pair of callbacks in the process, and gives them no context, so there is
/// one of these. CUPTI calls them from threads of its own and holds locks then; so the lock here is never held over a
/// call of CUPTI.
class CuptiBuffers {
 public:
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxBuffers = 128;  ///< beyond them CUPTI drops records, and counts them

  struct Full {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t valid_bytes = 0;
  };

  /// What a recording left.
  struct Left {
    std::vector<Full> full;
    std::int64_t missing = 0;  ///< buffers that CUPTI did not give back, or that could not be kept
  };

  /// Lives until the process ends, even while that exits.
  static CuptiBuffers& instance();

  /// A recording begins; false while there is one.
  bool open();
  /// It ends. What CUPTI gives back later is thrown away.
  Left close();

  /// For `cuptiActivityRegisterCallbacks`. Never throw. A buffer that is not ours is left alone.
  static void CUPTIAPI request(std::uint8_t** buffer, std::size_t* size_bytes, std::size_t* max_records);
  static void CUPTIAPI complete(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size_bytes,
                                std::size_t valid_bytes);

 private:
  struct Given {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::uint64_t recording = 0;  ///< during which it was given
  };

  std::uint8_t* give();
  void take(std::uint8_t* buffer, std::size_t valid_bytes);

  std::mutex mutex_;
  bool recording_ = false;
  std::uint64_t recordings_ = 0;
  std::unordered_map<std::uint8_t*, Given> given_;
  std::vector<Full> full_;
};

}  // namespace stowage::profiler
