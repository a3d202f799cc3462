// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>

#include "profiler/record.h"
#include "profiler/store.h"

namespace stowage::profiler {

/// h = matmul(x, w); a = relu(h); s = sum(a); w -= s, with a workspace in the matmul. CUPTI saw s as it was asked for,
/// a with another size. Every field is set, to a value of its own where it can be.
inline Run sample_run() {
  Run run;
  run.key = {
      .graph_hash = "9f86d081", .signature = "(Float[4, 8])", .device = "cpu", .torch_version = "2.11.0", .rules = "2"};
  run.name = "step";
  run.clock = "steady_clock";
  run.created_unix_ns = 1'700'000'000'123'456'789;
  run.execution = 2;
  run.alignment_bytes = 512;
  run.graph_text = "graph(%x, %w):\n  return (%s)\n";
  run.duration_ns = 9'000;
  run.peak_bytes = 1'664;
  run.ops = {
      {.name = "h",
       .kind = "aten::matmul",
       .scope = "net.fc",
       .source = "net.py:7",
       .start_ns = 10,
       .duration_ns = 400,
       .repeatable = true,
       .program_op = 0},
      {.name = "a", .kind = "aten::relu", .scope = "net", .source = "", .start_ns = 420, .duration_ns = 60},
      {.name = "s", .kind = "aten::sum", .scope = "", .source = "", .start_ns = 500, .duration_ns = 70},
      {.name = "w.1", .kind = "aten::sub_", .scope = "", .source = "", .start_ns = 600, .duration_ns = 80},
  };
  run.tensors = {
      {.name = "x", .kind = TensorKind::kInput, .size_bytes = 128, .dtype = "Float", .shape = "[4, 8]"},
      {.name = "w", .kind = TensorKind::kInput, .size_bytes = 256, .dtype = "Float", .shape = "[8, 8]"},
      {.name = "one", .kind = TensorKind::kConstant, .size_bytes = 0, .dtype = "Long", .shape = "[]"},
      {.name = "h", .kind = TensorKind::kIntermediate, .size_bytes = 512, .dtype = "Float", .shape = "[4, 32]"},
      {.name = "", .kind = TensorKind::kWorkspace, .size_bytes = 768, .dtype = "", .shape = ""},
      {.name = "a", .kind = TensorKind::kIntermediate, .size_bytes = 512, .dtype = "Float", .shape = "[4, 32]"},
      {.name = "s", .kind = TensorKind::kOutput, .size_bytes = 4, .dtype = "Float", .shape = "[]"},
  };
  run.uses = {
      {.op = 0, .tensor = 1, .kind = UseKind::kRead},
      {.op = 0, .tensor = 0, .kind = UseKind::kRead},
      {.op = 0, .tensor = 3, .kind = UseKind::kResult, .position = 0},
      {.op = 1, .tensor = 3, .kind = UseKind::kRead},
      {.op = 1, .tensor = 5, .kind = UseKind::kResult, .position = 0},
      {.op = 2, .tensor = 5, .kind = UseKind::kRead},
      {.op = 2, .tensor = 6, .kind = UseKind::kResult, .position = 0},
      {.op = 3, .tensor = 6, .kind = UseKind::kRead},
      {.op = 3, .tensor = 1, .kind = UseKind::kWrite},
  };
  run.dependencies = {
      {.op = 3, .after = 2, .reason = DependencyReason::kValue},
      {.op = 3, .after = 0, .reason = DependencyReason::kEffect},
      {.op = 2, .after = 1, .reason = DependencyReason::kRandom},
      {.op = 1, .after = 0, .reason = DependencyReason::kBarrier},
  };
  const auto allocation = [](std::int32_t tensor, std::int32_t op, std::int32_t index, std::int64_t bytes,
                             std::int32_t allocate_event, std::int32_t free_op, std::int32_t free_event) {
    return AllocationRecord{.tensor = tensor,
                            .op = op,
                            .index = index,
                            .requested_bytes = bytes,
                            .rounded_bytes = bytes + 60,
                            .stream = 7,
                            .allocate_event = allocate_event,
                            .free_op = free_op,
                            .free_event = free_event,
                            .source = tensor == 6 ? AllocationSource::kCupti : AllocationSource::kAllocator};
  };
  run.allocations = {
      allocation(3, 0, 0, 512, 0, 1, 4),
      allocation(4, 0, 1, 768, 1, 0, 2),
      allocation(5, 1, 0, 512, 3, 2, 6),
      allocation(6, 2, 0, 4, 5, kNone, kNone),
  };
  run.reuses = {{.op = 1, .output = 5, .input = 3, .position = 0, .layout = -0x123456789abcdef}};
  run.kernels = {
      {.op = 0, .name = "gemm<float>", .start_ns = 40, .duration_ns = 300, .stream = 7},
      {.op = 3, .name = "sub", .start_ns = 620, .duration_ns = 20, .stream = 8},
      {.op = kNone, .name = "reduce", .start_ns = -9, .duration_ns = 0, .stream = 0},
  };
  run.copies = {
      {.op = 3, .kind = CopyKind::kSet, .size_bytes = 256, .start_ns = 640, .duration_ns = 5, .stream = 7},
      {.op = kNone, .kind = CopyKind::kPeerToPeer, .size_bytes = 128, .start_ns = 1, .duration_ns = 2, .stream = 9},
  };
  using MemoryKind = DeviceMemoryRecord::Kind;
  run.device_memory = {
      {.op = 1,
       .kind = MemoryKind::kAllocate,
       .address = 0x7f00'0000'0200,
       .size_bytes = 768,
       .time_ns = 430,
       .allocation = 2},
      {.op = kNone, .kind = MemoryKind::kAllocate, .address = 0xffff'ffff'ffff'0000, .size_bytes = 1, .time_ns = 431},
      {.op = 2,
       .kind = MemoryKind::kAllocate,
       .address = 0x7f00'0000'0600,
       .size_bytes = 4,
       .time_ns = 510,
       .allocation = 3},
      {.op = 2,
       .kind = MemoryKind::kFree,
       .address = 0x7f00'0000'0200,
       .size_bytes = 768,
       .time_ns = 520,
       .allocation = 2},
  };
  run.size_mismatches = 1;
  return run;
}

/// A plan for `sample_run`, in its one legal order: a takes the memory of h.
inline PlanRecord sample_plan() {
  PlanRecord plan;
  plan.order = {0, 1, 2, 3};
  plan.slots = {{.tensor = 3, .offset_bytes = 0, .size_bytes = 512},
                {.tensor = 4, .offset_bytes = 512, .size_bytes = 768},
                {.tensor = 5, .offset_bytes = 0, .size_bytes = 512}};
  plan.points = {{.kind = PointKind::kPlace, .op = 0, .tensor = 3},
                 {.kind = PointKind::kPlace, .op = 0, .tensor = 4},
                 {.kind = PointKind::kReuse, .op = 1, .tensor = 5, .of = 3},
                 {.kind = PointKind::kFree, .op = 2, .tensor = 5}};
  plan.peak_bytes = 1'664;
  plan.program_peak_bytes = 1'665;
  plan.bound_bytes = 1'663;
  plan.order_status = "feasible";
  plan.arena_bytes = 1'280;
  plan.cut_bytes = 512;
  plan.arena_bound_bytes = 1'279;
  plan.layout_status = "optimal";
  plan.planning_ns = 42;
  plan.graph_text = "graph(%x, %w):\n  stowage::free[slots=[0]](%h)\n";
  plan.budget = {.limit_bytes = 1'700,
                 .limit_ns = 640,
                 .unplanned_peak_bytes = 1'701,
                 .unplanned_ns = 610,
                 .predicted_ns = 630,
                 .bound_ns = 620,
                 .bound_peak_bytes = 1'600,
                 .status = "feasible"};
  return plan;
}

/// A step of a loop: g = matmul(), freed by the next step's first op; a lives in between, in an autograd thread; s
/// outlives both.
inline Run sample_step() {
  Run run;
  run.key = {.graph_hash = "step:1f", .signature = "0a1b", .device = "cpu", .torch_version = "2.11.0", .rules = "1"};
  run.kind = RunKind::kStep;
  run.name = "step on cpu";
  run.clock = "steady_clock";
  run.execution = 2;
  run.peak_bytes = 7'168;
  run.ops = {
      {.name = "zero_.0", .kind = "aten::zero_", .scope = "", .source = "", .start_ns = 0, .duration_ns = 5},
      {.name = "mm.0", .kind = "aten::mm", .scope = "MmBackward0", .source = "", .start_ns = 10, .duration_ns = 50},
  };
  run.tensors = {{.name = "mm.0", .kind = TensorKind::kIntermediate, .size_bytes = 1'024, .dtype = "", .shape = ""},
                 {.name = "mm.0/1", .kind = TensorKind::kOutput, .size_bytes = 2'048, .dtype = "", .shape = ""},
                 {.name = "mm.0/2", .kind = TensorKind::kOutput, .size_bytes = 2'048, .dtype = "", .shape = ""}};
  const auto allocation = [](std::int32_t tensor, std::int64_t bytes, std::int32_t allocate_event, std::int32_t free_op,
                             std::int32_t free_event, std::int32_t lane) {
    return AllocationRecord{.tensor = tensor,
                            .op = 1,
                            .index = tensor,
                            .requested_bytes = bytes,
                            .rounded_bytes = bytes,
                            .stream = 0,
                            .allocate_event = allocate_event,
                            .free_op = free_op,
                            .free_event = free_event,
                            .lane = lane};
  };
  // The free of the last step's g has event 4: g is live twice at once, and steps take turns.
  run.allocations = {allocation(0, 1'024, 0, 1, 3, 1), allocation(1, 2'048, 1, kNone, kNone, 0),
                     allocation(2, 2'048, 2, kNone, kNone, 0)};
  run.carried = {{.allocation = 1, .free_op = 1, .free_event = 4}};
  return run;
}

inline PlanRecord sample_step_plan() {
  PlanRecord plan;
  plan.order = {0, 1};
  plan.slots = {{.tensor = 0, .offset_bytes = 4'096, .size_bytes = 1'024, .other_offset_bytes = 4'096},
                {.tensor = 1, .offset_bytes = 0, .size_bytes = 2'048, .other_offset_bytes = 2'048}};
  plan.points = {{.kind = PointKind::kPlace, .op = 1, .tensor = 0},
                 {.kind = PointKind::kPlace, .op = 1, .tensor = 1},
                 {.kind = PointKind::kFree, .op = 1, .tensor = 0},
                 {.kind = PointKind::kFree, .op = 1, .tensor = 1}};
  plan.peak_bytes = plan.program_peak_bytes = plan.bound_bytes = 7'168;
  plan.order_status = plan.layout_status = "optimal";
  plan.arena_bytes = plan.arena_bound_bytes = 5'120;
  return plan;
}

/// A folder of the test's own, and paths in it.
class StoreFolder : public testing::Test {
 protected:
  StoreFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "stowage-store-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    // Tests that drop the superuser's rights still reach it.
    std::filesystem::permissions(folder_, std::filesystem::perms{0755});
  }
  ~StoreFolder() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "run.db") const { return folder_ / name; }

  std::filesystem::path folder_;
};

/// What `act` throws as `StoreError`.
template <class Act>
std::string store_error(Act act) {
  try {
    act();
  } catch (const StoreError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Changes a store behind its back, constraints ignored. Returns the first column of the last row, as text.
inline std::string tamper(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  std::string answer;
  const auto keep = [](void* to, int, char** values, char**) {
    *static_cast<std::string*>(to) = values[0] == nullptr ? "" : values[0];
    return 0;
  };
  EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  sqlite3_busy_timeout(database, 10'000);
  const std::string script = "PRAGMA ignore_check_constraints = ON;" + sql;
  EXPECT_EQ(sqlite3_exec(database, script.c_str(), keep, &answer, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
  sqlite3_close(database);
  return answer;
}

}  // namespace stowage::profiler
