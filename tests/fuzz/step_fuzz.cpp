// SPDX-License-Identifier: Apache-2.0
// A step is refused in one line, or it survives being written and read, and can be planned.
#include "solver/formats.h"
#include "solver/solve.h"
#include "solver/validate.h"
#include "tests/fuzz/promise.h"

namespace {

using namespace stowage::solver;

constexpr std::size_t kMostOps = 16;
// No deadline that a slow machine could meet: nodes limit the search.
constexpr SolveOptions kOptions{.deadline_ms = 3'600'000, .node_limit = 300};

void try_step(std::string_view text) {
  const Problem problem = parse_step(text, "step.json");
  promise(parse_step(format_step(problem), "step.json") == problem, "a step survives being written and read");
  if (problem.ops.size() > kMostOps || problem.tensors.size() > 3 * kMostOps) return;
  const Plan plan = solve(problem, kOptions);
  const auto fault = validate(problem, plan);
  promise(!fault, fault.value_or(""));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    try_step({reinterpret_cast<const char*>(data), size});
  } catch (const std::invalid_argument& error) {
    promise_one_line(error);
  }
  return 0;
}
