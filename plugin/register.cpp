// SPDX-License-Identifier: Apache-2.0
#include "plugin/checks.h"
#include "plugin/cpu_allocator.h"
#include "plugin/observation.h"
#include "plugin/offload.h"
#include "plugin/pass.h"
#include "plugin/region.h"
#include "plugin/rewrite.h"
#include "plugin/steps.h"
#include "plugin/timing.h"
#include "plugin/torch_headers.h"

namespace {

const torch::jit::RegisterOperators kRegionOperator = stowage::register_region_operator();
const torch::jit::RegisterOperators kObservationOperators = stowage::register_observation_operators();
const torch::jit::RegisterOperators kNameOperator = stowage::register_name_operator();
const torch::jit::RegisterOperators kPointOperators = stowage::register_point_operators();
const torch::jit::RegisterOperators kCheckOperators = stowage::register_check_operators();
const torch::jit::RegisterOperators kOffloadOperators = stowage::register_offload_operators();
const torch::jit::RegisterOperators kTickOperator = stowage::register_tick_operator();

}  // namespace

TORCH_LIBRARY(stowage, library) {
  library.def("enable(str store=\"\") -> ()", [](const std::string& store) { stowage::enable(store); });
  library.def("disable() -> ()", [] { stowage::disable(); });
  library.def("status() -> str", [] { return stowage::status(); });
  library.def("planned_graph(str name=\"\") -> str",
              [](const std::string& name) { return stowage::planned_graph(name); });
  library.def("set_option(str name, str value) -> ()",
              [](const std::string& name, const std::string& value) { stowage::configure(name, value); });
  library.def("begin_step(str device=\"\") -> ()", [](const std::string& device) { stowage::begin_step(device); });
  library.def("end_step(bool complete=True) -> str", [](bool complete) { return stowage::end_step(complete); });
  library.def("plan_step(str digest) -> ()", [](const std::string& digest) { stowage::plan_step_now(digest); });
  library.def("step_plan(str digest) -> str",
              [](const std::string& digest) { return stowage::step_plan_text(digest); });
  library.def("adopt_step_plan(str text) -> str",
              [](const std::string& text) { return stowage::adopt_step_plan(text); });
  library.def("reset_peak() -> ()", [] { stowage::cpu_allocator().reset_meter_peak(); });
}
