// SPDX-License-Identifier: Apache-2.0
#include "solver/repeat.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/problems.h"
#include "tests/support/training_steps.h"

namespace stowage::solver {
namespace {

std::string why_refused(const Problem& problem, const std::vector<std::int32_t>& executions) {
  try {
    repeat(problem, executions);
  } catch (const std::invalid_argument& refusal) {
    return refusal.what();
  }
  return "";
}

/// input 0 -> a: 1 -> b: 2 -> c reads 1 and 2
Problem read_again() {
  return {.name = "read_again",
          .ops = {timed(op("a", {0}, {allocate(1)}), 3), timed(op("b", {1}, {allocate(2)}), 2),
                  op("c", {1, 2}, {allocate(3)})},
          .tensors = {persistent(4), bytes(10), bytes(20), output(5)}};
}

TEST(Repeat, WithoutRepeatsIsTheStepItself) {
  const Problem problem = read_again();
  const Repeated repeated = repeat(problem, {0, 1, 2});
  EXPECT_EQ(repeated.problem, problem);
  EXPECT_EQ(repeated.op_of, (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(Repeat, ReadersTakeWhatWasMadeLast) {
  const Repeated repeated = repeat(read_again(), {0, 1, 0, 2});
  // a again makes tensor 3; c reads that and b's.
  EXPECT_EQ(repeated.tensor_of, (std::vector<std::int32_t>{0, 1, 2, 1, 3}));
  EXPECT_EQ(repeated.problem.ops[2].name, "a.again");
  EXPECT_EQ(repeated.problem.ops[2].events, (std::vector<Event>{allocate(3)}));
  EXPECT_EQ(repeated.problem.ops[3].reads, (std::vector<std::int32_t>{3, 2}));
  EXPECT_EQ(find_fault(repeated.problem), std::nullopt);
}

TEST(Repeat, ViewsOfWhatIsMadeAgainAreMadeAgain) {
  Problem problem = view();
  for (Op& each : problem.ops) each.repeatable = true;
  problem.ops[3].views = {1};
  problem.ops[3].repeatable = false;
  const Repeated repeated = repeat(problem, {0, 2, 0, 3});
  // The view is first made where it is needed.
  EXPECT_EQ(repeated.op_of, (std::vector<std::int32_t>{0, 2, 0, 1, 3}));
  EXPECT_EQ(repeated.problem.ops[3].reads, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(repeated.problem.ops[4].views, (std::vector<std::int32_t>{3}));
}

TEST(Repeat, WritesOfPersistentTensorsAreLeftOut) {
  Problem problem{.name = "norm",
                  .ops = {timed(op("norm", {0, 1}, {allocate(2)}, {1}), 1), op("use", {2}, {allocate(3)}),
                          op("use", {2}, {allocate(4)})},
                  .tensors = {persistent(4), persistent(1), bytes(8), bytes(1), output(1)}};
  const Repeated repeated = repeat(problem, {0, 1, 0, 2});
  EXPECT_EQ(repeated.problem.ops[2].reads, (std::vector<std::int32_t>{0}));
  EXPECT_TRUE(repeated.problem.ops[2].writes.empty());
}

TEST(Repeat, ATensorWrittenLaterNeedsItsWriterAgainToo) {
  Problem problem = in_place();
  for (Op& each : problem.ops) each.repeatable = true;
  EXPECT_EQ(why_refused(problem, {0, 1, 2, 0, 3}),
            "cannot repeat ops: op 3 'use': tensor 0 '' does not hold what it takes");
  EXPECT_EQ(why_refused(problem, {0, 1, 2, 0, 2, 3}), "");
}

TEST(Repeat, RefusesWhatWouldComputeAnythingElse) {
  EXPECT_EQ(why_refused(read_again(), {0, 1, 2, 2}),
            "cannot repeat ops: op 2 'c': it runs again but is not repeatable");
  EXPECT_EQ(why_refused(read_again(), {0, 1}), "cannot repeat ops: op 2 'c': it is not there");
  EXPECT_EQ(why_refused(read_again(), {0, 1, 2, 7}), "cannot repeat ops: there is no op 7");
  EXPECT_EQ(why_refused(read_again(), {1, 0, 2}),
            "cannot repeat ops: op 1 'b': tensor 1 '' does not hold what it takes");
  Problem written = read_again();
  written.ops.push_back(op("write", {0}, {}, {0}));
  EXPECT_EQ(why_refused(written, {0, 1, 2, 3, 0}),
            "cannot repeat ops: op 0 'a': tensor 0 '' does not hold what it takes");
  Problem made = read_again();
  made.ops[2].repeatable = true;
  EXPECT_EQ(why_refused(made, {0, 1, 2, 2}),
            "cannot repeat ops: op 2 'c': it runs again but makes an output of the step");
  Problem ordered = read_again();
  ordered.ops[2].reads.clear();
  ordered.ops[2].after = {1};
  EXPECT_EQ(why_refused(ordered, {0, 2, 1}), "cannot repeat ops: op 2 'c': op 1 has to run before it");
}

}  // namespace
}  // namespace stowage::solver
