// SPDX-License-Identifier: Apache-2.0
// Promises that hold for every problem, on seeded random ones.
#include <algorithm>

#include <gtest/gtest.h>

#include "solver/formats.h"
#include "solver/solve.h"
#include "solver/validate.h"
#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

// No deadline that a slow machine could meet: nodes limit the search.
constexpr SolveOptions kOptions{.deadline_ms = 3'600'000, .node_limit = 20'000};

TEST(Random, PlansAreValidAndBounded) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed, 5 + static_cast<int>(seed % 100));
    ASSERT_EQ(find_fault(problem), std::nullopt);
    const Plan plan = solve(problem, kOptions);
    ASSERT_EQ(validate(problem, plan), std::nullopt);
    EXPECT_LE(plan.bound_bytes, plan.peak_bytes);
    EXPECT_LE(plan.peak_bytes, plan.program_peak_bytes);
    std::int64_t sum_bytes = 0;
    for (const Tensor& tensor : problem.tensors) sum_bytes += tensor.size_bytes;
    EXPECT_LE(plan.peak_bytes, sum_bytes);
  }
}

TEST(Random, SameInputGivesTheSamePlan) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed, 80);
    EXPECT_EQ(solve(problem, kOptions), solve(problem, kOptions));
  }
}

TEST(Random, SmallOrdersAreOptimalAndProven) {
  int reused = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed, 8);
    const std::int64_t lowest_bytes = BruteForce(problem).lowest_peak_bytes();
    const Plan plan = solve(problem, kOptions);
    EXPECT_EQ(plan.peak_bytes, lowest_bytes);
    EXPECT_EQ(plan.bound_bytes, lowest_bytes);
    reused += static_cast<int>(std::ssize(plan.reuse_of) - std::count(plan.reuse_of.begin(), plan.reuse_of.end(), -1));
  }
  EXPECT_GT(reused, 100);  // or the problems show nothing about reuse
}

TEST(Random, StepsSurviveBeingWrittenAndRead) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed, 40);
    EXPECT_EQ(parse_step(format_step(problem), "step.json"), problem);
  }
}

/// Damages bytes of a good text; a reader must accept or refuse, nothing else.
template <typename Read>
void fuzz(const std::string& good, Read read) {
  int refused = 0;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 engine(seed);
    std::string text = good;
    for (int count = 1 + static_cast<int>(engine() % 3); count > 0 && !text.empty(); --count) {
      const std::size_t position = engine() % text.size();
      const std::string_view pieces[] = {"", "-", "9999999999999999999", "\"", ",", "}", "\n", "\xff", "0"};
      text.replace(position, engine() % 3, pieces[engine() % std::size(pieces)]);
    }
    try {
      read(text);
    } catch (const std::invalid_argument& error) {
      ++refused;
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 200);
}

TEST(Random, DamagedStepsAreRefusedInOneLine) {
  fuzz(format_step(random_problem(1, 6)), [](const std::string& text) { parse_step(text, "step.json"); });
}

TEST(Random, DamagedBuffersAreRefusedInOneLine) {
  fuzz("id,lower,upper,size,offset,alignment\na,0,4,10,,1\nb,2,6,10,16,8\nc,3,9,7,,\n",
       [](const std::string& text) { lay_out(parse_buffers(text, "buffers.csv")); });
}

}  // namespace
}  // namespace stowage::solver
