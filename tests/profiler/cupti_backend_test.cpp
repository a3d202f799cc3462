// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti_backend.h"

#include <stdexcept>
#include <utility>

#include <gmock/gmock.h>

#include "profiler/cupti_buffers.h"
#include "tests/profiler/backend_contract.h"
#include "tests/profiler/cupti_double.h"

namespace stowage::profiler {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;

constexpr char kMeanwhile[] = "; meanwhile the allocator's record gives them";

std::unique_ptr<Backend> make_backend(const TorchProfiler& torch_profiler = {}) {
  std::string why_not;
  auto backend = make_cupti_backend(cupti_double_api(), torch_profiler, why_not);
  EXPECT_EQ(why_not, "");
  return backend;
}

INSTANTIATE_TEST_SUITE_P(Cupti, BackendContract,
                         testing::Values(BackendCase{"Cupti",
                                                     [] {
                                                       cupti() = {};
                                                       return make_backend();
                                                     },
                                                     "cupti"}),
                         [](const auto& backend) { return backend.param.name; });

class CuptiBackendTest : public testing::Test {
 protected:
  CuptiBackendTest() { cupti() = {}; }
  ~CuptiBackendTest() override {
    EXPECT_THAT(cupti().ids, IsEmpty());
    EXPECT_FALSE(cupti().subscribed);
  }

  /// A run of `op_count` ops, in each of which `act(op)` is done.
  template <class Act>
  profiler::Run record(Backend& backend, std::int32_t op_count, Act act) {
    backend.start(op_count);
    for (std::int32_t op = 0; op < op_count; ++op) {
      backend.begin_op(op);
      act(op);
      backend.end_op(op);
    }
    backend.stop();
    return drain(backend, op_count);
  }

  profiler::Run drain(Backend& backend, std::int32_t op_count) {
    profiler::Run run;
    run.ops.resize(static_cast<std::size_t>(op_count));
    backend.drain(run);
    return run;
  }
};

TEST_F(CuptiBackendTest, TiesWhatTheDeviceDidToOps) {
  const auto backend = make_backend();
  backend->start(2);
  cupti().allocate(0x1000, 8);  // before the first op
  backend->begin_op(1);
  cupti().allocate(0x2000, 512);
  cupti().launch("gemm");
  backend->end_op(1);
  backend->begin_op(0);
  cupti().launch("add");
  cupti().record(copy_record(cupti().call(), CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, 64));
  backend->end_op(0);
  backend->stop();

  const profiler::Run run = drain(*backend, 2);
  EXPECT_THAT(run.device_memory, ElementsAre(Field(&DeviceMemoryRecord::op, kNone), Field(&DeviceMemoryRecord::op, 1)));
  EXPECT_EQ(run.device_memory[1].size_bytes, 512);
  EXPECT_THAT(run.kernels, ElementsAre(Field(&KernelRecord::name, "gemm"), Field(&KernelRecord::name, "add")));
  EXPECT_EQ(run.kernels[0].op, 1);
  EXPECT_EQ(run.kernels[1].op, 0);
  EXPECT_THAT(run.copies, ElementsAre(Field(&CopyRecord::op, 0)));
  EXPECT_EQ(run.dropped_records, 0);
  EXPECT_EQ(run.clock, "cupti");
  for (const KernelRecord& kernel : run.kernels) {  // on the clock of the op's own time, up to what starting takes
    const OpRecord& op = run.ops.at(static_cast<std::size_t>(kernel.op));
    EXPECT_NEAR(static_cast<double>(kernel.start_ns), static_cast<double>(op.start_ns), 50e6);
    EXPECT_GE(kernel.start_ns, 0);
  }
}

TEST_F(CuptiBackendTest, SetsClockAndBuffersBeforeItEnablesAndUndoesAllOfIt) {
  const auto backend = make_backend();
  EXPECT_EQ(std::exchange(cupti().calls, {}), (std::vector<std::string>{"subscribe", "unsubscribe"}));
  for (int run = 0; run < 2; ++run) {  // each time: another profiler may have set its own
    record(*backend, 1, [](std::int32_t) { EXPECT_FALSE(cupti().subscribed); });
    EXPECT_EQ(std::exchange(cupti().calls, {}),
              (std::vector<std::string>{"clock",     "buffers",    "enable 49",  "enable 22",  "enable 10",
                                        "enable 1",  "enable 2",   "enable 39",  "enable 5",   "enable 4",
                                        "timestamp", "disable 49", "disable 22", "disable 10", "disable 1",
                                        "disable 2", "disable 39", "disable 5",  "disable 4",  "flush 1"}));
    EXPECT_THAT(cupti().enabled, IsEmpty());
  }
}

// --- where CUPTI cannot be used -----------------------------------------------------------------------------------

std::string obstacle(const TorchProfiler& torch_profiler = {}) {
  std::string why_not;
  EXPECT_EQ(make_cupti_backend(cupti_double_api(), torch_profiler, why_not), nullptr);
  EXPECT_THAT(cupti().enabled, IsEmpty());
  return why_not;
}

TEST_F(CuptiBackendTest, SaysWhoHoldsCuptiAndHowToMendIt) {
  cupti().refusals["subscribe"] = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  EXPECT_EQ(obstacle(), std::string("cannot take sizes from CUPTI: cuptiSubscribe: CUPTI_ERROR_NAMED (39): another "
                                    "profiler (torch.profiler, Nsight) holds it; stop that") +
                            kMeanwhile);
  cupti().refusals["subscribe"] = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  EXPECT_EQ(obstacle(), std::string("cannot take sizes from CUPTI: cuptiSubscribe: CUPTI_ERROR_NAMED (35): the driver "
                                    "lets only administrators profile; load it with "
                                    "NVreg_RestrictProfilingToAdminUsers=0, or run as root or with CAP_SYS_ADMIN") +
                            kMeanwhile);
  cupti().refusals["subscribe"] = CUPTI_ERROR_UNKNOWN;
  EXPECT_EQ(obstacle(), std::string("cannot take sizes from CUPTI: cuptiSubscribe: CUPTI_ERROR_UNKNOWN (999); check "
                                    "that the driver and torch are of one CUDA version") +
                            kMeanwhile);
}

TEST_F(CuptiBackendTest, RefusesAnotherMajorVersion) {
  cupti().version = 27;
  EXPECT_EQ(obstacle(), "cannot take sizes from CUPTI: its version is 27, this build knows " +
                            std::to_string(CUPTI_API_VERSION) + "; build stowage against the torch that runs it" +
                            kMeanwhile);
  EXPECT_THAT(cupti().calls, IsEmpty());
}

TEST_F(CuptiBackendTest, DoesNotLoadCuptiItself) {
  std::string why_not;
  EXPECT_EQ(make_cupti_backend(TorchProfiler{}, why_not), nullptr);  // torch is not in this process
  EXPECT_EQ(why_not, "cannot take sizes from CUPTI: libcupti.so." + std::to_string(CUPTI_API_VERSION / 10'000) +
                         " is not loaded; build stowage against the torch that runs it" + kMeanwhile);
}

TEST_F(CuptiBackendTest, AnIdleTorchProfilerIsNoObstacle) {
  cupti().refusals["subscribe"] = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  const auto backend = make_backend({.is_subscribed = [] { return true; }, .is_recording = {}});
  EXPECT_EQ(record(*backend, 1, [](std::int32_t) { cupti().launch("k"); }).kernels.size(), 1U);
  EXPECT_NE(obstacle({.is_subscribed = [] { return false; }, .is_recording = {}}), "");
}

/// A run that CUPTI does not record has its op times all the same.
void expect_host_times_alone(const Backend& backend, const profiler::Run& run) {
  EXPECT_EQ(run.clock, "steady_clock");
  EXPECT_EQ(backend.clock(), "steady_clock");
  EXPECT_GT(run.duration_ns, 0);
  EXPECT_GE(run.ops.at(0).duration_ns, 0);
  EXPECT_THAT(run.kernels, IsEmpty());
  EXPECT_EQ(run.dropped_records, 0);
  EXPECT_THAT(cupti().enabled, IsEmpty());
}

TEST_F(CuptiBackendTest, ARefusalAtTheStartLeavesTimesFromTheHost) {
  const auto backend = make_backend();
  for (const char* call : {"clock", "buffers", "enable 49", "enable 10", "enable 4", "timestamp"}) {
    cupti().refusals = {{call, CUPTI_ERROR_UNKNOWN}};
    expect_host_times_alone(*backend, record(*backend, 1, [](std::int32_t) { EXPECT_THAT(cupti().ids, IsEmpty()); }));
    EXPECT_THAT(backend->why_not(), testing::HasSubstr("CUPTI_ERROR_UNKNOWN (999)")) << call;
  }
  EXPECT_EQ(backend->why_not(), std::string("cannot take sizes from CUPTI: cuptiGetTimestamp: CUPTI_ERROR_UNKNOWN "
                                            "(999); check that the driver and torch are of one CUDA version") +
                                    kMeanwhile);
  cupti().refusals.clear();
  EXPECT_EQ(record(*backend, 1, [](std::int32_t) { cupti().launch("k"); }).kernels.size(), 1U);
  EXPECT_EQ(backend->why_not(), "");
}

TEST_F(CuptiBackendTest, LeavesARecordingTorchProfilerAlone) {
  bool recording = true;
  const auto backend = make_backend({.is_subscribed = {}, .is_recording = [&] { return recording; }});
  cupti().calls.clear();
  expect_host_times_alone(*backend, record(*backend, 1, [](std::int32_t) {}));
  EXPECT_THAT(cupti().calls, IsEmpty());
  EXPECT_EQ(backend->why_not(),
            std::string("cannot take sizes from CUPTI: torch.profiler is recording; end its block first") + kMeanwhile);

  // It begins during a run: the run is lossy, and what it records stays enabled.
  recording = false;
  const profiler::Run run = record(*backend, 1, [&](std::int32_t) { recording = true; });
  EXPECT_GT(run.dropped_records, 0);
  EXPECT_THAT(cupti().enabled, ElementsAre(1, 2, 4, 5, 10, 39));
  EXPECT_EQ(cupti().calls.back(), "flush 1");  // or CUPTI would go on filling our buffer with its records
}

TEST_F(CuptiBackendTest, OneRunIsRecordedAtATime) {
  const auto first = make_backend();
  const auto second = make_backend();
  first->start(1);
  second->start(1);
  EXPECT_EQ(second->why_not(), std::string("cannot take sizes from CUPTI: another run is being recorded; profile one "
                                           "step at a time") +
                                   kMeanwhile);
  second->stop();
  EXPECT_THAT(cupti().enabled, testing::SizeIs(8));  // the first's
  first->begin_op(0);
  cupti().launch("k");
  first->end_op(0);
  first->stop();
  EXPECT_EQ(drain(*first, 1).kernels.size(), 1U);
}

// --- what is lost is counted --------------------------------------------------------------------------------------

TEST_F(CuptiBackendTest, CountsDroppedRecordsOfThisRunAlone) {
  const auto backend = make_backend();
  cupti().dropped = 5;  // another client's
  EXPECT_EQ(record(*backend, 1, [](std::int32_t) { cupti().dropped += 3; }).dropped_records, 3);
  EXPECT_EQ(record(*backend, 1, [](std::int32_t) {}).dropped_records, 0);
}

TEST_F(CuptiBackendTest, CountsDamagedAndMissingBuffersAndOpsWithoutId) {
  const auto backend = make_backend();
  const auto cut_short = [](std::int32_t) {
    cupti().launch("k");
    cupti().used_bytes -= 8;
  };
  EXPECT_EQ(record(*backend, 1, cut_short).dropped_records, 1);

  std::uint8_t* kept = nullptr;
  const auto keep = [&](std::int32_t) {
    cupti().launch("k");
    kept = std::exchange(cupti().buffer, nullptr);
  };
  const profiler::Run run = record(*backend, 1, keep);
  EXPECT_EQ(run.dropped_records, 1);
  EXPECT_THAT(run.kernels, IsEmpty());

  // It comes back during the next run, which it tells nothing of.
  const auto late = [&](std::int32_t) { cupti().complete(nullptr, 0, kept, CuptiBuffers::kBufferBytes, 512); };
  const profiler::Run next = record(*backend, 1, late);
  EXPECT_EQ(next.dropped_records, 0);
  EXPECT_THAT(next.kernels, IsEmpty());

  cupti().refusals["push"] = CUPTI_ERROR_UNKNOWN;
  EXPECT_EQ(record(*backend, 2, [](std::int32_t) {}).dropped_records, 2);
  cupti().refusals = {{"flush 1", CUPTI_ERROR_UNKNOWN}};
  EXPECT_EQ(record(*backend, 1, [](std::int32_t) {}).dropped_records, 1);
}

TEST_F(CuptiBackendTest, AnOpThatThrowsLeavesNoId) {
  auto backend = make_backend();
  backend->start(2);
  backend->begin_op(0);
  backend->begin_op(1);  // both threw
  EXPECT_EQ(cupti().ids.size(), 2U);
  const profiler::Run run = record(*backend, 1, [](std::int32_t) { EXPECT_EQ(cupti().ids.size(), 1U); });
  EXPECT_EQ(run.dropped_records, 0);

  backend->start(1);
  backend->begin_op(0);
  backend.reset();
  EXPECT_THAT(cupti().enabled, IsEmpty());
}

TEST_F(CuptiBackendTest, IdsOfOneRunNameNoOpOfAnother) {
  const auto backend = make_backend();
  std::vector<std::uint64_t> ids;
  const auto note = [&](std::int32_t) { ids.push_back(cupti().ids.at(0)); };
  record(*backend, 2, note);
  record(*backend, 1, note);
  EXPECT_EQ(ids[1], ids[0] + 1);
  EXPECT_EQ(ids[2], ids[0] + 2);
}

}  // namespace
}  // namespace stowage::profiler
