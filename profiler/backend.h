// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "profiler/record.h"

namespace stowage::profiler {

/// Measures when ops run. One run at a time; all calls from the thread that runs the ops.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Name of the clock that the run's times are read from.
  virtual std::string_view clock() const = 0;

  /// A run with `op_count` ops begins. Discards a run that was not drained.
  virtual void start(std::int32_t op_count) = 0;
  /// Op `op` is about to run.
  virtual void begin_op(std::int32_t op) = 0;
  virtual void end_op(std::int32_t op) = 0;
  /// The run is over; what was measured may still be in flight.
  virtual void stop() = 0;

  /// Writes the times of each op on the host, the clock, the duration and the count of dropped records into `run`,
  /// whose `ops` has `op_count` entries; and what the device did, where this backend records that.
  virtual void drain(Run& run) = 0;

  /// Why the run that began last is recorded without what this backend is for, and how to mend it; empty if it is not.
  virtual std::string why_not() const { return {}; }
};

/// Wall-clock times from `std::chrono::steady_clock`. Drops nothing.
std::unique_ptr<Backend> make_cpu_backend();

}  // namespace stowage::profiler
