// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "solver/bound.h"
#include "solver/explain.h"
#include "solver/problem.h"

namespace stowage::solver {

/// What `stowage-solve bound` is asked for.
struct BoundArguments {
  std::string file;
  bool search = false;
  bool json = false;
  std::int64_t deadline_ms = 10'000;
};

/// Adds the command to the program. `arguments` must outlive it.
CLI::App* add_bound_command(CLI::App& app, BoundArguments& arguments);

/// Prints a peak that no order can avoid, and the facts that prove it. Returns the exit code.
int run_bound(const BoundArguments& arguments);

/// The facts, each with the names that a reader needs.
nlohmann::ordered_json to_json(const Problem& problem, const std::vector<Reason>& reasons);

/// Prints the bound, and a line for each of the largest tensors that make it.
void print_bound(const Problem& problem, const OrderBound& bound, const std::vector<Reason>& reasons);

}  // namespace stowage::solver
