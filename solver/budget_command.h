// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

namespace stowage::solver {

/// What `stowage-solve budget` is asked for.
struct BudgetArguments {
  std::string file;
  std::string budget;
  std::string bandwidth;
  double slowdown = 0;  ///< 0: not given
  int points = 20;
  bool json = false;
  std::int64_t deadline_ms = 60'000;
  std::int64_t node_limit = 0;  ///< 0: the default
};

/// Adds the command to the program. `arguments` must outlive it.
CLI::App* add_budget_command(CLI::App& app, BudgetArguments& arguments);

/// Prints what budgets cost. Returns the exit code: 1 where the budget that was asked for is not met.
int run_budget(const BudgetArguments& arguments);

}  // namespace stowage::solver
