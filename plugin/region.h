// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plugin/dependencies.h"
#include "plugin/emptying.h"
#include "plugin/planned_allocator.h"
#include "plugin/profile.h"
#include "plugin/signature.h"
#include "plugin/torch_headers.h"
#include "plugin/verify.h"

namespace stowage {

struct Candidate;
struct Phase;
struct Planned;

/// The node that runs a graph: profiles it, has it planned, then runs the planned copy, each for each signature.
/// Thread safe: a thread that finds the region profiling, or the arena taken, runs the graph as it is.
class Region {
 public:
  /// `outer_uses`: see the function of that name.
  Region(std::shared_ptr<torch::jit::Graph> graph, std::string name, std::vector<OuterUse> outer_uses);
  ~Region();

  /// Runs the graph on the stack: takes its inputs off, puts its outputs on. Lets the graph's exceptions through.
  void run(torch::jit::Stack& stack);

  const std::string& name() const { return name_; }
  /// The program, and below it the newest plan; says so where there is none yet.
  std::string text() const;
  nlohmann::json status() const;

 private:
  void run_as_is(torch::jit::Stack& stack);
  void run_profiled(torch::jit::Stack& stack, Phase& phase);
  /// False, with the stack as it was, where the arena cannot be had. `code` is the plan's, or a verified copy of it.
  bool run_planned(torch::jit::Stack& stack, Planned& planned, const torch::jit::Code& code);
  void follow(torch::jit::Stack& stack, Planned& planned, const torch::jit::Code& code) const;
  void drop_plan_without_arena(Phase& phase, Planned& planned);
  void run_verified(torch::jit::Stack& stack, Planned& planned);
  std::shared_ptr<Phase> phase_for(const torch::jit::Stack& inputs);
  void compare_runs(Phase& phase, profiler::Run run);
  void plan(Phase& phase, profiler::Run run);
  void plan_for_budget(Phase& phase, Candidate made);
  bool begin_timing(Phase& phase, const Candidate& program) const;
  void run_timed(torch::jit::Stack& stack, Phase& phase);
  bool propose(Phase& phase, Candidate made);
  /// Nothing: it could not be planned.
  void adopt(Phase& phase, std::optional<Candidate> made);
  std::shared_ptr<Planned> make_planned(const Phase& phase, Candidate made, bool recalled) const;

  const std::string name_;
  const std::shared_ptr<const GraphFacts> facts_;
  const std::vector<OuterUse> outer_uses_;
  const std::string hash_;
  const torch::jit::Code code_;
  std::unique_ptr<Profiler> profiler_;  ///< made when first needed

  mutable std::mutex mutex_;                  ///< guards all below; not held while a planned or an unplanned graph runs
  std::list<std::shared_ptr<Phase>> phases_;  ///< most recently used first
  Signature inputs_;
  bool profiling_ = false;
  std::int64_t executions_ = 0;
  std::int64_t runs_as_is_ = 0;
  std::int64_t runs_profiled_ = 0;
  std::int64_t plans_made_ = 0;
  std::int64_t plans_recalled_ = 0;
  VerifyTotal verified_;
};

/// The operator of the region node: attributes `Subgraph` and `name`.
torch::jit::RegisterOperators register_region_operator();

/// Regions run their graphs as they are, and steps are nobody's business, while this is off.
void set_planning(bool on);
bool is_planning();

}  // namespace stowage
