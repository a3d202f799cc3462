// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cupti.h>

namespace drycuda::cupti {

/// Time on the dry device's clock, in ns; CLOCK_REALTIME where there is no dry device.
std::uint64_t device_now_ns();

/// The timestamps of records: CLOCK_REALTIME in ns, or whatever the client's callback counts in.
class Clock {
 public:
  /// Null: CLOCK_REALTIME.
  void set_callback(CUpti_TimestampCallbackFunc callback);
  std::uint64_t now() const;
  /// The timestamp of a time on the device's clock, interpolated linearly between now and when the clock was chosen.
  std::uint64_t timestamp(std::uint64_t device_ns) const;

 private:
  struct Sample {
    std::uint64_t device_ns = 0;
    std::uint64_t timestamp = 0;
  };
  Sample sample() const { return {device_now_ns(), now()}; }

  CUpti_TimestampCallbackFunc callback_ = nullptr;
  Sample first_ = sample();
};

}  // namespace drycuda::cupti
