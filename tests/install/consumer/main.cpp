// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "solver/plan.h"
#include "solver/problem.h"
#include "solver/solve.h"
#include "solver/validate.h"

namespace {

using stowage::solver::Event;
using stowage::solver::Op;
using stowage::solver::Problem;

constexpr std::int64_t kMebibyte = 1024 * 1024;

Op op(std::string name, std::vector<std::int32_t> reads, std::int32_t result) {
  Op op;
  op.name = std::move(name);
  op.reads = std::move(reads);
  op.writes = {result};
  op.events = {{Event::Kind::kAllocate, result}};
  return op;
}

// Two branches, each a big tensor reduced to a small one. The program makes both big tensors before it reduces either:
// 8 + 8 MiB and, while the first is reduced, the small result. Branch after branch needs 1 + 8 + 1 MiB.
Problem two_branches() {
  Problem problem;
  problem.name = "two branches";
  problem.tensors = {{.name = "big_a", .size_bytes = 8 * kMebibyte},
                     {.name = "big_b", .size_bytes = 8 * kMebibyte},
                     {.name = "small_a", .size_bytes = kMebibyte},
                     {.name = "small_b", .size_bytes = kMebibyte},
                     {.name = "sum", .size_bytes = kMebibyte, .output = true}};
  problem.ops = {op("make_a", {}, 0), op("make_b", {}, 1), op("reduce_a", {0}, 2), op("reduce_b", {1}, 3),
                 op("add", {2, 3}, 4)};
  return problem;
}

}  // namespace

int main() {
  const Problem problem = two_branches();
  const stowage::solver::Plan plan = stowage::solver::solve(problem);
  if (const std::optional<std::string> breach = stowage::solver::validate(problem, plan)) {
    std::cerr << *breach << '\n';
    return 1;
  }
  std::cout << "program peak " << plan.program_peak_bytes << " B, planned peak " << plan.peak_bytes << " B, "
            << to_string(plan.order_status) << '\n';
}
