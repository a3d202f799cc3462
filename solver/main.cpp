// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "solver/bound.h"
#include "solver/bound_command.h"
#include "solver/budget_command.h"
#include "solver/dependencies.h"
#include "solver/explain.h"
#include "solver/formats.h"
#include "solver/layout.h"
#include "solver/lifetimes.h"
#include "solver/solve.h"
#include "solver/text.h"
#include "solver/validate.h"

namespace {

using namespace stowage::solver;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kUsage = 2;

struct Arguments {
  std::string file;
  bool json = false;
  bool force = false;
  bool no_reuse = false;
  bool explain = false;
  SolveOptions options;
  std::string buffers_path;
  std::string plan_path;
  std::string output_path;
  std::optional<std::int64_t> capacity_bytes;
  std::int64_t layout_node_limit = std::numeric_limits<std::int64_t>::max();
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void print_json(const Json& json) { fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace)); }

void write_note(const std::string& path, const std::string& text, bool force) {
  write_file(path, text, force);
  fmt::print(stderr, "stowage-solve: wrote {}\n", path);
}

void print_explanation(const Problem& problem, const Plan& plan, const OrderBound& bound,
                       const std::vector<Reason>& reasons) {
  fmt::print("\n");
  print_bound(problem, bound, reasons);
  if (plan.bound_proof == Proof::kMustLive) return;
  fmt::print("Nor than {}: {}.\n", bytes_text(plan.bound_bytes),
             plan.bound_proof == Proof::kSearch ? "a search has ruled out every order with a lower peak"
                                                : "an order below the planned peak would have to keep that much");
}

int run_order(const Arguments& arguments) {
  Problem problem = read_step(arguments.file);
  if (arguments.no_reuse) forbid_reuse(problem);
  const auto start = Clock::now();
  const Plan plan = solve(problem, arguments.options);
  const double seconds = seconds_since(start);
  if (const auto fault = validate(problem, plan)) {
    throw std::logic_error(
        fmt::format("cannot use the plan for {}: {}; please report this", quote(problem.name), *fault));
  }
  if (!arguments.buffers_path.empty()) {
    const std::string text = format_buffers(find_buffers(problem, play(problem, plan.order)));
    write_note(arguments.buffers_path, text, arguments.force);
  }
  if (!arguments.plan_path.empty()) write_note(arguments.plan_path, format_plan(problem, plan), arguments.force);

  OrderBound bound;
  std::vector<Reason> reasons;
  if (arguments.explain) {
    const Dependencies dependencies = find_dependencies(problem);
    bound = find_order_bound(problem, dependencies);
    reasons = explain_bound(problem, dependencies, bound);
  }
  const std::string bound_op_name = plan.bound_op >= 0 ? problem.ops[plan.bound_op].name : "";
  if (arguments.json) {
    const auto reused =
        std::count_if(plan.reuse_of.begin(), plan.reuse_of.end(), [](std::int32_t input) { return input != kNoReuse; });
    Json json = {{"name", problem.name},
                 {"status", to_string(plan.order_status)},
                 {"peak_bytes", plan.peak_bytes},
                 {"program_peak_bytes", plan.program_peak_bytes},
                 {"bound_bytes", plan.bound_bytes},
                 {"bound_op", plan.bound_op},
                 {"bound_op_name", bound_op_name},
                 {"bound_proof", to_string(plan.bound_proof)},
                 {"reused_tensors", reused},
                 {"ops", problem.ops.size()},
                 {"tensors", problem.tensors.size()},
                 {"seconds", seconds},
                 {"arena_bytes", plan.arena_bytes},
                 {"arena_bound_bytes", plan.arena_bound_bytes},
                 {"layout_status", to_string(plan.layout_status)}};
    if (arguments.explain) {
      json["must_live_bytes"] = bound.bytes;
      json["must_live_op"] = bound.op;
      json["must_live"] = to_json(problem, reasons);
    }
    print_json(json);
    return kSuccess;
  }
  fmt::print("{}: {} ops, {} tensors, planned in {:.3f} s\n", problem.name, problem.ops.size(), problem.tensors.size(),
             seconds);
  fmt::print("  program order  {}\n", bytes_text(plan.program_peak_bytes));
  fmt::print("  planned order  {}, {}\n", bytes_text(plan.peak_bytes), to_string(plan.order_status));
  fmt::print("  lower bound    {}", bytes_text(plan.bound_bytes));
  if (plan.bound_op >= 0) fmt::print(", at op {} {}", plan.bound_op, quote(bound_op_name));
  fmt::print("{}\n", plan.bound_proof == Proof::kSearch ? ", by search" : "");
  fmt::print("  arena          {}, {}\n", bytes_text(plan.arena_bytes), to_string(plan.layout_status));
  fmt::print("  arena bound    {}\n", bytes_text(plan.arena_bound_bytes));
  if (arguments.explain) print_explanation(problem, plan, bound, reasons);
  return kSuccess;
}

int run_layout(const Arguments& arguments) {
  const std::vector<Buffer> buffers = read_buffers(arguments.file);
  const auto start = Clock::now();
  const Layout layout = lay_out(buffers, {.capacity_bytes = arguments.capacity_bytes,
                                          .deadline = deadline_after(arguments.options.deadline_ms),
                                          .node_limit = arguments.layout_node_limit});
  const double seconds = seconds_since(start);
  const bool found = !layout.offset_bytes.empty();
  if (!arguments.output_path.empty() && found) {
    write_note(arguments.output_path, format_buffers(buffers, layout.offset_bytes), arguments.force);
  }
  if (arguments.json) {
    Json list = Json::array();
    for (std::size_t index = 0; index < layout.offset_bytes.size(); ++index) {
      const Buffer& buffer = buffers[index];
      list.push_back({{"id", buffer.id},
                      {"lower", buffer.lower},
                      {"upper", buffer.upper},
                      {"size_bytes", buffer.size_bytes},
                      {"offset_bytes", layout.offset_bytes[index]}});
    }
    print_json({{"status", to_string(layout.status)},
                {"height_bytes", layout.height_bytes},
                {"bound_bytes", layout.bound_bytes},
                {"capacity_bytes", arguments.capacity_bytes ? Json(*arguments.capacity_bytes) : Json(nullptr)},
                {"seconds", seconds},
                {"buffers", std::move(list)}});
  } else {
    fmt::print("{}: {} buffers, {} in {:.3f} s\n", arguments.file, buffers.size(), to_string(layout.status), seconds);
    if (layout.height_bytes > 0) fmt::print("  height       {}\n", bytes_text(layout.height_bytes));
    fmt::print("  lower bound  {}\n", bytes_text(layout.bound_bytes));
    if (arguments.capacity_bytes) fmt::print("  capacity     {}\n", bytes_text(*arguments.capacity_bytes));
  }
  if (layout.status == Status::kInfeasible) {
    fmt::print(stderr, "stowage-solve: no layout fits the capacity: none is lower than {}\n",
               bytes_text(layout.bound_bytes));
  } else if (!found) {
    fmt::print(stderr, "stowage-solve: found no layout within the capacity; raise --node-limit or --deadline-ms\n");
  }
  return found ? kSuccess : kFailure;
}

void add_common_options(CLI::App& command, Arguments& arguments) {
  command.add_flag("--json", arguments.json, "Print the result as JSON");
  command.add_flag("--force", arguments.force, "Replace output files that exist");
  command.add_option("--deadline-ms", arguments.options.deadline_ms, "Stop searching after this time")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
}

int run(int argument_count, char** argument_values) {
  Arguments arguments;
  CLI::App app("Plans the memory of a training step: in which order the ops run, and where each tensor lies.",
               "stowage-solve");
  app.footer(
      "Examples:\n"
      "  stowage-solve order step.json.gz                          best order, its peak and the proof\n"
      "  stowage-solve order step.json.gz --buffers buffers.csv    and the buffers that need a place\n"
      "  stowage-solve layout buffers.csv --capacity 1048576       place buffers in 1 MiB\n"
      "  stowage-solve budget step.json.gz --budget 0.5            what half of the memory costs in time\n"
      "  stowage-solve bound step.json.gz                          why no order needs less, tensor by tensor\n"
      "Exit codes: 0 answer found, 1 no answer, 2 usage or bad input.");
  app.set_version_flag("--version", "stowage-solve " STOWAGE_VERSION);
  app.require_subcommand(1);

  CLI::App* order = app.add_subcommand("order", "Order the ops of a step and lay out its tensors");
  order->add_option("FILE", arguments.file, "Step in the format stowage-step/1, JSON, plain or gzip")->required();
  order->add_option("--buffers", arguments.buffers_path, "Write the buffers of the planned order as CSV");
  order->add_option("--plan", arguments.plan_path, "Write the plan as JSON");
  order->add_flag("--explain", arguments.explain, "Say which tensors make the bound, and why each must live there");
  order->add_flag("--no-reuse", arguments.no_reuse, "Let no output take the memory of a dying input");
  order->footer("Example:\n  stowage-solve order step.json.gz --plan plan.json --json");
  add_common_options(*order, arguments);
  order->add_option("--node-limit", arguments.options.node_limit, "Stop searching after this many steps")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);

  CLI::App* layout = app.add_subcommand("layout", "Place buffers so that those alive together do not overlap");
  layout->add_option("FILE", arguments.file, "CSV with columns id,lower,upper,size[,offset][,alignment]")->required();
  layout->add_option("--capacity", arguments.capacity_bytes, "Bytes to fit in; without it, as few as possible")
      ->check(CLI::NonNegativeNumber);
  layout->add_option("--output", arguments.output_path, "Write the buffers with their offsets as CSV");
  layout->footer("Example:\n  stowage-solve layout buffers.csv --capacity 1048576 --output placed.csv");
  add_common_options(*layout, arguments);
  layout
      ->add_option("--node-limit", arguments.layout_node_limit,
                   "Stop searching after this many steps; no limit if absent")
      ->check(CLI::NonNegativeNumber);

  BudgetArguments budget_arguments;
  const CLI::App* budget = add_budget_command(app, budget_arguments);
  BoundArguments bound_arguments;
  const CLI::App* bound = add_bound_command(app, bound_arguments);

  try {
    app.parse(argument_count, argument_values);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "stowage-solve: {}; try --help\n", error.what());
    return kUsage;
  }
  if (budget->parsed()) return run_budget(budget_arguments);
  if (bound->parsed()) return run_bound(bound_arguments);
  return order->parsed() ? run_order(arguments) : run_layout(arguments);
}

}  // namespace

int main(int argument_count, char** argument_values) {
  try {
    return run(argument_count, argument_values);
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "stowage-solve: {}\n", error.what());
    return kUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "stowage-solve: {}\n", error.what());
    return kFailure;
  }
}
