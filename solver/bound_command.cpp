// SPDX-License-Identifier: Apache-2.0
#include "solver/bound_command.h"

#include <fmt/format.h>

#include "solver/dependencies.h"
#include "solver/formats.h"
#include "solver/order.h"
#include "solver/solve.h"
#include "solver/text.h"

namespace stowage::solver {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t persistent_bytes(const Problem& problem) {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : problem.tensors) bytes += tensor.persistent ? tensor.size_bytes : 0;
  return bytes;
}

/// "made by op 3 'relu' before it, used by op 9 'relu_backward' after it".
std::string reason_text(const Problem& problem, const Reason& reason, std::int32_t bound_op) {
  const auto op_text = [&](std::int32_t op) { return fmt::format("op {} {}", op, quote(problem.ops[op].name)); };
  std::string made = "made by it";
  if (reason.made_by != bound_op) made = fmt::format("made by {} before it", op_text(reason.made_by));
  if (reason.used_by < 0) {
    return problem.tensors[reason.tensor].output ? made + ", an output of the step" : made;
  }
  if (reason.used_by != bound_op) return made + fmt::format(", used by {} after it", op_text(reason.used_by));
  return reason.made_by == bound_op ? made : made + ", used by it";
}

}  // namespace

CLI::App* add_bound_command(CLI::App& app, BoundArguments& arguments) {
  CLI::App* bound = app.add_subcommand("bound", "Say how much no order can do without, and which facts prove it");
  bound->add_option("FILE", arguments.file, "Step in the format stowage-step/1, JSON, plain or gzip")->required();
  bound->add_flag("--search", arguments.search, "Search the order with the least peak too");
  bound->add_flag("--json", arguments.json, "Print the result as JSON");
  bound->add_option("--deadline-ms", arguments.deadline_ms, "Stop searching after this time")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  bound->footer("Example:\n  stowage-solve bound step.json.gz --search --json");
  return bound;
}

int run_bound(const BoundArguments& arguments) {
  const Problem problem = read_step(arguments.file);
  const Dependencies dependencies = find_dependencies(problem);
  const OrderBound bound = find_order_bound(problem, dependencies);
  const std::vector<Reason> reasons = explain_bound(problem, dependencies, bound);
  Order found;
  if (arguments.search) found = find_order(problem, {.deadline = deadline_after(arguments.deadline_ms)});

  if (arguments.json) {
    Json json = {{"name", problem.name},
                 {"bound_bytes", bound.bytes},
                 {"persistent_bytes", persistent_bytes(problem)},
                 {"op", bound.op},
                 {"op_name", bound.op >= 0 ? problem.ops[bound.op].name : ""},
                 {"tensors", to_json(problem, reasons)}};
    if (arguments.search) {
      json["found"] = {{"peak_bytes", found.peak_bytes},
                       {"bound_bytes", found.bound.bytes},
                       {"bound_proof", to_string(found.bound.proof)},
                       {"status", to_string(found.status)}};
    }
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  print_bound(problem, bound, reasons);
  if (arguments.search) {
    fmt::print("The best order found needs {}, {}.\n", bytes_text(found.peak_bytes), to_string(found.status));
  }
  return 0;
}

Json to_json(const Problem& problem, const std::vector<Reason>& reasons) {
  Json list = Json::array();
  for (const Reason& reason : reasons) {
    const Tensor& tensor = problem.tensors[reason.tensor];
    Json entry = {{"tensor", reason.tensor},
                  {"name", tensor.name},
                  {"size_bytes", tensor.size_bytes},
                  {"made_by", reason.made_by},
                  {"made_by_name", problem.ops[reason.made_by].name},
                  {"used_by", reason.used_by}};
    if (reason.used_by >= 0) entry["used_by_name"] = problem.ops[reason.used_by].name;
    list.push_back(std::move(entry));
  }
  return list;
}

void print_bound(const Problem& problem, const OrderBound& bound, const std::vector<Reason>& reasons) {
  constexpr std::size_t kMostLines = 20;
  fmt::print("No order needs less than {}:\n", bytes_text(bound.bytes));
  fmt::print("  {} live through the whole step\n", bytes_text(persistent_bytes(problem)));
  if (bound.op >= 0) {
    fmt::print("  while op {} {} runs, {} tensors must live besides:\n", bound.op, quote(problem.ops[bound.op].name),
               reasons.size());
  }
  std::int64_t rest_bytes = 0;
  for (std::size_t line = 0; line < reasons.size(); ++line) {
    const Tensor& tensor = problem.tensors[reasons[line].tensor];
    if (line >= kMostLines) {
      rest_bytes += tensor.size_bytes;
      continue;
    }
    fmt::print("    {:<28}  tensor {}{}: {}\n", bytes_text(tensor.size_bytes), reasons[line].tensor,
               tensor.name.empty() ? "" : " " + quote(tensor.name), reason_text(problem, reasons[line], bound.op));
  }
  if (rest_bytes > 0) {
    fmt::print("    {:<28}  {} more; --json lists all\n", bytes_text(rest_bytes), reasons.size() - kMostLines);
  }
}

}  // namespace stowage::solver
