// SPDX-License-Identifier: Apache-2.0
#include "solver/copies.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>

#include <gtest/gtest.h>

#include "solver/budget.h"
#include "solver/lifetimes.h"
#include "solver/order.h"
#include "solver/repeat.h"
#include "solver/text.h"
#include "tests/support/problems.h"
#include "tests/support/training_steps.h"

namespace stowage::solver {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kByteInNs = 1'000'000'000;  ///< bytes in a second: one in each ns

BudgetLimits limits_with(std::int64_t copy_bytes_per_s) {
  BudgetLimits limits;
  limits.copy_bytes_per_s = copy_bytes_per_s;
  limits.node_limit = 200'000;
  return limits;
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ (value + 0x9e3779b97f4a7c15U + (hash << 6U) + (hash >> 2U))) * 0xff51afd7ed558ccdU;
}

/// Runs a step on made-up bytes, as slowly as it can be told: what an op writes depends on all that it reads, what has
/// been given up holds nothing of worth, and what is fetched does so until it arrives.
class Replay {
 public:
  Replay(const Repeated& repeated, std::size_t tensor_count, std::int64_t copy_bytes_per_s)
      : repeated_(repeated), bytes_per_s_(copy_bytes_per_s), holds_(repeated.problem.tensors.size()) {
    left_.resize(tensor_count);
    for (std::size_t tensor = 0; tensor < holds_.size(); ++tensor) holds_[tensor] = mix(1, repeated.tensor_of[tensor]);
    for (std::int32_t op = 0; op < std::ssize(repeated.problem.ops); ++op) {
      const std::string& kind = repeated.problem.ops[op].kind;
      if (kind == "stowage::offload") offload(repeated.problem.ops[op]);
      if (kind == "stowage::offloaded") give_up(repeated.problem.ops[op]);
      if (kind == "stowage::fetch") fetch(repeated.problem.ops[op]);
      if (kind == "stowage::arrive") arrive(repeated.problem.ops[op]);
      if (repeated.op_of[op] != kCopyPoint) run(repeated.problem.ops[op], repeated.op_of[op]);
    }
    for (std::size_t tensor = 0; tensor < holds_.size(); ++tensor) {
      const Tensor& each = repeated.problem.tensors[tensor];
      if (each.persistent || each.output) left_[repeated.tensor_of[tensor]] = holds_[tensor];
    }
  }

  std::int64_t clock_ns() const { return clock_ns_; }
  /// What persistent tensors and outputs hold in the end, by tensor of the step.
  const std::vector<std::uint64_t>& left() const { return left_; }

 private:
  struct Host {
    std::uint64_t holds = 0;
    std::int64_t ready_ns = 0;  ///< the end of the copy out, then of that back
  };

  std::int64_t copy_ns(std::int32_t tensor) const {
    const auto size_bytes = static_cast<double>(repeated_.problem.tensors[tensor].size_bytes);
    return static_cast<std::int64_t>(std::ceil(size_bytes * 1e9 / static_cast<double>(bytes_per_s_)));
  }

  void offload(const Op& op) {
    const std::int32_t tensor = op.reads.front();
    out_free_ns_ = std::max(out_free_ns_, clock_ns_) + copy_ns(tensor);
    host_[repeated_.tensor_of[tensor]] = {holds_[tensor], out_free_ns_};
  }

  void give_up(const Op& op) {
    const std::int32_t tensor = op.reads.front();
    const Host& host = host_.at(repeated_.tensor_of[tensor]);
    EXPECT_LE(host.ready_ns, clock_ns_);
    EXPECT_GT(host.ready_ns, before_last_ns_) << "could be given up earlier";
    EXPECT_EQ(host.holds, holds_[tensor]) << "written while it is copied out";
    holds_[tensor] = 0;
  }

  void fetch(const Op& op) {
    const std::int32_t tensor = op.events.front().tensor;
    Host& host = host_.at(repeated_.tensor_of[tensor]);
    back_free_ns_ = std::max(back_free_ns_, clock_ns_) + copy_ns(tensor);
    host.ready_ns = back_free_ns_;
    holds_[tensor] = 0;
  }

  void arrive(const Op& op) {
    const std::int32_t tensor = op.reads.front();
    const Host& host = host_.at(repeated_.tensor_of[tensor]);
    clock_ns_ = std::max(clock_ns_, host.ready_ns);
    holds_[tensor] = host.holds;
  }

  void run(const Op& op, std::int32_t op_of) {
    std::uint64_t taken = mix(2, op_of);
    Ids written = op.writes;
    for (const Event& event : op.events) {
      if (event.kind == Event::Kind::kAllocate) written.push_back(event.tensor);
    }
    for (const std::int32_t tensor : op.reads) {
      const bool is_written = std::count(op.writes.begin(), op.writes.end(), tensor) > 0;
      if (!repeated_.problem.tensors[tensor].persistent || !is_written) taken = mix(taken, holds_[tensor]);
    }
    for (const std::int32_t tensor : written) {
      const bool is_made = std::count(op.writes.begin(), op.writes.end(), tensor) == 0;
      holds_[tensor] = mix(mix(taken, repeated_.tensor_of[tensor]), is_made ? 0 : holds_[tensor]);
    }
    before_last_ns_ = clock_ns_;
    clock_ns_ += op.duration_ns;
  }

  const Repeated& repeated_;
  const std::int64_t bytes_per_s_;
  std::vector<std::uint64_t> holds_;  ///< by tensor of `repeated_`
  std::map<std::int32_t, Host> host_;
  std::vector<std::uint64_t> left_;
  std::int64_t clock_ns_ = 0;
  std::int64_t before_last_ns_ = 0;  ///< when the op began that ran last
  std::int64_t out_free_ns_ = 0;
  std::int64_t back_free_ns_ = 0;
};

Ids program_order(const Problem& problem) {
  Ids order(problem.ops.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// 0, persistent -> a: 1 -> b: 2 -> c: 3 -> d: 4 -> last, which takes 1 too. Not to be run again.
Problem long_gap() {
  Problem problem{.name = "long_gap",
                  .ops = {op("a", {0}, {allocate(1)}), op("b", {1}, {allocate(2)}), op("c", {2}, {allocate(3)}),
                          op("d", {3}, {allocate(4)}), op("last", {1, 4}, {allocate(5)})},
                  .tensors = {persistent(1), bytes(20), bytes(10), bytes(30), bytes(10), output(1)}};
  for (Op& each : problem.ops) each.duration_ns = 30;
  return problem;
}

TEST(Link, HidesCopiesBehindOps) {
  const Problem problem = long_gap();
  std::vector<Copy> copies{{.tensor = 1, .offload_after = 0, .arrive_before = 4}};
  std::int64_t time_ns = 0;
  EXPECT_EQ(Link(problem, kByteInNs).schedule({0, 1, 2, 3, 4}, copies, time_ns), -1);
  // Out from 30 to 50, so "b" is the first op behind which it is gone; back by 120, so before "d", at 90.
  EXPECT_EQ(copies, (std::vector<Copy>{{1, 0, 1, 3, 4}}));
  EXPECT_EQ(time_ns, 150);
}

TEST(Link, AddsTheWaitWhereTheCopyBackIsNotHidden) {
  const Problem problem = long_gap();
  std::vector<Copy> copies{{.tensor = 1, .offload_after = 0, .arrive_before = 4}};
  std::int64_t time_ns = 0;
  EXPECT_EQ(Link(problem, kByteInNs / 2).schedule({0, 1, 2, 3, 4}, copies, time_ns), -1);
  // Out from 30 to 70, gone behind "c"; while "d" runs it is away, then 40 ns pass until it is back.
  EXPECT_EQ(copies, (std::vector<Copy>{{1, 0, 2, 4, 4}}));
  EXPECT_EQ(time_ns, 190);
}

TEST(Link, RefusesWhatIsNeededBeforeItIsGone) {
  const Problem problem = long_gap();
  std::int64_t time_ns = 0;
  // Out from 90 to 110, gone behind "d": no op is left that runs without it.
  std::vector<Copy> copies{{.tensor = 1, .offload_after = 2, .arrive_before = 4}};
  EXPECT_EQ(Link(problem, kByteInNs).schedule({0, 1, 2, 3, 4}, copies, time_ns), 0);
}

TEST(Link, ServesCopiesOneAfterTheOther) {
  const Problem problem = long_gap();
  std::vector<Copy> copies{{.tensor = 2, .offload_after = 1, .arrive_before = 5},
                           {.tensor = 1, .offload_after = 1, .arrive_before = 5}};
  std::int64_t time_ns = 0;
  EXPECT_EQ(Link(problem, kByteInNs / 2).schedule({0, 1, 2, 3, 3, 4}, copies, time_ns), -1);
  // Out from 60 to 80 and from 80 to 120: gone behind executions 2 and 3. The second is back from 150, the first from
  // 90 on, since it must not keep the second from beginning at 110.
  EXPECT_EQ(copies, (std::vector<Copy>{{2, 1, 2, 4, 5}, {1, 1, 3, 5, 5}}));
  EXPECT_EQ(time_ns, 180 + 40);
}

TEST(Repeat, CopiesAreOpsThatKeepTheirPlace) {
  const Repeated repeated = repeat(long_gap(), {0, 1, 2, 3, 4}, {{1, 0, 1, 3, 4}});
  const Problem& problem = repeated.problem;
  ASSERT_EQ(find_fault(problem), std::nullopt);
  EXPECT_EQ(repeated.op_of, (Ids{0, kCopyPoint, 1, kCopyPoint, 2, kCopyPoint, 3, kCopyPoint, 4}));
  EXPECT_EQ(repeated.tensor_of, (Ids{0, 1, 2, 3, 1, 4, 5}));
  EXPECT_EQ(problem.ops[1].kind, "stowage::offload");
  EXPECT_EQ(problem.ops[1].reads, (Ids{1}));
  EXPECT_EQ(problem.ops[3].kind, "stowage::offloaded");
  EXPECT_EQ(problem.ops[3].reads, (Ids{1}));
  EXPECT_EQ(problem.ops[5].kind, "stowage::fetch");
  EXPECT_EQ(problem.ops[5].events, (std::vector<Event>{allocate(4)}));
  EXPECT_EQ(problem.ops[7].kind, "stowage::arrive");
  EXPECT_EQ(problem.ops[7].reads, (Ids{4}));
  EXPECT_EQ(problem.ops[7].writes, (Ids{4}));
  EXPECT_EQ(problem.ops[8].reads, (Ids{4, 5}));
  EXPECT_EQ(find_order(problem).ops, program_order(problem));
}

TEST(Repeat, ViewsOfWhatCameBackAreMadeAgain) {
  Problem problem = long_gap();
  problem.ops.insert(problem.ops.begin() + 1, timed(op("view", {1}, {}), 0));
  for (const std::int32_t user : {2, 5}) problem.ops[user].after = problem.ops[user].views = {1};
  const Repeated repeated = repeat(problem, {0, 1, 2, 3, 4, 5}, {{1, 2, 3, 4, 5}});
  EXPECT_EQ(repeated.op_of, (Ids{0, 1, 2, kCopyPoint, 3, kCopyPoint, kCopyPoint, 4, kCopyPoint, 1, 5}));
  EXPECT_EQ(repeated.problem.ops[10].views, (Ids{9}));
  // With the views that it added, it says the same again.
  Ids executions = repeated.op_of;
  std::erase(executions, kCopyPoint);
  EXPECT_EQ(repeat(problem, executions, repeated.copies).problem, repeated.problem);
}

TEST(Repeat, RefusesCopiesOfOtherBytes) {
  const auto why_refused = [](const Problem& problem, const Copy& copy) -> std::string {
    try {
      repeat(problem, program_order(problem), {copy});
    } catch (const std::invalid_argument& refusal) {
      return refusal.what();
    }
    return "";
  };
  Problem problem = long_gap();
  EXPECT_EQ(why_refused(problem, {0, 0, 1, 3, 4}), "cannot repeat ops: there is no such copy of tensor 0");
  EXPECT_EQ(why_refused(problem, {7, 0, 1, 3, 4}), "cannot repeat ops: there is no such copy of tensor 7");
  EXPECT_EQ(why_refused(problem, {1, 0, 2, 2, 4}), "cannot repeat ops: there is no such copy of tensor 1");
  EXPECT_EQ(why_refused(problem, {3, 0, 1, 3, 4}), "cannot copy tensor 3 '': it has not been made");
  problem.ops[1].writes = {1};
  EXPECT_EQ(why_refused(problem, {1, 0, 1, 3, 4}), "cannot copy tensor 1 '': op 1 writes it meanwhile");
  problem.ops[1].writes = {};
  problem.ops[2].writes = {1};
  EXPECT_EQ(why_refused(problem, {1, 0, 1, 3, 4}),
            "cannot repeat ops: op 4 'last': tensor 1 '' does not hold what it takes");
}

/// What "a" makes is needed first and last; most lives in the middle. Each op takes 30 ns.
Problem wide_middle() {
  Problem problem{
      .name = "wide_middle",
      .ops = {op("a", {0}, {allocate(1)}), op("b", {1}, {allocate(2)}), op("between", {2}, {allocate(3)}),
              op("c", {2}, {allocate(4)}), op("d", {4}, {allocate(5)}), op("e", {5}, {allocate(6)}),
              op("last", {1, 6}, {allocate(7)})},
      .tensors = {persistent(1), bytes(20), bytes(10), bytes(1), bytes(30), bytes(10), bytes(1), output(1)}};
  for (Op& each : problem.ops) each.duration_ns = 30;
  return problem;
}

TEST(Budget, CopiesWhatCannotBeMadeAgain) {
  BudgetLimits limits = limits_with(kByteInNs);
  limits.peak_bytes = 41;  // 1, 10 and 30 while "c" and "d" run
  EXPECT_EQ(fit(wide_middle(), limits_with(0)).peak_bytes, 61);
  const Budgeted copied = fit(wide_middle(), limits);
  EXPECT_EQ(copied.peak_bytes, 41);
  EXPECT_EQ(copied.time_ns, 210);
  EXPECT_EQ(copied.status, Status::kOptimal);
  EXPECT_EQ(copied.executions, (Ids{0, 1, 2, 3, 4, 5, 6}));
  // Out from 60 to 80; back by 180.
  EXPECT_EQ(copied.copies, (std::vector<Copy>{{1, 1, 2, 5, 6}}));
}

TEST(Budget, CopiesWhereThatIsFasterThanMakingAgain) {
  Problem problem = wide_middle();
  problem.ops[0].repeatable = true;
  BudgetLimits limits = limits_with(0);
  limits.peak_bytes = 41;
  EXPECT_EQ(fit(problem, limits).time_ns, 240);
  limits.copy_bytes_per_s = kByteInNs;
  EXPECT_EQ(fit(problem, limits).time_ns, 210);
  // 100 ns each way are too many to be gone before it is needed.
  limits.copy_bytes_per_s = kByteInNs / 5;
  EXPECT_EQ(fit(problem, limits).time_ns, 240);
  EXPECT_TRUE(fit(problem, limits).copies.empty());
}

TEST(Budget, CopiesNothingThatItIsToLeave) {
  BudgetLimits limits = limits_with(kByteInNs);
  limits.peak_bytes = 41;
  limits.uncopyable = {1};
  EXPECT_EQ(fit(wide_middle(), limits).peak_bytes, 61);
}

TEST(Budget, CopiesNothingThatIsHeldOtherwise) {
  Problem problem = wide_middle();
  problem.ops[1].kind = "a view that may not be made again";
  problem.ops[6].after = problem.ops[6].views = {1};
  BudgetLimits limits = limits_with(kByteInNs);
  limits.peak_bytes = 41;
  EXPECT_EQ(fit(problem, limits).peak_bytes, 61);
}

TEST(Budget, EveryPointWithCopiesComputesTheStepInTheTimeAndMemoryThatItSays) {
  int with_copies = 0;
  int with_both = 0;
  int with_waits = 0;
  std::int64_t least_bytes = 0;
  std::int64_t least_without_bytes = 0;
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Problem problem = training_step(seed, 12);
    const std::int64_t bytes_per_s = kByteInNs / (1 + 4 * (seed % 4));
    for (Op& each : problem.ops) each.repeatable &= each.name == "view" || seed % 3 != 0;
    const Repeated same = repeat(problem, program_order(problem));
    const Replay expected(same, problem.tensors.size(), bytes_per_s);
    const std::vector<Budgeted> rows = find_trade_off(problem, 8, limits_with(bytes_per_s));
    ASSERT_EQ(rows.size(), 8U);
    for (const Budgeted& row : rows) {
      const Repeated repeated = repeat(problem, row.executions, row.copies);
      ASSERT_EQ(find_fault(repeated.problem), std::nullopt);
      const Replay replay(repeated, problem.tensors.size(), bytes_per_s);
      EXPECT_EQ(replay.left(), expected.left());
      EXPECT_EQ(replay.clock_ns(), row.time_ns);
      EXPECT_EQ(play(repeated.problem, program_order(repeated.problem)).peak_bytes, row.peak_bytes);
      EXPECT_EQ(repeated.copies, row.copies);
      EXPECT_LE(row.bound_time_ns, row.time_ns);
      EXPECT_LE(row.bound_peak_bytes, row.peak_bytes);
      std::int64_t op_ns = 0;
      for (const std::int32_t execution : row.executions) op_ns += problem.ops[execution].duration_ns;
      with_copies += row.copies.empty() ? 0 : 1;
      with_both += !row.copies.empty() && row.executions.size() > same.op_of.size() ? 1 : 0;
      with_waits += row.time_ns > op_ns ? 1 : 0;
    }
    for (std::size_t row = 1; row < rows.size(); ++row) {
      EXPECT_LE(rows[row].peak_bytes, rows[row - 1].peak_bytes);
      EXPECT_GE(rows[row].time_ns, rows[row - 1].time_ns);
    }
    least_bytes += rows.back().peak_bytes;
    least_without_bytes += find_trade_off(problem, 8, limits_with(0)).back().peak_bytes;
  }
  EXPECT_GT(with_copies, 100);
  EXPECT_GT(with_both, 50);
  EXPECT_GT(with_waits, 0);
  EXPECT_LT(least_bytes, least_without_bytes);
}

TEST(Bandwidth, IsReadWithUnits) {
  EXPECT_EQ(parse_bandwidth("25GB"), 25'000'000'000);
  EXPECT_EQ(parse_bandwidth("1 GiB"), std::int64_t{1} << 30);
  for (const char* text : {"", "fast", "0.5", "0", "-1GB"}) {
    EXPECT_THROW(parse_bandwidth(text), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace stowage::solver
