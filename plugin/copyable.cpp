// SPDX-License-Identifier: Apache-2.0
#include "plugin/copyable.h"

namespace stowage {

using profiler::TensorKind;
using profiler::UseKind;

std::vector<std::optional<OpOutput>> copyable_values(const GraphFacts& facts, const profiler::Run& run) {
  const auto index = [](std::int32_t id) { return static_cast<std::size_t>(id); };
  std::vector<std::int32_t> maker(run.tensors.size(), profiler::kNone);
  std::vector<bool> is_view(run.ops.size());
  for (std::size_t op = 0; op < run.ops.size(); ++op) is_view[op] = run.ops[op].repeatable;
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    maker[index(allocation.tensor)] = allocation.op;
    is_view[index(allocation.op)] = false;
  }
  for (const profiler::UseRecord& use : run.uses) {
    if (use.kind == UseKind::kWrite) is_view[index(use.op)] = false;
  }

  std::vector<std::optional<OpOutput>> values(run.tensors.size());
  std::vector<bool> is_held(run.tensors.size(), false);  // otherwise
  for (const profiler::UseRecord& use : run.uses) {
    const OpFacts& op = facts.ops[index(use.op)];
    const std::size_t tensor = index(use.tensor);
    if (op.has_blocks) is_held[tensor] = true;
    if (use.kind != UseKind::kResult || is_view[index(use.op)]) continue;
    const torch::jit::Value* value = op.node->outputs()[index(use.position)];
    const bool is_made = use.op == maker[tensor] && value->type()->kind() == c10::TypeKind::TensorType;
    if (values[tensor] || !is_made) is_held[tensor] = true;
    values[tensor] = {use.op, index(use.position)};
  }
  for (std::size_t tensor = 0; tensor < values.size(); ++tensor) {
    if (is_held[tensor] || run.tensors[tensor].kind != TensorKind::kIntermediate) values[tensor].reset();
  }
  return values;
}

}  // namespace stowage
