// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/cupti_clock.h"

#include <cmath>
#include <ctime>

#include "tests/drycuda/activity.h"

// The library also loads without the dry device.
#pragma weak drycuda_now_ns

namespace drycuda::cupti {
namespace {

std::uint64_t realtime_ns() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

std::uint64_t device_now_ns() { return drycuda_now_ns != nullptr ? drycuda_now_ns() : realtime_ns(); }

void Clock::set_callback(CUpti_TimestampCallbackFunc callback) {
  callback_ = callback;
  first_ = sample();
}

std::uint64_t Clock::now() const { return callback_ != nullptr ? callback_() : realtime_ns(); }

std::uint64_t Clock::timestamp(std::uint64_t device_ns) const {
  const Sample last = sample();
  double rate = 1;
  if (last.device_ns > first_.device_ns && last.timestamp > first_.timestamp) {
    rate =
        static_cast<double>(last.timestamp - first_.timestamp) / static_cast<double>(last.device_ns - first_.device_ns);
  }
  const double since_ns = static_cast<double>(static_cast<std::int64_t>(device_ns - last.device_ns));
  return last.timestamp + static_cast<std::uint64_t>(std::llround(since_ns * rate));
}

}  // namespace drycuda::cupti
