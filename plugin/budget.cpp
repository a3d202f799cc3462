// SPDX-License-Identifier: Apache-2.0
#include "plugin/budget.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "plugin/note.h"
#include "plugin/offload.h"
#include "plugin/options.h"

namespace stowage {
namespace {

constexpr double kMostBytes = 0x1p62;
constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
    {{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}, {"B", 1.0}}};

std::optional<double> to_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

/// "6GiB", "1.5 GiB", "123456" or "0.5"; nothing where it is none of these.
std::optional<Budget> parse_budget(std::string_view text) {
  Budget budget;
  for (const auto& [unit, factor] : kUnits) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    while (text.ends_with(' ')) text.remove_suffix(1);
    const auto number = to_number(text);
    if (!number || *number * factor < 1 || *number * factor > kMostBytes) return std::nullopt;
    budget.limit_bytes = static_cast<std::int64_t>(*number * factor);
    return budget;
  }
  const auto number = to_number(text);
  if (!number || *number <= 0 || *number > kMostBytes) return std::nullopt;
  if (text.find('.') == std::string_view::npos) {
    budget.limit_bytes = static_cast<std::int64_t>(*number);
  } else if (*number <= 1) {
    budget.share = *number;
  } else {
    return std::nullopt;
  }
  return budget;
}

std::optional<std::int64_t> parse_bandwidth(std::string_view text) {
  const auto number = to_number(text);
  if (!number || *number < 1 || *number > kMostBytes) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<double> parse_slowdown(std::string_view text) {
  const auto number = to_number(text);
  return number && *number >= 1 ? number : std::nullopt;
}

/// "1073741824 B (1.00 GiB)".
std::string bytes_text(std::int64_t bytes) {
  for (const auto& [unit, factor] : kUnits) {
    const double count = static_cast<double>(bytes) / factor;
    if (count >= 1 && factor > 1) return fmt::format("{} B ({:.2f} {})", bytes, count, unit);
  }
  return fmt::format("{} B", bytes);
}

}  // namespace

Budget budget_in_force() {
  Budget budget = parse_budget(options().budget).value_or(Budget());
  budget.slowdown = parse_slowdown(options().slowdown);
  return budget;
}

std::string budget_text() {
  const Budget budget = budget_in_force();
  std::string text;
  if (budget.limit_bytes) text = fmt::format("budget {} B", *budget.limit_bytes);
  if (budget.share) text = fmt::format("budget {}", *budget.share);
  if (budget.slowdown) text += fmt::format("{}slowdown {}", text.empty() ? "" : ", ", *budget.slowdown);
  if (!text.empty() && !options().offload) text += ", no offload";
  if (!text.empty() && !options().offload_bandwidth.empty()) text += ", offload " + options().offload_bandwidth;
  return text;
}

std::int64_t offload_bytes_per_s(c10::Device device) {
  if (!options().offload) return 0;
  const auto given = parse_bandwidth(options().offload_bandwidth);
  return given ? *given : link_bytes_per_s(device);
}

bool stops_over_budget() { return options().over_budget == "stop"; }

std::string budget_fault(const std::string& text) {
  if (text.empty() || parse_budget(text)) return {};
  return "it takes bytes, such as '6GiB', '512MiB' or '123456', or a share of the unplanned peak, such as '0.5'";
}

std::string slowdown_fault(const std::string& text) {
  if (text.empty() || parse_slowdown(text)) return {};
  return "it takes how many times as long as unplanned a step may take, from 1, such as '1.05'";
}

std::string offload_bandwidth_fault(const std::string& text) {
  if (text.empty() || parse_bandwidth(text)) return {};
  return "it takes the bytes in a second, such as '25000000000'";
}

std::string over_budget_fault(const std::string& text) {
  return text == "continue" || text == "stop" ? "" : "it takes 'continue' or 'stop'";
}

profiler::BudgetRecord to_record(const Budget& budget, std::int64_t unplanned_peak_bytes, std::int64_t unplanned_ns) {
  profiler::BudgetRecord record;
  record.limit_bytes = budget.limit_bytes.value_or(0);
  const auto part_of = [](std::int64_t whole, double factor) {
    return std::max<std::int64_t>(static_cast<std::int64_t>(static_cast<double>(whole) * factor), 1);
  };
  if (budget.share) record.limit_bytes = part_of(unplanned_peak_bytes, *budget.share);
  if (budget.slowdown) record.limit_ns = part_of(unplanned_ns, *budget.slowdown);
  record.unplanned_peak_bytes = unplanned_peak_bytes;
  record.unplanned_ns = unplanned_ns;
  return record;
}

std::int64_t needed_bytes(const profiler::Run& run, const profiler::PlanRecord& plan) {
  using profiler::TensorKind;
  std::int64_t outside_bytes = 0;
  for (const profiler::TensorRecord& tensor : run.tensors) {
    const bool has_slot = tensor.kind == TensorKind::kIntermediate || tensor.kind == TensorKind::kWorkspace;
    if (!has_slot) outside_bytes += tensor.size_bytes;
  }
  return std::max(outside_bytes + plan.arena_bytes, plan.peak_bytes);
}

bool needs_less(const profiler::BudgetRecord& budget, const profiler::Run& run, const profiler::PlanRecord& plan) {
  return budget.limit_bytes == 0 || needed_bytes(run, plan) > budget.limit_bytes;
}

bool is_met(const profiler::Run& run, const profiler::PlanRecord& plan) {
  if (!plan.budget) return true;
  const profiler::BudgetRecord& budget = *plan.budget;
  return (budget.limit_bytes == 0 || needed_bytes(run, plan) <= budget.limit_bytes) &&
         (budget.limit_ns == 0 || budget.predicted_ns <= budget.limit_ns);
}

std::string over_budget_text(const profiler::Run& run, const profiler::PlanRecord& plan) {
  const profiler::BudgetRecord& budget = *plan.budget;
  const std::string why = plan.peak_bytes <= budget.bound_peak_bytes
                              ? "proven: no schedule needs less"
                              : fmt::format("none below {} is possible", bytes_text(budget.bound_peak_bytes));
  return fmt::format("cannot keep '{}' within {}: the least that was found is {} ({})", run.name,
                     bytes_text(budget.limit_bytes), bytes_text(needed_bytes(run, plan)), why);
}

std::int64_t ops_ns(const profiler::Run& run) {
  return std::accumulate(run.ops.begin(), run.ops.end(), std::int64_t{0},
                         [](std::int64_t sum_ns, const auto& op) { return sum_ns + op.duration_ns; });
}

std::int64_t repeated_ops(const profiler::Run& run) {
  std::int32_t last = -1;
  std::int64_t executions = 0;
  for (const profiler::OpRecord& op : run.ops) {
    last = std::max(last, op.program_op);
    executions += op.program_op == profiler::kNone ? 0 : 1;
  }
  return executions - (last + 1);
}

std::int64_t copied_bytes(const profiler::Run& run) {
  std::int64_t bytes = 0;
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    const bool is_fetch = run.ops[static_cast<std::size_t>(allocation.op)].kind == "stowage::fetch";
    bytes += is_fetch ? allocation.requested_bytes : 0;
  }
  return bytes;
}

void note_unbudgeted() {
  if (!budget_text().empty()) {
    note("a budget holds for captured steps only: loops and scripted modules are planned without one");
  }
}

}  // namespace stowage
