// SPDX-License-Identifier: Apache-2.0
#include "plugin/phase.h"

#include <nlohmann/json.hpp>

#include "plugin/counters_json.h"

namespace stowage {

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
  json["last"] = to_json(of.last);
  json["total"] = to_json(of.total);
  return json;
}

}  // namespace stowage
