// SPDX-License-Identifier: Apache-2.0
#include "solver/budget.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "solver/lifetimes.h"
#include "solver/order.h"
#include "solver/repeat.h"
#include "solver/text.h"
#include "tests/support/problems.h"
#include "tests/support/training_steps.h"

namespace stowage::solver {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ (value + 0x9e3779b97f4a7c15U + (hash << 6U) + (hash >> 2U))) * 0xff51afd7ed558ccdU;
}

std::vector<std::int32_t> program_order(const Problem& problem) {
  std::vector<std::int32_t> order(problem.ops.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Runs a step on made-up bytes: what an op writes depends on all that it reads, and on what was there. `op_of` and
/// `tensor_of` say what is the same as in the step that was repeated. Returns what persistent tensors and outputs hold
/// in the end, by that step's tensor.
std::vector<std::uint64_t> compute(const Problem& problem, const std::vector<std::int32_t>& op_of,
                                   const std::vector<std::int32_t>& tensor_of, std::size_t count) {
  std::vector<std::uint64_t> holds(problem.tensors.size());
  for (std::size_t tensor = 0; tensor < holds.size(); ++tensor) holds[tensor] = mix(1, tensor_of[tensor]);
  for (std::size_t op_id = 0; op_id < problem.ops.size(); ++op_id) {
    const Op& op = problem.ops[op_id];
    std::uint64_t taken = mix(2, op_of[op_id]);
    std::vector<std::int32_t> written = op.writes;
    for (const Event& event : op.events) {
      if (event.kind == Event::Kind::kAllocate) written.push_back(event.tensor);
    }
    for (const std::int32_t tensor : op.reads) {
      const bool is_statistics =
          problem.tensors[tensor].persistent && std::count(op.writes.begin(), op.writes.end(), tensor) > 0;
      if (!is_statistics) taken = mix(taken, holds[tensor]);
    }
    for (const std::int32_t tensor : written) {
      const bool is_made = std::count(op.writes.begin(), op.writes.end(), tensor) == 0;
      holds[tensor] = mix(mix(taken, tensor_of[tensor]), is_made ? 0 : holds[tensor]);
    }
  }
  std::vector<std::uint64_t> left(count);
  for (std::size_t tensor = 0; tensor < holds.size(); ++tensor) {
    if (problem.tensors[tensor].persistent || problem.tensors[tensor].output) left[tensor_of[tensor]] = holds[tensor];
  }
  return left;
}

std::int64_t time_ns(const Problem& problem, const std::vector<std::int32_t>& executions) {
  std::int64_t sum = 0;
  for (const std::int32_t op : executions) sum += problem.ops[op].duration_ns;
  return sum;
}

BudgetLimits few_nodes() {
  BudgetLimits limits;
  limits.node_limit = 200'000;
  return limits;
}

TEST(Budget, EveryPointOfTheTradeOffComputesTheStepAndPeaksWhereItSays) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = training_step(seed, 12);
    std::vector<std::int32_t> same(problem.tensors.size());
    std::iota(same.begin(), same.end(), 0);
    const auto expected = compute(problem, program_order(problem), same, problem.tensors.size());
    const std::vector<Budgeted> rows = find_trade_off(problem, 8, few_nodes());
    ASSERT_EQ(rows.size(), 8U);
    for (const Budgeted& row : rows) {
      const Repeated repeated = repeat(problem, row.executions);
      ASSERT_EQ(find_fault(repeated.problem), std::nullopt);
      EXPECT_EQ(compute(repeated.problem, repeated.op_of, repeated.tensor_of, problem.tensors.size()), expected);
      EXPECT_EQ(play(repeated.problem, program_order(repeated.problem)).peak_bytes, row.peak_bytes);
      EXPECT_EQ(time_ns(problem, row.executions), row.time_ns);
      EXPECT_LE(row.bound_time_ns, row.time_ns);
      EXPECT_LE(row.bound_peak_bytes, row.peak_bytes);
    }
    for (std::size_t row = 1; row < rows.size(); ++row) {
      EXPECT_LE(rows[row].peak_bytes, rows[row - 1].peak_bytes);
      EXPECT_GE(rows[row].time_ns, rows[row - 1].time_ns);
    }
    EXPECT_EQ(rows.front().time_ns, time_ns(problem, program_order(problem)));
  }
}

TEST(Budget, PeakAndTimeFollowTheLimits) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = training_step(seed, 14);
    BudgetLimits limits = few_nodes();
    const std::vector<Budgeted> rows = find_trade_off(problem, 2, limits);
    std::int64_t last_peak_bytes = rows.front().peak_bytes;
    std::int64_t last_time_ns = 0;
    for (int step = 0; step <= 6; ++step) {
      limits.peak_bytes = rows.front().peak_bytes - (rows.front().peak_bytes - rows.back().peak_bytes) * step / 6;
      const Budgeted budgeted = fit(problem, limits);
      EXPECT_LE(budgeted.peak_bytes, limits.peak_bytes);
      EXPECT_LE(budgeted.peak_bytes, last_peak_bytes);
      EXPECT_GE(budgeted.time_ns, last_time_ns);
      EXPECT_TRUE(budgeted.status == Status::kFeasible || budgeted.status == Status::kOptimal);
      last_peak_bytes = budgeted.peak_bytes;
      last_time_ns = budgeted.time_ns;
    }
    BudgetLimits slow = few_nodes();
    slow.time_ns = last_time_ns;
    EXPECT_LE(fit(problem, slow).time_ns, last_time_ns);
    EXPECT_LE(fit(problem, slow).peak_bytes, last_peak_bytes);
    limits.peak_bytes = 1;
    const Budgeted impossible = fit(problem, limits);
    EXPECT_EQ(impossible.status, Status::kInfeasible);
    EXPECT_GT(impossible.bound_peak_bytes, 1);
    EXPECT_EQ(impossible.peak_bytes, impossible.least_peak_bytes);
  }
}

TEST(Budget, MakesACheapTensorAgainRatherThanADearOne) {
  // Both hold 10 bytes while `big` runs; one takes 9 to make, the other 2.
  const Problem problem{.name = "two",
                        .ops = {timed(op("dear", {0}, {allocate(1)}), 9), timed(op("cheap", {0}, {allocate(2)}), 2),
                                op("first", {1, 2}, {allocate(3)}), op("big", {3}, {allocate(4), free(4), allocate(5)}),
                                op("last", {1, 2, 5}, {allocate(6)})},
                        .tensors = {persistent(1), bytes(10), bytes(10), bytes(1), bytes(30), bytes(1), output(1)}};
  BudgetLimits limits = few_nodes();
  limits.peak_bytes = 43;
  const Budgeted budgeted = fit(problem, limits);
  EXPECT_EQ(budgeted.executions, (std::vector<std::int32_t>{0, 1, 2, 3, 1, 4}));
  EXPECT_EQ(budgeted.time_ns, 13);
}

TEST(Budget, IsReadWithUnitsOrAsAShare) {
  EXPECT_EQ(parse_budget("6GiB", 1000), std::int64_t{6} << 30);
  EXPECT_EQ(parse_budget("1.5 MB", 1000), 1'500'000);
  EXPECT_EQ(parse_budget("4096", 1000), 4096);
  EXPECT_EQ(parse_budget("0.5", 1000), 500);
  EXPECT_EQ(parse_budget("1", 1000), 1000);
  for (const char* text : {"", "half", "-3", "0", "6gib", "6GiBs", "nan", "1e40"}) {
    EXPECT_THROW(parse_budget(text, 1000), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace stowage::solver
