// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "profiler/backend.h"

namespace stowage::profiler {

inline constexpr std::int64_t kNapNs = 2'000'000;

/// A backend to test: how to make it.
struct BackendCase {
  const char* name;
  std::unique_ptr<Backend> (*make)();
  const char* clock;
};

/// What every backend promises.
class BackendContract : public testing::TestWithParam<BackendCase> {
 protected:
  /// Runs ops one after the other, each a nap, and drains.
  profiler::Run nap(Backend& backend, std::int32_t op_count) {
    backend.start(op_count);
    for (std::int32_t op = 0; op < op_count; ++op) {
      backend.begin_op(op);
      std::this_thread::sleep_for(std::chrono::nanoseconds(kNapNs));
      backend.end_op(op);
    }
    backend.stop();
    return drain(backend, op_count);
  }

  profiler::Run drain(Backend& backend, std::int32_t op_count) {
    profiler::Run run;
    run.ops.resize(static_cast<std::size_t>(op_count));
    run.dropped_records = 99;
    backend.drain(run);
    return run;
  }
};

TEST_P(BackendContract, TimesEachOpWithinTheRun) {
  const auto backend = GetParam().make();
  const profiler::Run run = nap(*backend, 3);

  std::int64_t free_from_ns = 0;
  for (const OpRecord& op : run.ops) {
    EXPECT_GE(op.start_ns, free_from_ns);
    EXPECT_GE(op.duration_ns, kNapNs);
    free_from_ns = op.start_ns + op.duration_ns;
  }
  EXPECT_GE(run.duration_ns, free_from_ns);
}

TEST_P(BackendContract, NamesItsClockAndCountsDroppedRecords) {
  const auto backend = GetParam().make();
  const profiler::Run run = nap(*backend, 1);
  EXPECT_EQ(backend->clock(), GetParam().clock);
  EXPECT_EQ(run.clock, GetParam().clock);
  EXPECT_EQ(run.dropped_records, 0);
}

TEST_P(BackendContract, LeavesTheRestOfTheRunAlone) {
  const auto backend = GetParam().make();
  backend->start(1);
  backend->stop();
  profiler::Run run;
  run.name = "step";
  run.ops = {{.name = "h", .kind = "aten::relu", .scope = "net", .source = "net.py:1"}};
  profiler::Run expected = run;
  backend->drain(run);
  expected.clock = run.clock;
  expected.duration_ns = run.duration_ns;
  EXPECT_EQ(run, expected);
}

TEST_P(BackendContract, CountsFromTheStartOfEachRun) {
  const auto backend = GetParam().make();
  nap(*backend, 4);
  const profiler::Run second = nap(*backend, 1);
  EXPECT_LT(second.ops[0].start_ns, kNapNs);  // not after the first run's four naps
}

TEST_P(BackendContract, DiscardsARunThatWasNotDrained) {
  const auto backend = GetParam().make();
  backend->start(2);
  backend->begin_op(1);
  std::this_thread::sleep_for(std::chrono::nanoseconds(kNapNs));
  backend->end_op(1);

  backend->start(2);  // the step threw; the next begins
  backend->stop();
  const profiler::Run run = drain(*backend, 2);
  EXPECT_EQ(run.ops[1], OpRecord{});
}

TEST_P(BackendContract, MeasuresARunWithoutOps) {
  const auto backend = GetParam().make();
  const profiler::Run run = nap(*backend, 0);
  EXPECT_TRUE(run.ops.empty());
  EXPECT_GE(run.duration_ns, 0);
}

}  // namespace stowage::profiler
