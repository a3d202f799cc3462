// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <vector>

#include "profiler/backend.h"

namespace stowage::profiler {
namespace {

using Clock = std::chrono::steady_clock;

class CpuBackend final : public Backend {
 public:
  std::string_view clock() const override { return "steady_clock"; }

  void start(std::int32_t op_count) override {
    // Filled beforehand, so that no op's time includes an allocation of ours.
    times_.assign(static_cast<std::size_t>(op_count), {});
    duration_ns_ = 0;
    start_ = Clock::now();
  }

  void begin_op(std::int32_t op) override { times_.at(static_cast<std::size_t>(op)).start_ns = elapsed_ns(); }

  void end_op(std::int32_t op) override {
    OpTime& time = times_.at(static_cast<std::size_t>(op));
    time.duration_ns = elapsed_ns() - time.start_ns;
  }

  void stop() override { duration_ns_ = elapsed_ns(); }

  void drain(Run& run) override {
    for (std::size_t op = 0; op < times_.size(); ++op) {
      run.ops.at(op).start_ns = times_[op].start_ns;
      run.ops.at(op).duration_ns = times_[op].duration_ns;
    }
    run.clock = clock();
    run.duration_ns = duration_ns_;
    run.dropped_records = 0;
  }

 private:
  struct OpTime {
    std::int64_t start_ns = 0;
    std::int64_t duration_ns = 0;
  };

  std::int64_t elapsed_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  }

  Clock::time_point start_;
  std::int64_t duration_ns_ = 0;
  std::vector<OpTime> times_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace stowage::profiler
