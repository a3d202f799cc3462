// SPDX-License-Identifier: Apache-2.0
#include "plugin/counters_json.h"
#include "plugin/step_planner.h"

namespace stowage {

nlohmann::json StepPhase::status() const {
  nlohmann::json json{{"digest", digest_text(digest)},
                      {"allocations", allocations},
                      {"bytes", bytes},
                      {"seen", seen},
                      {"state", plan.table == nullptr ? "profiling" : "planned"}};
  if (plan.table == nullptr) return json;
  json["adopted"] = adopted;
  json["recalled"] = recalled;
  json["eager_peak_bytes"] = eager_peak_bytes;
  json["turns"] = plan.table->turns;
  json["peak_bytes"] = plan.peak_bytes;
  json["arena_bytes"] = plan.table->arena_bytes;
  json["arena_bound_bytes"] = plan.bound_bytes;
  json["layout_status"] = std::string(solver::to_string(plan.status));
  json["planning_ns"] = planning_ns;
  json["plans_made"] = plans_made;
  json["runs"] = runs;
  json["last"] = to_json(last);
  json["total"] = to_json(total);
  return json;
}

nlohmann::json StepPlanner::status() const {
  std::lock_guard lock(mutex_);
  nlohmann::json json{{"device", device_.str()},          {"steps", steps_}, {"planned_steps", planned_steps_},
                      {"watched_steps", watched_steps_},  {"bytes", bytes_}, {"planned_bytes", planned_bytes_},
                      {"phases", nlohmann::json::array()}};
  for (const auto& phase : phases_) json["phases"].push_back(phase->status());
  return json;
}

}  // namespace stowage
