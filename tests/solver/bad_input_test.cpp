// SPDX-License-Identifier: Apache-2.0
// What people hand to the readers by mistake, and the line that tells them.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "solver/formats.h"
#include "solver/layout.h"
#include "solver/solve.h"

namespace stowage::solver {
namespace {

struct BadInput {
  const char* name;
  std::string text;
  std::string fault;
};

void PrintTo(const BadInput& input, std::ostream* stream) { *stream << input.name; }

std::string step(const std::string& tensors, const std::string& ops) {
  return R"({"format":"stowage-step/1","name":"s","tensors":[)" + tensors + R"(],"ops":[)" + ops + "]}";
}

std::string tensor(int id, const std::string& size_bytes, const std::string& more = "") {
  return fmt::format(R"({{"id":{},"size_bytes":{},"persistent":false,"output":false{}}})", id, size_bytes, more);
}

std::string op(int id, const std::string& reads, const std::string& allocates, const std::string& more = "") {
  return fmt::format(R"({{"id":{},"name":"a","kind":"k","reads":[{}],"writes":[],"allocates":[{}]{}}})", id, reads,
                     allocates, more);
}

const std::string kUnits = R"(,"alignment_bytes":1)";

class BadStepText : public testing::TestWithParam<BadInput> {};

TEST_P(BadStepText, IsRefusedInOneLine) {
  EXPECT_THAT([] { parse_step(GetParam().text, "s.json"); },
              testing::ThrowsMessage<std::invalid_argument>("cannot read step 's.json': " + GetParam().fault));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadStepText,
    testing::Values(
        BadInput{"Empty", "", "it is empty; it takes the format stowage-step/1"},
        BadInput{"FormatNotAString", R"({"format":1})", "field 'format' is not a string"},
        BadInput{"FormatOfTwoLines", R"({"format":"two\nlines"})",
                 "its format is 'two?lines', this build reads 'stowage-step/1'"},
        BadInput{"NumberBeyondDoubles", R"({"format":1e999})", "it holds a number beyond 10^308; no field takes one"},
        BadInput{"NestedWithoutEnd",
                 step(tensor(0, std::string(200'000, '[') + std::string(200'000, ']')), op(0, "", "0")),
                 "tensor 0: field 'size_bytes' holds a list, which is no integer below 2^63"},
        BadInput{"OpNotAnObject", step("", "3"), "op 0: not a JSON object"},
        BadInput{"NoReads", step("", R"({"id":0,"name":"a","kind":"k"})"), "op 0: no field 'reads'"},
        BadInput{"SizeWithAPoint", step(tensor(0, "4.0"), op(0, "", "0")),
                 "tensor 0: field 'size_bytes' holds 4.0, which is no integer below 2^63"},
        BadInput{"OneTensorTooLarge", step(tensor(0, "4611686018427387904"), op(0, "", "0")),
                 "tensor 0 '' is larger than 2^62 B"},
        BadInput{"SizesWhoseSumIsTooLarge",
                 step(tensor(0, "4611686018427387902", kUnits) + "," + tensor(1, "4611686018427387902", kUnits),
                      op(0, "", "0,1")),
                 "the sizes up to tensor 1 '' sum to 2^62 B or more"},
        BadInput{"AfterItself", step("", op(0, "", "", R"(,"after":[0])")),
                 "op 0: field 'after' names op 0, which is not an earlier one"},
        BadInput{"ReadOfWhatNobodyAllocates", step(tensor(0, "4"), op(0, "0", "")),
                 "op 0 'a': 'reads' names tensor 0 '', which no op allocates before it"},
        BadInput{"ReadBeforeItsAllocation", step(tensor(0, "4"), op(0, "0", "") + "," + op(1, "", "0")),
                 "op 0 'a': 'reads' names tensor 0 '', which no op allocates before it"},
        BadInput{"AllocatedTwice", step(tensor(0, "4"), op(0, "", "0") + "," + op(1, "", "0")),
                 "op 1 'a': allocates tensor 0 '', which op 0 allocates too"},
        BadInput{"NameOfTwoLines", step(tensor(0, "-4", R"(,"name":"two\nlines")"), op(0, "", "0")),
                 "tensor 0 'two?lines' has a negative size of -4 B"},
        BadInput{"LongName", step(tensor(0, "-4", R"(,"name":")" + std::string(1000, 'x') + '"'), op(0, "", "0")),
                 "tensor 0 '" + std::string(60, 'x') + "...' has a negative size of -4 B"},
        BadInput{"EventOfBothKinds", step(tensor(0, "4"), op(0, "", "0", R"(,"events":[{"allocate":0,"free":0}])")),
                 "op 0: event 0: fields 'allocate' and 'free' are both there; write two events"}),
    [](const auto& instance) { return instance.param.name; });

class BadBuffersText : public testing::TestWithParam<BadInput> {};

TEST_P(BadBuffersText, IsRefusedInOneLine) {
  EXPECT_THAT([] { parse_buffers(GetParam().text, "b.csv"); },
              testing::ThrowsMessage<std::invalid_argument>("cannot read buffers 'b.csv': " + GetParam().fault));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadBuffersText,
    testing::Values(
        BadInput{"LowerAboveUpper", "id,lower,upper,size\r\na,5,3,4\r\n",
                 "row 2, column 'upper': 3 is not above lower 5; upper is exclusive"},
        BadInput{"EmptyField", "id,lower,upper,size\na,,3,4\n",
                 "row 2, column 'lower': '' is no integer from 0 to 2^62 - 1"},
        BadInput{"IdOfControlCharacters", "id,lower,upper,size\na\tb,0,3,4\n",
                 "row 2, column 'id': 'a?b' holds a control character"},
        BadInput{"LongId", fmt::format("id,lower,upper,size\n{0},0,3,4\n{0},0,3,4\n", std::string(1000, 'x')),
                 "row 3, column 'id': '" + std::string(60, 'x') + "...' is taken by row 2"},
        BadInput{"OffsetOffItsAlignment", "id,lower,upper,size,offset,alignment\na,0,3,4,12,8\n",
                 "row 2, column 'offset': 12 is not a multiple of its alignment 8"},
        BadInput{"SizesWhoseSumIsTooLarge", "id,lower,upper,size\na,0,3,4611686018427387903\nb,4,5,1\n",
                 "row 3, column 'size': the sizes up to this row, with padding for their alignment, sum to 2^62 B or "
                 "more"},
        BadInput{"AnotherEncoding", std::string("i\0d\0", 4),
                 "it is not text; it takes a header id,lower,upper,size[,offset][,alignment] and rows"}),
    [](const auto& instance) { return instance.param.name; });

/// A file of some other program, in a folder that the test runs in.
class OtherFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  void expect_refusal(const std::string& content, const std::string& as_step, const std::string& as_buffers) {
    std::ofstream(path_, std::ios::binary) << content;
    EXPECT_THAT([this] { read_step(path_); }, testing::ThrowsMessage<std::invalid_argument>(
                                                  fmt::format("cannot read step '{}': {}", path_, as_step)));
    EXPECT_THAT([this] { read_buffers(path_); }, testing::ThrowsMessage<std::invalid_argument>(
                                                     fmt::format("cannot read buffers '{}': {}", path_, as_buffers)));
  }

  const std::string kNotJson = "not valid JSON at byte 1; it takes the format stowage-step/1";
  const std::string kNotText = "it is not text; it takes a header id,lower,upper,size[,offset][,alignment] and rows";
  const std::string kDamaged = "the compressed data is damaged or cut short; copy the file again";
  const std::string path_ = (std::filesystem::path(testing::TempDir()) / fmt::format("stowage-{}", getpid())).string();
};

TEST_F(OtherFile, OfNothingIsRefused) {
  expect_refusal("", "it is empty; it takes the format stowage-step/1",
                 "no buffers; it takes a header id,lower,upper,size[,offset][,alignment] and rows");
}

TEST_F(OtherFile, OfAPictureIsRefused) {
  expect_refusal(std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", 18), kNotJson, kNotText);
}

TEST_F(OtherFile, OfADatabaseIsRefused) {
  expect_refusal("SQLite format 3" + std::string("\0\x10\0", 3), kNotJson, kNotText);
}

TEST_F(OtherFile, OfDamagedGzipIsRefused) { expect_refusal("\x1f\x8b\x08 no deflate stream", kDamaged, kDamaged); }

TEST_F(OtherFile, OfCompressedNoiseIsRefused) {
  write_file(path_ + ".gz", std::string("\x7f\0\x01noise", 8), true);
  std::filesystem::rename(path_ + ".gz", path_);
  std::ostringstream content;
  content << std::ifstream(path_, std::ios::binary).rdbuf();
  ASSERT_TRUE(content.str().starts_with("\x1f\x8b"));
  expect_refusal(content.str(), kNotJson, kNotText);
}

TEST_F(OtherFile, OfAPlanIsRefused) {
  expect_refusal(R"({"format":"stowage-plan/1"})", "its format is 'stowage-plan/1', this build reads 'stowage-step/1'",
                 R"(row 1: unknown column '{"format":"stowage-plan/1"}'; the header is )"
                 "id,lower,upper,size[,offset][,alignment]");
}

TEST(OddInput, EmptyTensorsArePlanned) {
  const Problem problem =
      parse_step(step(tensor(0, "0") + "," + tensor(1, "0"), op(0, "", "0") + "," + op(1, "0", "1")), "s.json");
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.peak_bytes, 0);
  EXPECT_EQ(plan.arena_bytes, 0);
  EXPECT_EQ(plan.order_status, Status::kOptimal);
  EXPECT_EQ(plan.offset_bytes, (std::vector<std::int64_t>{kNoSlot, kNoSlot}));
}

TEST(OddInput, OneHugeTensorIsPlanned) {
  const Problem problem = parse_step(step(tensor(0, "4611686018427387903", kUnits), op(0, "", "0")), "s.json");
  const Plan plan = solve(problem);
  EXPECT_EQ(plan.peak_bytes, 4611686018427387903);  // 2^62 - 1
  EXPECT_EQ(plan.arena_bytes, 4611686018427387903);
  EXPECT_EQ(plan.offset_bytes, (std::vector<std::int64_t>{0}));
}

TEST(OddInput, CsvOfAnOfficeProgramIsRead) {
  // It begins with a byte order mark and ends its lines with CRLF.
  EXPECT_EQ(parse_buffers("\xEF\xBB\xBFid,lower,upper,size\r\na,0,3,4\r\n", "b.csv"),
            parse_buffers("id,lower,upper,size\na,0,3,4\n", "b.csv"));
}

TEST(OddInput, EmptyBuffersLieAnywhere) {
  const Layout layout = lay_out(parse_buffers("id,lower,upper,size\na,0,3,0\nb,0,3,4\n", "b.csv"));
  EXPECT_EQ(layout.height_bytes, 4);
  EXPECT_EQ(layout.status, Status::kOptimal);
}

}  // namespace
}  // namespace stowage::solver
