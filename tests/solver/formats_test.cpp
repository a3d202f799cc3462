// SPDX-License-Identifier: Apache-2.0
#include "solver/formats.h"

#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

std::string step_text(const std::string& tensors, const std::string& ops) {
  return R"({"format":"stowage-step/1","name":"s","tensors":[)" + tensors + R"(],"ops":[)" + ops + "]}";
}

const std::string kTensors =
    R"({"id":7,"size_bytes":4,"persistent":true,"output":false},{"id":9,"size_bytes":8,"persistent":false,"output":true})";
const std::string kOp = R"({"id":0,"name":"a","kind":"k","reads":[7],"writes":[],"allocates":[9]})";

TEST(Step, IsReadWithIdsAsIndices) {
  Problem expected{
      .name = "s",
      .ops = {op("a", {0}, {allocate(1)})},
      .tensors = {{.name = "", .size_bytes = 4, .persistent = true}, {.name = "", .size_bytes = 8, .output = true}}};
  expected.ops[0].kind = "k";
  EXPECT_EQ(parse_step(step_text(kTensors, kOp), "s.json"), expected);
}

TEST(Step, IsWrittenInFull) {
  Problem problem{.name = "s",
                  .ops = {op("a", {}, {allocate(1), free(1)}), op("b", {0}, {}, {0}, {0})},
                  .tensors = {{.name = "w", .size_bytes = 4, .persistent = true},
                              {.name = "", .size_bytes = 8, .alignment_bytes = 512, .external = true}}};
  problem.ops[0].kind = problem.ops[1].kind = "k";
  problem.ops[0].duration_ns = 5;
  EXPECT_EQ(format_step(problem),
            R"({"format":"stowage-step/1","name":"s",)"
            R"("tensors":[{"id":0,"name":"w","size_bytes":4,"persistent":true,"output":false},)"
            R"({"id":1,"size_bytes":8,"alignment_bytes":512,"persistent":false,"output":false,"external":true}],)"
            R"("ops":[{"id":0,"name":"a","kind":"k","duration_ns":5,"reads":[],"writes":[],"allocates":[1],)"
            R"("events":[{"allocate":1},{"free":1}]},)"
            R"({"id":1,"name":"b","kind":"k","reads":[0],"writes":[0],"allocates":[],"after":[0]}]})"
            "\n");
}

TEST(Step, KeepsReuses) {
  EXPECT_THAT(format_step(reuse()), testing::HasSubstr(R"("reuses":[{"output":2,"input":0},{"output":2,"input":1}])"));
  EXPECT_EQ(parse_step(format_step(reuse()), "s.json"), reuse());
}

TEST(Step, DerivesTheReusesOfPointwiseOpsUnlessItSaysThem) {
  Problem problem = reuse();
  problem.ops[2].kind = "aten.add.Tensor";
  problem.ops[3].kind = "aten::mul";
  Problem written = problem;
  for (Op& each : written.ops) each.reuses.clear();
  std::string text = format_step(written);
  EXPECT_EQ(parse_step(text, "s.json"), written);  // it says that there are none
  for (std::size_t at = 0; (at = text.find(R"(,"reuses":[])", at)) != std::string::npos;) text.erase(at, 12);
  EXPECT_EQ(parse_step(text, "s.json"), problem);
}

TEST(Step, DerivesNoReuseThatCannotBe) {
  Problem problem = reuse();
  forbid_reuse(problem);
  problem.ops[2].kind = "aten.mm.default";  // not pointwise
  problem.ops[3].kind = "aten.mul.Tensor";
  problem.tensors[2].size_bytes = 11;  // what "scale" reads is larger than what it makes
  std::string text = format_step(problem);
  for (std::size_t at = 0; (at = text.find(R"(,"reuses":[])", at)) != std::string::npos;) text.erase(at, 12);
  EXPECT_EQ(parse_step(text, "s.json"), problem);
}

TEST(Step, IsReadFromGzipAndWrittenToIt) {
  const auto path = std::filesystem::path(testing::TempDir()) / fmt::format("stowage-{}.json.gz", getpid());
  write_file(path, format_step(diamond()), true);
  EXPECT_EQ(read_step(path), diamond());
  EXPECT_THAT([&] { write_file(path, "", false); },
              testing::ThrowsMessage<std::runtime_error>(
                  fmt::format("cannot write '{}': it exists; use --force to replace it", path.string())));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT(
      [&] { read_step(path); },
      testing::ThrowsMessage<std::invalid_argument>(fmt::format(
          "cannot read step '{}': the compressed data is damaged or cut short; copy the file again", path.string())));
  std::filesystem::remove(path);
}

struct BadStep {
  const char* name;
  std::string text;
  const char* fault;
};

class StepFault : public testing::TestWithParam<BadStep> {};

TEST_P(StepFault, IsNamed) {
  EXPECT_THAT(
      [] { parse_step(GetParam().text, "s.json"); },
      testing::ThrowsMessage<std::invalid_argument>(std::string("cannot read step 's.json': ") + GetParam().fault));
}

INSTANTIATE_TEST_SUITE_P(
    All, StepFault,
    testing::Values(
        BadStep{"NotJson", "id,lower", "not valid JSON at byte 1; it takes the format stowage-step/1"},
        BadStep{"NotAnObject", "[]", "not a JSON object"},
        BadStep{"AnotherFormat", R"({"format":"stowage-step/2"})",
                "its format is 'stowage-step/2', this build reads 'stowage-step/1'"},
        BadStep{"NoFormat", "{}", "no field 'format'"},
        BadStep{"NoOps", step_text(kTensors, ""), "field 'ops' is empty; there is nothing to plan"},
        BadStep{"TensorsNotAList", R"({"format":"stowage-step/1","name":"s","tensors":3})",
                "field 'tensors' is not a list"},
        BadStep{"NegativeSize",
                step_text(R"({"id":0,"size_bytes":-4,"persistent":true,"output":false})",
                          R"({"id":0,"name":"a","kind":"k","reads":[],"writes":[],"allocates":[]})"),
                "tensor 0 '' has a negative size of -4 B"},
        BadStep{"HugeSize", step_text(R"({"id":0,"size_bytes":9223372036854775808})", kOp),
                "tensor 0: field 'size_bytes' holds 9223372036854775808, which is no integer below 2^63"},
        BadStep{"SizeNotANumber", step_text(R"({"id":0,"size_bytes":"4"})", kOp),
                "tensor 0: field 'size_bytes' holds \"4\", which is no integer below 2^63"},
        BadStep{"FlagNotABoolean", step_text(R"({"id":0,"size_bytes":4,"persistent":1})", kOp),
                "tensor 0: field 'persistent' is not true or false"},
        BadStep{"DuplicateTensor", step_text(kTensors + "," + kTensors, kOp),
                "tensor 2: field 'id' is 7, as in tensor 0"},
        BadStep{"DuplicateOp",
                step_text(kTensors, kOp + R"(,{"id":0,"name":"b","kind":"k","reads":[],"writes":[],"allocates":[]})"),
                "op 1: field 'id' is 0, as in op 0"},
        BadStep{"UnknownTensor",
                step_text(kTensors, R"({"id":0,"name":"a","kind":"k","reads":[3],"writes":[],"allocates":[9]})"),
                "op 0: field 'reads' names tensor 3, which is not there"},
        BadStep{
            "CycleThroughAfter",
            step_text(kTensors, R"({"id":0,"name":"a","kind":"k","reads":[],"writes":[],"allocates":[9],"after":[1]},)"
                                R"({"id":1,"name":"b","kind":"k","reads":[],"writes":[],"allocates":[],"after":[0]})"),
            "op 0: field 'after' names op 1, which is not an earlier one"},
        BadStep{
            "EventsDisagree",
            step_text(
                kTensors,
                R"({"id":0,"name":"a","kind":"k","reads":[],"writes":[],"allocates":[],"events":[{"allocate":9}]})"),
            "op 0: fields 'allocates' and 'events' do not allocate the same tensors in the same order"},
        BadStep{"EventWithoutKind",
                step_text(kTensors, R"({"id":0,"name":"a","kind":"k","reads":[],"writes":[],"events":[{}]})"),
                "op 0: event 0: no field 'free'"},
        BadStep{"NotAllocated",
                step_text(kTensors, R"({"id":0,"name":"a","kind":"k","reads":[],"writes":[],"allocates":[]})"),
                "tensor 1 '' is not persistent and no op allocates it"}),
    [](const auto& instance) { return instance.param.name; });

TEST(Buffers, AreReadInAnyColumnOrderAndWithCrlf) {
  const std::vector<Buffer> expected = {
      {.id = "a", .lower = 0, .upper = 3, .size_bytes = 4, .alignment_bytes = 8, .fixed_offset_bytes = std::nullopt},
      {.id = "b", .lower = 1, .upper = 2, .size_bytes = 5, .alignment_bytes = 1, .fixed_offset_bytes = 16}};
  EXPECT_EQ(parse_buffers("size,id,upper,lower,alignment,offset\r\n4,a,3,0,8,\r\n5,b,2,1,,16\r\n", "b.csv"), expected);
}

TEST(Buffers, SurviveBeingWrittenAndRead) {
  const std::string text = "id,lower,upper,size,offset,alignment\na,0,3,4,,8\nb,1,2,5,16,1\n";
  EXPECT_EQ(format_buffers(parse_buffers(text, "b.csv")), text);
}

TEST(Buffers, AreWrittenWithTheirOffsets) {
  EXPECT_EQ(format_buffers(parse_buffers("id,lower,upper,size\na,0,3,4\nb,1,2,5\n", "b.csv"), {5, 0}),
            "id,lower,upper,size,offset\na,0,3,4,5\nb,1,2,5,0\n");
}

class BuffersFault : public testing::TestWithParam<BadStep> {};

TEST_P(BuffersFault, IsNamed) {
  EXPECT_THAT(
      [] { parse_buffers(GetParam().text, "b.csv"); },
      testing::ThrowsMessage<std::invalid_argument>(std::string("cannot read buffers 'b.csv': ") + GetParam().fault));
}

INSTANTIATE_TEST_SUITE_P(
    All, BuffersFault,
    testing::Values(BadStep{"Empty", "",
                            "no buffers; it takes a header id,lower,upper,size[,offset][,alignment] and rows"},
                    BadStep{"NoRows", "id,lower,upper,size\n",
                            "no buffers; it takes a header id,lower,upper,size[,offset][,alignment] and rows"},
                    BadStep{"MissingColumn", "id,lower,size\na,0,4\n",
                            "row 1: no column 'upper'; the header is id,lower,upper,size[,offset][,alignment]"},
                    BadStep{"UnknownColumn", "id,lower,upper,size,gaps\na,0,3,4,\n",
                            "row 1: unknown column 'gaps'; the header is id,lower,upper,size[,offset][,alignment]"},
                    BadStep{"DoubleColumn", "id,id,lower,upper,size\n", "row 1: column 'id' is there twice"},
                    BadStep{"ShortRow", "id,lower,upper,size\na,0,3\n", "row 2: 3 fields, the header has 4"},
                    BadStep{"NegativeSize", "id,lower,upper,size\na,0,3,-4\n",
                            "row 2, column 'size': '-4' is no integer from 0 to 2^62 - 1"},
                    BadStep{"HugeSize", "id,lower,upper,size\na,0,3,9223372036854775808\n",
                            "row 2, column 'size': '9223372036854775808' is no integer from 0 to 2^62 - 1"},
                    BadStep{"NotANumber", "id,lower,upper,size\na,0,3,4x\n",
                            "row 2, column 'size': '4x' is no integer from 0 to 2^62 - 1"},
                    BadStep{"Backwards", "id,lower,upper,size\na,0,3,4\nb,5,5,4\n",
                            "row 3, column 'upper': 5 is not above lower 5; upper is exclusive"},
                    BadStep{"DuplicateId", "id,lower,upper,size\na,0,3,4\n\na,0,3,4\n",
                            "row 4, column 'id': 'a' is taken by row 2"},
                    BadStep{"NoAlignment", "id,lower,upper,size,alignment\na,0,3,4,0\n",
                            "row 2, column 'alignment': 0 is no alignment; use 1 for none"}),
    [](const auto& instance) { return instance.param.name; });

TEST(Files, SayWhyTheyCannotBeRead) {
  EXPECT_THAT([] { read_buffers("/nowhere/b.csv"); },
              testing::ThrowsMessage<std::invalid_argument>(
                  "cannot read buffers '/nowhere/b.csv': No such file or directory; check the path"));
  EXPECT_THAT([] { read_step("/"); },
              testing::ThrowsMessage<std::invalid_argument>("cannot read step '/': it is a folder; name a file"));
}

}  // namespace
}  // namespace stowage::solver
