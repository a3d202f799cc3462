// SPDX-License-Identifier: Apache-2.0
// Runs the program as a user does.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

struct Result {
  int exit_code = 0;
  std::string output;
  std::string errors;
};

/// A folder of its own for each test, removed at its end.
class Cli : public testing::Test {
 protected:
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("stowage-cli-{}-{}", test, getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  static std::string read(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }

  Result run(const std::string& arguments) const {
    const std::string command =
        fmt::format("'{}' {} >'{}' 2>'{}'", STOWAGE_SOLVE, arguments, path("stdout"), path("stderr"));
    const int status = std::system(command.c_str());
    return {.exit_code = WEXITSTATUS(status), .output = read(path("stdout")), .errors = read(path("stderr"))};
  }

  const std::string alexnet_ = STOWAGE_TEST_DATA "/graphs/alexnet-bs1-sgdm.json.gz";

 private:
  std::filesystem::path folder_;
};

TEST_F(Cli, OrderPrintsJson) {
  const Result result = run("order " + alexnet_ + " --json");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.errors, "");
  Json json = Json::parse(result.output);
  EXPECT_GE(json["seconds"].get<double>(), 0.0);
  json.erase("seconds");
  EXPECT_EQ(json, Json::parse(R"({"name": "alexnet-bs1-sgdm", "status": "optimal", "peak_bytes": 640457036,
      "program_peak_bytes": 736042220, "bound_bytes": 640457036, "bound_op": 77, "bound_op_name": "mm_5",
      "bound_proof": "must_live", "reused_tensors": 12,
      "ops": 166, "tensors": 95, "arena_bytes": 151048256, "arena_bound_bytes": 151048256,
      "layout_status": "optimal"})"));
}

TEST_F(Cli, OrderPrintsASummary) {
  const Result result = run("order " + alexnet_);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("alexnet-bs1-sgdm: 166 ops, 95 tensors, planned in "));
  EXPECT_THAT(result.output, HasSubstr("  planned order  640457036 B (610.79 MiB), optimal\n"));
}

TEST_F(Cli, OrderExplainsItsBound) {
  const std::string step = write("step.json", R"({"format": "stowage-step/1", "name": "s", "tensors": [
      {"id": 0, "size_bytes": 2048, "persistent": true, "output": false},
      {"id": 1, "name": "x", "size_bytes": 4096, "persistent": false, "output": false},
      {"id": 2, "size_bytes": 1024, "persistent": false, "output": false},
      {"id": 3, "size_bytes": 64, "persistent": false, "output": true}], "ops": [
      {"id": 0, "name": "make", "kind": "k", "reads": [0], "writes": [], "allocates": [1]},
      {"id": 1, "name": "narrow", "kind": "k", "reads": [1], "writes": [], "allocates": [2]},
      {"id": 2, "name": "end", "kind": "k", "reads": [1, 2], "writes": [], "allocates": [3]}]})");
  const Result text = run(fmt::format("order '{}' --explain", step));
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.output, HasSubstr(R"(
No order needs less than 7232 B (7.06 KiB):
  2048 B (2.00 KiB) live through the whole step
  while op 2 'end' runs, 3 tensors must live besides:
    4096 B (4.00 KiB)             tensor 1 'x': made by op 0 'make' before it, used by it
    1024 B (1.00 KiB)             tensor 2: made by op 1 'narrow' before it, used by it
    64 B                          tensor 3: made by it, an output of the step
)"));
  const Json json = Json::parse(run(fmt::format("order '{}' --explain --json", step)).output);
  EXPECT_EQ(json["must_live_bytes"], 7232);
  EXPECT_EQ(json["must_live"][0], Json::parse(R"({"tensor": 1, "name": "x", "size_bytes": 4096, "made_by": 0,
      "made_by_name": "make", "used_by": 2, "used_by_name": "end"})"));
}

TEST_F(Cli, BoundNamesWhatMustLive) {
  // Nothing but `wide` and its maker's input need live while `narrow` runs; the program order keeps `other` too.
  const std::string step = write("step.json", R"({"format": "stowage-step/1", "name": "s", "tensors": [
      {"id": 0, "name": "w", "size_bytes": 2048, "persistent": true, "output": false},
      {"id": 1, "name": "other", "size_bytes": 4096, "persistent": false, "output": false},
      {"id": 2, "name": "wide", "size_bytes": 8192, "persistent": false, "output": false},
      {"id": 3, "name": "thin", "size_bytes": 64, "persistent": false, "output": false},
      {"id": 4, "name": "end", "size_bytes": 8, "persistent": false, "output": true}], "ops": [
      {"id": 0, "name": "aside", "kind": "k", "reads": [0], "writes": [], "allocates": [1]},
      {"id": 1, "name": "make", "kind": "k", "reads": [0], "writes": [], "allocates": [2]},
      {"id": 2, "name": "narrow", "kind": "k", "reads": [2], "writes": [], "allocates": [3]},
      {"id": 3, "name": "last", "kind": "k", "reads": [1, 3], "writes": [], "allocates": [4]}]})");
  const Result result = run(fmt::format("bound '{}' --json", step));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const Json json = Json::parse(result.output);
  EXPECT_EQ(json, Json::parse(R"({"name": "s", "bound_bytes": 10304, "persistent_bytes": 2048, "op": 2,
      "op_name": "narrow", "tensors": [
        {"tensor": 2, "name": "wide", "size_bytes": 8192, "made_by": 1, "made_by_name": "make", "used_by": 2,
         "used_by_name": "narrow"},
        {"tensor": 3, "name": "thin", "size_bytes": 64, "made_by": 2, "made_by_name": "narrow", "used_by": 2,
         "used_by_name": "narrow"}]})"));
  const Json searched = Json::parse(run(fmt::format("bound '{}' --json --search", step)).output);
  EXPECT_EQ(searched["found"], Json::parse(R"({"peak_bytes": 10304, "bound_bytes": 10304, "bound_proof": "must_live",
      "status": "optimal"})"));
  EXPECT_THAT(run(fmt::format("bound '{}' --search", step)).output,
              HasSubstr("The best order found needs 10304 B (10.06 KiB), optimal.\n"));
}

TEST_F(Cli, BoundAddsUp) {
  const Json json = Json::parse(run("bound " + alexnet_ + " --json").output);
  EXPECT_EQ(json["bound_bytes"], 640457036);
  std::int64_t sum = json["persistent_bytes"];
  for (const Json& tensor : json["tensors"]) sum += tensor["size_bytes"].get<std::int64_t>();
  EXPECT_EQ(sum, 640457036);
  EXPECT_EQ(run("bound nowhere.json").exit_code, 2);
}

TEST_F(Cli, OrderSaysWhenASearchHasProvenIt) {
  const Result result = run("order " STOWAGE_TEST_DATA "/graphs/vgg16-bs32-sgdm.json.gz --explain");
  EXPECT_THAT(result.output, HasSubstr("B (3305.58 MiB), by search\n"));
  EXPECT_THAT(result.output, testing::EndsWith("more; --json lists all\nNor than 3466153540 B (3305.58 MiB): a search "
                                               "has ruled out every order with a lower peak.\n"));
}

TEST_F(Cli, OrderReusesUnlessForbidden) {
  const std::string squeezenet = STOWAGE_TEST_DATA "/graphs/squeezenet1_0-bs32-sgdm.json.gz";
  const Json with = Json::parse(run("order --json " + squeezenet).output);
  const Json without = Json::parse(run("order --json --no-reuse " + squeezenet).output);
  EXPECT_GT(with["reused_tensors"], 0);
  EXPECT_EQ(without["reused_tensors"], 0);
  EXPECT_LT(with["peak_bytes"].get<double>(), 0.985 * without["peak_bytes"].get<double>());
  EXPECT_EQ(with["program_peak_bytes"], without["program_peak_bytes"]);
}

TEST_F(Cli, OrderWritesBuffersThatLayoutReads) {
  const std::string buffers = path("buffers.csv");
  const Result order = run(fmt::format("order {} --buffers '{}' --plan '{}'", alexnet_, buffers, path("plan.json")));
  EXPECT_EQ(order.exit_code, 0);
  EXPECT_EQ(order.errors,
            fmt::format("stowage-solve: wrote {}\nstowage-solve: wrote {}\n", buffers, path("plan.json")));
  const Json plan = Json::parse(read(path("plan.json")));
  EXPECT_EQ(plan["format"], "stowage-plan/1");
  EXPECT_EQ(plan["order"].size(), 166);
  EXPECT_EQ(plan["offset_bytes"].size(), 95);

  const Result layout = run(fmt::format("layout '{}' --json --output '{}'", buffers, path("placed.csv")));
  EXPECT_EQ(layout.exit_code, 0);
  const Json json = Json::parse(layout.output);
  EXPECT_EQ(json["height_bytes"], plan["arena_bytes"]);
  EXPECT_EQ(json["capacity_bytes"], nullptr);
  EXPECT_THAT(read(path("placed.csv")), testing::StartsWith("id,lower,upper,size,offset,alignment\n"));

  const Result again = run(fmt::format("order {} --buffers '{}'", alexnet_, buffers));
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_EQ(again.errors,
            fmt::format("stowage-solve: cannot write '{}': it exists; use --force to replace it\n", buffers));
}

TEST_F(Cli, LayoutPrintsJson) {
  const std::string file = write("b.csv", "id,lower,upper,size\r\na,0,2,10\r\nb,2,4,10\r\nc,1,3,5\r\n");
  const Result result = run(fmt::format("layout '{}' --capacity 20 --json", file));
  EXPECT_EQ(result.exit_code, 0);
  Json json = Json::parse(result.output);
  json.erase("seconds");
  EXPECT_EQ(json, Json::parse(R"({"status": "optimal", "height_bytes": 15, "bound_bytes": 15, "capacity_bytes": 20,
      "buffers": [{"id": "a", "lower": 0, "upper": 2, "size_bytes": 10, "offset_bytes": 0},
                  {"id": "b", "lower": 2, "upper": 4, "size_bytes": 10, "offset_bytes": 0},
                  {"id": "c", "lower": 1, "upper": 3, "size_bytes": 5, "offset_bytes": 10}]})"));
}

TEST_F(Cli, LayoutSaysThatNothingFits) {
  const std::string file = write("b.csv", "id,lower,upper,size\na,0,2,10\nb,0,2,10\n");
  const Result result = run(fmt::format("layout '{}' --capacity 19 --json", file));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.errors, "stowage-solve: no layout fits the capacity: none is lower than 20 B\n");
  EXPECT_EQ(Json::parse(result.output)["status"], "infeasible");
}

TEST_F(Cli, LayoutSaysThatItFoundNothing) {
  const Result result =
      run("layout " STOWAGE_TEST_DATA "/layout/B.1048576.csv --capacity 1048576 --node-limit 1000 --json");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.errors, "stowage-solve: found no layout within the capacity; raise --node-limit or --deadline-ms\n");
  EXPECT_EQ(Json::parse(result.output)["status"], "timed_out");
}

TEST_F(Cli, BudgetsMayCopyToHostMemory) {
  // "a" makes 40 bytes for "b" and "last"; in between, 60 others live.
  const std::string file = write("step.json", R"({"format": "stowage-step/1", "name": "step", "tensors": [
      {"id": 0, "size_bytes": 40, "persistent": false, "output": false},
      {"id": 1, "size_bytes": 1, "persistent": false, "output": false},
      {"id": 2, "size_bytes": 1, "persistent": false, "output": false},
      {"id": 3, "size_bytes": 60, "persistent": false, "output": false},
      {"id": 4, "size_bytes": 1, "persistent": false, "output": false},
      {"id": 5, "size_bytes": 1, "persistent": false, "output": false},
      {"id": 6, "size_bytes": 1, "persistent": false, "output": true}], "ops": [
      {"id": 0, "name": "a", "kind": "", "duration_ns": 50, "reads": [], "writes": [], "allocates": [0]},
      {"id": 1, "name": "b", "kind": "", "duration_ns": 50, "reads": [0], "writes": [], "allocates": [1]},
      {"id": 2, "name": "c", "kind": "", "duration_ns": 50, "reads": [1], "writes": [], "allocates": [2]},
      {"id": 3, "name": "d", "kind": "", "duration_ns": 50, "reads": [2], "writes": [], "allocates": [3]},
      {"id": 4, "name": "e", "kind": "", "duration_ns": 50, "reads": [3], "writes": [], "allocates": [4]},
      {"id": 5, "name": "f", "kind": "", "duration_ns": 50, "reads": [4], "writes": [], "allocates": [5]},
      {"id": 6, "name": "last", "kind": "", "duration_ns": 50, "reads": [0, 5], "writes": [], "allocates": [6]}]})");
  const Result without = run(fmt::format("budget '{}' --budget 61 --json", file));
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_EQ(Json::parse(without.output)["rows"][0]["copied_bytes"], 0);
  const Result result = run(fmt::format("budget '{}' --budget 61 --bandwidth 1GB --json", file));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(Json::parse(result.output)["rows"], Json::parse(R"([{"budget_bytes": 61, "peak_bytes": 61, "time_ns": 350,
      "time_ratio": 1.0, "bound_time_ratio": 1.0, "status": "optimal", "repeats": 0, "copied_bytes": 40}])"));
  EXPECT_EQ(run(fmt::format("budget '{}' --bandwidth fast", file)).errors,
            "stowage-solve: cannot read bandwidth 'fast': it takes the bytes in a second, such as '25GB'\n");
}

TEST_F(Cli, RefusesBadInput) {
  const std::string csv = write("b.csv", "id,lower,upper,size\na,0,2,ten\n");
  const Result layout = run(fmt::format("layout '{}'", csv));
  EXPECT_EQ(layout.exit_code, 2);
  EXPECT_EQ(layout.output, "");
  EXPECT_EQ(layout.errors,
            fmt::format("stowage-solve: cannot read buffers '{}': row 2, column 'size': 'ten' is no integer from 0 to "
                        "2^62 - 1\n",
                        csv));
  const Result order = run(fmt::format("order '{}'", csv));
  EXPECT_EQ(order.exit_code, 2);
  EXPECT_EQ(order.errors,
            fmt::format("stowage-solve: cannot read step '{}': not valid JSON at byte 1; it takes the format "
                        "stowage-step/1\n",
                        csv));
}

TEST_F(Cli, RefusesBadUsage) {
  EXPECT_EQ(run("").exit_code, 2);
  EXPECT_EQ(run("order").errors, "stowage-solve: FILE is required; try --help\n");
  EXPECT_EQ(run("order x --no-such-option").exit_code, 2);
  EXPECT_EQ(run("layout x --capacity -1").exit_code, 2);
}

TEST_F(Cli, HelpsWithExamples) {
  EXPECT_EQ(run("--version").output, "stowage-solve 0.1.0\n");
  for (const char* arguments : {"--help", "order --help", "layout --help", "bound --help"}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.output, HasSubstr("Example"));
  }
}

}  // namespace
