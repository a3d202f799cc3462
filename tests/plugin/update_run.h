// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "profiler/record.h"

namespace stowage {

/// A step in small: a big activation, a gradient, the loss, a weight update.
inline constexpr char kUpdateGraph[] = R"IR(
graph(%x : Tensor, %p : Tensor):
  %one : int = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %big : Tensor = aten::exp(%x)
  %g : Tensor = aten::mul(%x, %x)
  %loss : Tensor = aten::sum(%big, %none)
  %q : Tensor = aten::add_(%p, %g, %one)
  return (%loss))IR";

/// One profiled run of it; `exp` is said to need workspace.
inline profiler::Run update_run() {
  using profiler::DependencyReason;
  using profiler::kNone;
  using profiler::TensorKind;
  using profiler::UseKind;
  profiler::Run run;
  run.name = "update";
  run.ops = {{"big", "aten::exp", "", "", 0, 10},
             {"g", "aten::mul", "", "", 10, 20},
             {"loss", "aten::sum", "", "", 30, 30},
             {"q", "aten::add_", "", "", 60, 40}};
  run.tensors = {{"x", TensorKind::kInput, 64, "Float", "[16]"},
                 {"p", TensorKind::kInput, 64, "Float", "[16]"},
                 {"big", TensorKind::kIntermediate, 640, "Float", "[160]"},
                 {"big.workspace0", TensorKind::kWorkspace, 128, "", ""},
                 {"g", TensorKind::kIntermediate, 64, "Float", "[16]"},
                 {"loss", TensorKind::kOutput, 4, "Float", "[]"}};
  run.uses = {{0, 0, UseKind::kRead, kNone}, {0, 2, UseKind::kResult, 0},   {1, 0, UseKind::kRead, kNone},
              {1, 4, UseKind::kResult, 0},   {2, 2, UseKind::kRead, kNone}, {2, 5, UseKind::kResult, 0},
              {3, 1, UseKind::kRead, kNone}, {3, 4, UseKind::kRead, kNone}, {3, 1, UseKind::kWrite, kNone},
              {3, 1, UseKind::kResult, 0}};
  run.dependencies = {{2, 0, DependencyReason::kValue}, {3, 1, DependencyReason::kValue}};
  const auto source = profiler::AllocationSource::kAllocator;
  run.allocations = {{3, 0, 0, 128, 128, 0, 0, 0, 2, source},  // tensor, op, index, bytes, rounded, stream,
                     {2, 0, 1, 640, 640, 0, 1, 2, 5, source},  // allocate event, free op, free event
                     {4, 1, 0, 64, 64, 0, 3, 3, 6, source},
                     {5, 2, 0, 4, 64, 0, 4, kNone, kNone, source}};
  return run;
}

/// A plan for it: the loss first, so that the gradient takes the place of the big activation.
inline profiler::PlanRecord update_plan() {
  using profiler::PointKind;
  profiler::PlanRecord plan;
  plan.order = {0, 2, 1, 3};
  plan.slots = {{3, 640, 128}, {2, 0, 640}, {4, 0, 64}};
  plan.points = {{PointKind::kPlace, 0, 3},
                 {PointKind::kPlace, 0, 2},
                 {PointKind::kFree, 2, 2},
                 {PointKind::kPlace, 1, 4},
                 {PointKind::kFree, 3, 4}};
  plan.arena_bytes = 768;
  return plan;
}

}  // namespace stowage
