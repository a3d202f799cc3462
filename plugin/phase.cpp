// SPDX-License-Identifier: Apache-2.0
#include "plugin/phase.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "plugin/counters_json.h"

namespace stowage {

namespace {

nlohmann::json budget_status(const profiler::Run& run, const profiler::PlanRecord& plan) {
  const profiler::BudgetRecord& budget = *plan.budget;
  const auto ratio = [&](std::int64_t time_ns) {
    return static_cast<double>(time_ns) / static_cast<double>(std::max<std::int64_t>(budget.unplanned_ns, 1));
  };
  nlohmann::json json{{"unplanned_peak_bytes", budget.unplanned_peak_bytes},
                      {"needed_bytes", needed_bytes(run, plan)},
                      {"met", is_met(run, plan)},
                      {"repeated_ops", repeated_ops(run)},
                      {"copied_bytes", copied_bytes(run)},
                      {"predicted_time_ratio", ratio(budget.predicted_ns)},
                      {"bound_time_ratio", ratio(budget.bound_ns)},
                      {"bound_peak_bytes", budget.bound_peak_bytes},
                      {"status", budget.status}};
  json["limit_bytes"] = budget.limit_bytes > 0 ? nlohmann::json(budget.limit_bytes) : nlohmann::json();
  json["limit_time_ratio"] = budget.limit_ns > 0 ? nlohmann::json(ratio(budget.limit_ns)) : nlohmann::json();
  return json;
}

}  // namespace

nlohmann::json Phase::status() const {
  nlohmann::json json{{"signature", key.signature}, {"device", key.device}};
  if (planned == nullptr) {
    json["state"] = why_unplanned.empty() ? "profiling" : "unplanned";
    if (!why_unplanned.empty()) json["why"] = why_unplanned;
    return json;
  }
  Planned& of = *planned;
  std::lock_guard lock(of.mutex);
  json["state"] = "planned";
  json["recalled"] = of.recalled;
  json["profiled_execution"] = of.run.execution;
  json["program_peak_bytes"] = of.plan.program_peak_bytes;
  json["peak_bytes"] = of.plan.peak_bytes;
  json["bound_bytes"] = of.plan.bound_bytes;
  json["order_status"] = of.plan.order_status;
  json["arena_bytes"] = of.plan.arena_bytes;
  json["arena_bound_bytes"] = of.plan.arena_bound_bytes;
  json["layout_status"] = of.plan.layout_status;
  json["planning_ns"] = of.plan.planning_ns;
  json["runs"] = of.runs;
  json["last_peak_bytes"] = of.last_peak_bytes;
  json["last_emptied_bytes"] = of.last_emptied_bytes;
  if (of.plan.budget) json["budget"] = budget_status(of.run, of.plan);
  json["last"] = to_json(of.last);
  json["total"] = to_json(of.total);
  return json;
}

}  // namespace stowage
