// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "plugin/dependencies.h"
#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// What came of one planned run under the option `verify`.
struct Verdict {
  std::string why_not;        ///< the run could not be verified, for this reason: it ran as the program has it
  nlohmann::json difference;  ///< the first, as `status()` shows it; null where everything was equal
  std::int64_t unread = 0;    ///< results whose bytes could not be read, and so were not compared
};

/// What came of all of them, for a region.
struct VerifyTotal {
  std::int64_t verified_runs = 0;   ///< in which everything was equal
  std::int64_t differing_runs = 0;  ///< the difference counts for the run, though the program's results were given
  std::int64_t unverified_runs = 0;
  std::string why_unverified;
  std::int64_t unread = 0;  ///< of the last run
  nlohmann::json first_difference;

  /// Notes the first difference of the region of that name.
  void add(const Verdict& verdict, const std::string& region);
  nlohmann::json status() const;
};

class Checks;

/// Runs a planned graph against its program: first the program, then, from the same inputs and random numbers, the
/// plan, comparing the bytes of every result as soon as its op has run. What the graph does beside its tensors, such as
/// printing, happens twice.
class Verifier {
 public:
  /// `facts` are of the planned graph: `program`, or one in which its ops run again. All must outlive this.
  Verifier(const GraphFacts& program, const GraphFacts& facts, const profiler::Run& run,
           const profiler::PlanRecord& plan);

  /// Runs planned code on a stack; false if it could not, and the stack is as it was.
  using RunPlanned = std::function<bool(torch::jit::Stack&, const torch::jit::Code&)>;

  /// Takes the graph's inputs off `stack` and puts outputs on: the plan's where they are right, else the program's.
  /// Lets through what the program throws; what only the plan throws is a difference.
  Verdict run(torch::jit::Stack& stack, const RunPlanned& run_planned) const;

 private:
  nlohmann::json describe(const Checks& checks) const;
  std::string nearby(std::int32_t op) const;

  const GraphFacts& program_;
  const profiler::Run& run_;
  const profiler::PlanRecord& plan_;
  torch::jit::Code program_code_;
  torch::jit::Code planned_code_;
};

/// Whether this thread is in a verified run: regions within it run as they are.
bool is_verifying();

}  // namespace stowage
