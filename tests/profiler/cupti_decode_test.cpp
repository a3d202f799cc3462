// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti_decode.h"

#include <limits>
#include <random>

#include <gmock/gmock.h>

#include "tests/profiler/cupti_records.h"

namespace stowage::profiler {
namespace {

using MemoryKind = DeviceMemoryRecord::Kind;

constexpr auto kAllocation = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION;
constexpr auto kRelease = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;

CUpti_ActivityMemset4 set_record(std::uint32_t correlation) {
  CUpti_ActivityMemset4 record{};
  record.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  record.correlationId = correlation;
  record.bytes = 64;
  record.start = 1'020;
  record.end = 1'021;
  record.streamId = 8;
  return record;
}

CUpti_ActivityMemcpyPtoP4 peer_record(std::uint32_t correlation) {
  CUpti_ActivityMemcpyPtoP4 record{};
  record.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
  record.correlationId = correlation;
  record.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
  record.bytes = 32;
  record.start = 1'030;
  record.end = 1'032;
  record.streamId = 9;
  return record;
}

TEST(Decode, ReadsEachKind) {
  CUpti_ActivityKernel10 serial = kernel_record(2, nullptr, 1, 2);
  serial.kind = CUPTI_ACTIVITY_KIND_KERNEL;
  RecordBytes buffer(id_record(1, 40), api_record(1), kernel_record(1, "gemm", 1'000, 1'009), serial,
                     copy_record(3, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, 128), peer_record(4), set_record(5),
                     memory_record(6, kAllocation, 0x7000, 512, 1'001), memory_record(7, kRelease, 0x7000, 512, 1'002));
  CuptiRecords expected;
  expected.op_ids = {{.correlation = 1, .id = 40}};
  expected.kernels = {{.correlation = 1, .name = "gemm", .start_ns = 1'000, .end_ns = 1'009, .stream = 7},
                      {.correlation = 2, .name = "", .start_ns = 1, .end_ns = 2, .stream = 7}};
  expected.copies = {
      {.correlation = 3,
       .kind = CopyKind::kHostToDevice,
       .size_bytes = 128,
       .start_ns = 1'010,
       .end_ns = 1'015,
       .stream = 7},
      {.correlation = 4,
       .kind = CopyKind::kPeerToPeer,
       .size_bytes = 32,
       .start_ns = 1'030,
       .end_ns = 1'032,
       .stream = 9},
      {.correlation = 5, .kind = CopyKind::kSet, .size_bytes = 64, .start_ns = 1'020, .end_ns = 1'021, .stream = 8}};
  expected.memory = {
      {.correlation = 6, .kind = MemoryKind::kAllocate, .address = 0x7000, .size_bytes = 512, .time_ns = 1'001},
      {.correlation = 7, .kind = MemoryKind::kFree, .address = 0x7000, .size_bytes = 512, .time_ns = 1'002}};
  expected.skipped = 1;  // the API call
  EXPECT_EQ(buffer.decoded(), expected);
}

TEST(Decode, TellsCopiesApart) {
  const std::pair<CUpti_ActivityMemcpyKind, CopyKind> cases[] = {
      {CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, CopyKind::kHostToDevice},
      {CUPTI_ACTIVITY_MEMCPY_KIND_HTOA, CopyKind::kHostToDevice},
      {CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, CopyKind::kDeviceToHost},
      {CUPTI_ACTIVITY_MEMCPY_KIND_ATOH, CopyKind::kDeviceToHost},
      {CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, CopyKind::kDeviceToDevice},
      {CUPTI_ACTIVITY_MEMCPY_KIND_ATOD, CopyKind::kDeviceToDevice},
      {CUPTI_ACTIVITY_MEMCPY_KIND_PTOP, CopyKind::kPeerToPeer},
      {CUPTI_ACTIVITY_MEMCPY_KIND_HTOH, CopyKind::kOther},
      {CUPTI_ACTIVITY_MEMCPY_KIND_UNKNOWN, CopyKind::kOther},
  };
  for (const auto& [recorded, expected] : cases) {
    EXPECT_EQ(RecordBytes(copy_record(1, recorded, 8)).decoded().copies.at(0).kind, expected) << recorded;
  }
}

TEST(Decode, AppendsBufferAfterBuffer) {
  CuptiRecords records;
  for (const char* name : {"a", "b"}) {
    RecordBytes buffer(kernel_record(1, name, 1, 2));
    decode(buffer.bytes().data(), buffer.bytes().size(), next_by_kind, records);
  }
  ASSERT_EQ(records.kernels.size(), 2U);
  EXPECT_EQ(records.kernels[1].name, "b");
  EXPECT_EQ(records.damaged_buffers, 0);
}

TEST(Decode, ReadsNothingOfAnEmptyBuffer) {
  CuptiRecords records;
  decode(
      nullptr, 0,
      [](std::uint8_t*, std::size_t, CUpti_Activity**) {
        ADD_FAILURE();
        return CUPTI_SUCCESS;
      },
      records);
  EXPECT_EQ(records, CuptiRecords{});
}

TEST(Decode, CountsWhatIsNotOurs) {
  CUpti_ActivityMemory4 pinned = memory_record(1, kAllocation, 0x7000, 512, 1);
  pinned.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
  const CUpti_ActivityMemory4 neither = memory_record(1, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_INVALID, 0x7000, 512, 1);
  RecordBytes buffer(api_record(1), pinned, neither, id_record(1, 40, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0));
  CuptiRecords expected;
  expected.skipped = 4;
  EXPECT_EQ(buffer.decoded(), expected);
}

TEST(Decode, StopsAtARecordThatIsCutShort) {
  const auto first = kernel_record(1, "gemm", 1'000, 1'009);
  const auto check = [&](const auto& last) {
    for (std::size_t kept = 1; kept < sizeof(last); ++kept) {
      RecordBytes buffer(first, last);
      // Of the exact size, so that the address sanitizer sees what lies behind it.
      const std::vector<std::uint8_t> cut(buffer.bytes().begin(),
                                          buffer.bytes().begin() + static_cast<std::ptrdiff_t>(sizeof(first) + kept));
      buffer.bytes() = cut;
      CuptiRecords expected = RecordBytes(first).decoded();
      expected.damaged_buffers = 1;
      ASSERT_EQ(buffer.decoded(), expected) << kept;
    }
  };
  check(kernel_record(2, "late", 1, 2));
  check(copy_record(2, CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, 8));
  check(peer_record(2));
  check(set_record(2));
  check(memory_record(2, kAllocation, 0x7000, 512, 1));
  check(id_record(2, 41));
}

TEST(Decode, StopsAtAKindThatCuptiDoesNotKnow) {
  for (const int kind : {0, 9'999}) {
    auto wrong = kernel_record(2, "wrong", 1, 2);
    wrong.kind = static_cast<CUpti_ActivityKind>(kind);
    CuptiRecords expected = RecordBytes(id_record(1, 40)).decoded();
    expected.damaged_buffers = 1;
    EXPECT_EQ(RecordBytes(id_record(1, 40), wrong, kernel_record(3, "lost", 1, 2)).decoded(), expected);
  }
}

TEST(Decode, TrustsNoStep) {
  const auto check = [](NextRecord next, std::size_t kernels) {
    const CuptiRecords records = RecordBytes(kernel_record(1, "a", 1, 2), kernel_record(2, "b", 1, 2)).decoded(next);
    EXPECT_EQ(records.kernels.size(), kernels);
    EXPECT_EQ(records.damaged_buffers, 1);
  };
  using Step = CUpti_Activity**;
  const auto to = [](std::uint8_t* at, Step record) {
    *record = reinterpret_cast<CUpti_Activity*>(at);
    return CUPTI_SUCCESS;
  };
  static auto move = to;
  check([](std::uint8_t* buffer, std::size_t, Step record) { return move(buffer, record); }, 1);  // stays
  check([](std::uint8_t* buffer, std::size_t, Step record) { return move(buffer - 8, record); }, 0);
  check([](std::uint8_t* buffer, std::size_t bytes, Step record) { return move(buffer + bytes, record); }, 0);
  check([](std::uint8_t* buffer, std::size_t, Step record) { return move(buffer + 4, record); }, 0);  // not aligned
  check([](std::uint8_t*, std::size_t, Step) { return CUPTI_SUCCESS; }, 0);                           // says nothing
  check([](std::uint8_t*, std::size_t, Step) { return CUPTI_ERROR_UNKNOWN; }, 0);
}

// Whatever bytes are wrong, decoding ends, and what it found resolves.
TEST(Decode, AnyByteMayBeWrong) {
  const auto seed = static_cast<std::uint32_t>(testing::UnitTest::GetInstance()->random_seed() + 1);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  RecordBytes whole(id_record(1, 40), copy_record(3, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, 128), peer_record(4),
                    set_record(5), memory_record(6, kAllocation, 0x7000, 512, 1'001), api_record(7));
  std::int64_t damaged = 0;
  for (int round = 0; round < 2'000; ++round) {
    RecordBytes buffer = whole;
    for (int flips = 0; flips < 3; ++flips) {
      buffer.bytes()[random() % buffer.bytes().size()] = static_cast<std::uint8_t>(random());
    }
    if (round % 4 == 0) buffer.bytes().resize(random() % buffer.bytes().size());
    buffer.bytes().shrink_to_fit();
    CuptiRecords records = buffer.decoded([](std::uint8_t* bytes, std::size_t valid_bytes, CUpti_Activity** record) {
      const CUptiResult result = next_by_kind(bytes, valid_bytes, record);
      // A kernel would have a name at any address.
      const bool kernel = result == CUPTI_SUCCESS &&
                          bytes + valid_bytes - reinterpret_cast<std::uint8_t*>(*record) >= 4 &&
                          record_bytes(*record) == sizeof(CUpti_ActivityKernel10);
      return kernel ? CUPTI_ERROR_INVALID_KIND : result;
    });
    damaged += records.damaged_buffers;
    profiler::Run run;
    resolve(records, {.first_id = 40, .op_count = 1, .start_ns = 1'000}, run);
  }
  EXPECT_GT(damaged, 0);
}

// --- records to a run ---------------------------------------------------------------------------------------------

constexpr CuptiRun kRun{.first_id = 40, .op_count = 3, .start_ns = 1'000};

profiler::Run resolved(const CuptiRecords& records) {
  profiler::Run run;
  run.kernels.resize(9);  // of an earlier call
  resolve(records, kRun, run);
  return run;
}

TEST(Resolve, TiesRecordsToOpsWhateverTheirOrder) {
  CuptiRecords records;
  records.kernels = {{.correlation = 12, .name = "late", .start_ns = 1'500, .end_ns = 1'600, .stream = 7},
                     {.correlation = 10, .name = "_ZN2at6kernelIfEEvPT_", .start_ns = 1'100, .end_ns = 1'130}};
  records.copies = {
      {.correlation = 11, .kind = CopyKind::kSet, .size_bytes = 64, .start_ns = 1'200, .end_ns = 1'201, .stream = 8}};
  records.memory = {{.correlation = 12, .address = 0x7000, .size_bytes = 512, .time_ns = 1'010}};
  records.op_ids = {{.correlation = 12, .id = 42}, {.correlation = 11, .id = 40}, {.correlation = 10, .id = 41}};

  const profiler::Run run = resolved(records);
  EXPECT_EQ(run.kernels,
            (std::vector<KernelRecord>{
                {.op = 1, .name = "void at::kernel<float>(float*)", .start_ns = 100, .duration_ns = 30, .stream = 0},
                {.op = 2, .name = "late", .start_ns = 500, .duration_ns = 100, .stream = 7}}));
  EXPECT_EQ(run.copies,
            (std::vector<CopyRecord>{
                {.op = 0, .kind = CopyKind::kSet, .size_bytes = 64, .start_ns = 200, .duration_ns = 1, .stream = 8}}));
  EXPECT_EQ(run.device_memory,
            (std::vector<DeviceMemoryRecord>{{.op = 2, .address = 0x7000, .size_bytes = 512, .time_ns = 10}}));
}

TEST(Resolve, LeavesWhatNoOpOfTheRunCausedWithoutOne) {
  CuptiRecords records;
  records.op_ids = {{.correlation = 1, .id = 39}, {.correlation = 2, .id = 43}};  // of the runs before and after
  for (const std::uint32_t correlation : {0U, 1U, 2U, 3U}) records.kernels.push_back({correlation, "k"});
  const profiler::Run run = resolved(records);
  EXPECT_THAT(run.kernels, testing::SizeIs(4));
  EXPECT_THAT(run.kernels, testing::Each(testing::Field(&KernelRecord::op, kNone)));
}

TEST(Resolve, TheInnermostIdCounts) {
  CuptiRecords records;
  records.kernels = {{.correlation = 5, .name = "k"}};
  records.op_ids = {{.correlation = 5, .id = 40}, {.correlation = 5, .id = 41}};
  EXPECT_EQ(resolved(records).kernels.at(0).op, 1);
}

TEST(Resolve, PutsMemoryInTheOrderInWhichItHappened) {
  CuptiRecords records;
  // Two threads' buffers; one call frees and the next, within the clock's tick, allocates there again.
  records.memory = {{.correlation = 4, .address = 0x7000, .size_bytes = 8, .time_ns = 1'020},
                    {.correlation = 6, .address = 0x9000, .size_bytes = 8, .time_ns = 1'030},
                    {.correlation = 3, .kind = MemoryKind::kFree, .address = 0x7000, .time_ns = 1'020},
                    {.correlation = 9, .kind = MemoryKind::kFree, .address = 0x8000, .time_ns = 990}};
  EXPECT_EQ(resolved(records).device_memory,
            (std::vector<DeviceMemoryRecord>{
                {.kind = MemoryKind::kFree, .address = 0x8000, .time_ns = -10},  // of unknown memory, before the run
                {.kind = MemoryKind::kFree, .address = 0x7000, .time_ns = 20},
                {.kind = MemoryKind::kAllocate, .address = 0x7000, .size_bytes = 8, .time_ns = 20},
                {.kind = MemoryKind::kAllocate, .address = 0x9000, .size_bytes = 8, .time_ns = 30}}));
}

TEST(Resolve, KeepsRecordsWithoutTimes) {
  CuptiRecords records;
  records.kernels = {{.name = "none", .start_ns = 0, .end_ns = 0}, {.name = "half", .start_ns = 1'500, .end_ns = 0}};
  records.copies = {{.size_bytes = std::numeric_limits<std::uint64_t>::max()}};
  const profiler::Run run = resolved(records);
  EXPECT_EQ(run.kernels, (std::vector<KernelRecord>{{.name = "none"}, {.name = "half"}}));
  EXPECT_EQ(run.copies, std::vector<CopyRecord>{{.size_bytes = std::numeric_limits<std::int64_t>::max()}});
}

}  // namespace
}  // namespace stowage::profiler
