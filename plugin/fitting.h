// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/budget.h"
#include "plugin/copyable.h"
#include "plugin/dependencies.h"
#include "plugin/profile.h"
#include "plugin/repeat.h"
#include "profiler/store.h"
#include "solver/budget.h"
#include "solver/problem.h"

namespace stowage {

/// A plan, the run that it was made from, and the graph that ran: the program, or one in which ops run again.
struct Candidate {
  std::shared_ptr<const GraphFacts> facts;
  profiler::PlannedRun made;
};

/// The graph in which the program's ops run again as a run of it says; the program where it is of that. Throws
/// `std::invalid_argument` where the run is of neither.
std::shared_ptr<const GraphFacts> facts_of(const std::shared_ptr<const GraphFacts>& program, const profiler::Run& run);

/// Fits a step into its budget: proposes graphs in which ops run again, one after the other, and keeps the best plan.
/// Which ops may run again, how long they take and what they keep is as the program's run has it; what a proposal takes
/// is measured in runs of its own.
class Fitting {
 public:
  /// `program` is the plan of the program's run as it is, whose ops take `unplanned_ns` without one. `link_bytes_per_s`
  /// is what can be copied to host memory, and back; 0: nothing.
  Fitting(const Budget& budget, Candidate program, std::int64_t unplanned_ns, std::int64_t link_bytes_per_s);

  /// Looks for a graph that takes less than the best so far. False: there is no need to, or none was found.
  bool propose();

  /// To run the proposed graph with, as often as it takes; `label` what is measured.
  Profiler& profiler() { return *profiler_; }
  void label(profiler::Run& run) const;

  /// Takes the plan that was made for the proposed graph.
  void consider(profiler::PlannedRun made);

  const Candidate& best() const { return best_; }

 private:
  bool needs_less() const;
  std::vector<Execution> executions_of(const solver::Budgeted& fitted) const;

  const solver::Problem problem_;  ///< that the program's run poses
  const std::shared_ptr<const GraphFacts> program_;
  profiler::BudgetRecord budget_;
  Candidate best_;
  int proposals_ = 0;
  std::int64_t peak_limit_bytes_;  ///< for the solver: the budget, less what layouts took above their peaks
  const std::vector<std::optional<OpOutput>> copyable_;  ///< by tensor of the program's run
  const std::int64_t link_bytes_per_s_;
  std::vector<Execution> executions_;  ///< of the newest proposal, as are the next two
  std::shared_ptr<const GraphFacts> facts_;
  std::unique_ptr<Profiler> profiler_;
};

}  // namespace stowage
