// SPDX-License-Identifier: Apache-2.0
#include "solver/budget_command.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "solver/budget.h"
#include "solver/formats.h"
#include "solver/lifetimes.h"
#include "solver/solve.h"
#include "solver/text.h"

namespace stowage::solver {
namespace {

using Json = nlohmann::ordered_json;

/// A budget that was asked for, and what meets it.
struct Row {
  std::int64_t budget_bytes = 0;  ///< 0: none, the slowdown is given
  Budgeted budgeted;
};

struct Unplanned {
  std::int64_t peak_bytes = 0;
  std::int64_t time_ns = 0;
};

Unplanned measure_unplanned(const Problem& problem) {
  std::vector<std::int32_t> order;
  Unplanned unplanned;
  for (const Op& op : problem.ops) {
    order.push_back(static_cast<std::int32_t>(order.size()));
    unplanned.time_ns += op.duration_ns;
  }
  unplanned.peak_bytes = play(problem, order, Reusing::kNone).peak_bytes;
  return unplanned;
}

Json to_json(const Row& row, const Problem& problem, const Unplanned& unplanned) {
  const double whole_ns = static_cast<double>(std::max<std::int64_t>(unplanned.time_ns, 1));
  const Budgeted& budgeted = row.budgeted;
  std::int64_t copied_bytes = 0;
  for (const Copy& copy : budgeted.copies) copied_bytes += problem.tensors[copy.tensor].size_bytes;
  return {{"budget_bytes", row.budget_bytes > 0 ? Json(row.budget_bytes) : Json(nullptr)},
          {"peak_bytes", budgeted.peak_bytes},
          {"time_ns", budgeted.time_ns},
          {"time_ratio", static_cast<double>(budgeted.time_ns) / whole_ns},
          {"bound_time_ratio", static_cast<double>(budgeted.bound_time_ns) / whole_ns},
          {"status", to_string(budgeted.status)},
          {"repeats", budgeted.executions.size() - problem.ops.size()},
          {"copied_bytes", copied_bytes}};
}

}  // namespace

CLI::App* add_budget_command(CLI::App& app, BudgetArguments& arguments) {
  CLI::App* budget =
      app.add_subcommand("budget", "Run ops again, or copy, instead of keeping what they made, to need less");
  budget->add_option("FILE", arguments.file, "Step in the format stowage-step/1, with durations")->required();
  auto* bytes = budget->add_option("--budget", arguments.budget, "Most bytes, as 6GiB, or a share of the peak, as 0.5");
  budget->add_option("--slowdown", arguments.slowdown, "Most time, as a multiple of the step's: the least memory then")
      ->check(CLI::Range(1.0, 1e6))
      ->excludes(bytes);
  budget->add_option("--bandwidth", arguments.bandwidth,
                     "What can be copied to host memory in a second, and as much back, as 25GB: none without");
  budget->add_option("--points", arguments.points, "How many budgets to try where none is given")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  budget->add_flag("--json", arguments.json, "Print the result as JSON");
  budget->add_option("--deadline-ms", arguments.deadline_ms, "Stop searching after this time")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  budget->add_option("--node-limit", arguments.node_limit, "Stop searching after placing this many ops")
      ->check(CLI::PositiveNumber);
  budget->footer(
      "Examples:\n"
      "  stowage-solve budget step.json.gz                  peak against time, for 20 budgets\n"
      "  stowage-solve budget step.json.gz --budget 0.5     the least time within half of the peak\n"
      "  stowage-solve budget step.json.gz --slowdown 1.05  the least memory within 1.05 of the time");
  return budget;
}

int run_budget(const BudgetArguments& arguments) {
  const Problem problem = read_step(arguments.file);
  const Unplanned unplanned = measure_unplanned(problem);
  BudgetLimits limits;
  limits.deadline = deadline_after(arguments.deadline_ms);
  if (arguments.node_limit > 0) limits.node_limit = arguments.node_limit;

  if (!arguments.bandwidth.empty()) limits.copy_bytes_per_s = parse_bandwidth(arguments.bandwidth);

  std::vector<Row> rows;
  if (!arguments.budget.empty()) {
    limits.peak_bytes = parse_budget(arguments.budget, unplanned.peak_bytes);
    rows.push_back({limits.peak_bytes, fit(problem, limits)});
  } else if (arguments.slowdown > 0) {
    limits.time_ns = static_cast<std::int64_t>(static_cast<double>(unplanned.time_ns) * arguments.slowdown);
    rows.push_back({0, fit(problem, limits)});
  } else {
    for (Budgeted& budgeted : find_trade_off(problem, arguments.points, limits)) {
      rows.push_back({budgeted.peak_bytes, std::move(budgeted)});
    }
  }
  const Budgeted& last = rows.back().budgeted;
  const bool met = last.status == Status::kOptimal || last.status == Status::kFeasible;
  if (arguments.json) {
    Json json = {{"name", problem.name},
                 {"unplanned_peak_bytes", unplanned.peak_bytes},
                 {"unplanned_time_ns", unplanned.time_ns},
                 {"least_peak_bytes", last.least_peak_bytes},
                 {"bound_peak_bytes", last.bound_peak_bytes},
                 {"rows", Json::array()}};
    for (const Row& row : rows) json["rows"].push_back(to_json(row, problem, unplanned));
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("{}: {} ops, unplanned peak {}\n", problem.name, problem.ops.size(), bytes_text(unplanned.peak_bytes));
    fmt::print("  {:<28}  {:>5}  {:>6}  {:>6}  {:>6}\n", "peak", "share", "time", "bound", "again");
    for (const Row& row : rows) {
      const Json each = to_json(row, problem, unplanned);
      fmt::print("  {:<28}  {:>4.1f}%  {:>6.3f}  {:>6.3f}  {:>6}\n", bytes_text(row.budgeted.peak_bytes),
                 100.0 * static_cast<double>(row.budgeted.peak_bytes) / static_cast<double>(unplanned.peak_bytes),
                 each["time_ratio"].get<double>(), each["bound_time_ratio"].get<double>(),
                 each["repeats"].get<std::int64_t>());
    }
  }
  if (!met) {
    fmt::print(stderr,
               "stowage-solve: the budget is not met: the least that was found is {}; no schedule needs less than {}\n",
               bytes_text(last.least_peak_bytes), bytes_text(last.bound_peak_bytes));
  }
  return met ? 0 : 1;
}

}  // namespace stowage::solver
