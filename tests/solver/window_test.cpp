// SPDX-License-Identifier: Apache-2.0
#include "solver/window.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "solver/exact_order.h"
#include "solver/lifetimes.h"
#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(Window, IsAProblemOfItsOwn) {
  // "right", "left_end" and "right_end" of the diamond. The source (8) lives through; "left" (100) comes in and dies;
  // the two ends stay behind.
  const Problem window = cut_window(diamond(), {0, 1, 2, 3, 4, 5}, 2, 5);
  Problem expected{.name = "diamond",
                   .ops = {op("before", {}, {allocate(2)}), op("right", {0}, {allocate(1)}, {}, {0}),
                           op("left_end", {2}, {allocate(3)}, {}, {0}), op("right_end", {1}, {allocate(4)}, {}, {0})},
                   .tensors = {persistent(8), bytes(50), bytes(100), output(1), output(10), persistent(0)}};
  expected.tensors.back().alignment_bytes = Tensor{}.alignment_bytes;
  EXPECT_EQ(window, expected);
  EXPECT_EQ(find_fault(window), std::nullopt);
}

TEST(Window, KeepsOnlyReuseOfWhatDiesInIt) {
  // "use" reads tensor 1 behind the window, so that only tensor 0 is left as a candidate.
  const Problem window = cut_window(reuse(), {0, 1, 2, 3, 4}, 2, 4);
  ASSERT_EQ(window.ops.size(), 3);
  EXPECT_EQ(window.ops[1].reuses, (std::vector<Reuse>{{.output = 2, .input = 0}}));
  EXPECT_EQ(window.ops[2].reuses, (std::vector<Reuse>{{.output = 3, .input = 2}}));
}

TEST(Window, IsPastedWhereItWasCut) {
  EXPECT_EQ(paste_window({5, 3, 1, 2, 0, 4}, 1, {0, 3, 1, 2}), (Ids{5, 2, 3, 1, 0, 4}));
}

TEST(Window, NeverMakesAnOrderWorse) {
  int better = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed, 30);
    Ids order(problem.ops.size());
    std::iota(order.begin(), order.end(), 0);
    const std::int64_t peak_bytes = play(problem, order).peak_bytes;
    const auto begin = static_cast<std::int32_t>(seed % 20);
    const Problem window = cut_window(problem, order, begin, begin + 10);
    ASSERT_EQ(find_fault(window), std::nullopt);
    Ids same(window.ops.size());
    std::iota(same.begin(), same.end(), 0);
    const std::int64_t window_bytes = play(window, same).peak_bytes;
    EXPECT_LE(window_bytes, peak_bytes);

    const Dependencies dependencies = find_dependencies(window);
    const ExactOrder found = search_orders(window, dependencies, window_bytes, /*bound_bytes=*/0, {});
    if (found.ops.empty()) continue;
    const Ids pasted = paste_window(order, begin, found.ops);
    Ids position(order.size());
    for (std::int32_t at = 0; at < std::ssize(pasted); ++at) position[pasted[at]] = at;
    const Dependencies all = find_dependencies(problem);
    for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
      for (const std::int32_t earlier : all.predecessors[op]) EXPECT_LT(position[earlier], position[op]);
    }
    EXPECT_LE(play(problem, pasted).peak_bytes, peak_bytes);
    if (window_bytes == peak_bytes && play(problem, pasted).peak_bytes < peak_bytes) ++better;
  }
  EXPECT_GT(better, 10);
}

}  // namespace
}  // namespace stowage::solver
