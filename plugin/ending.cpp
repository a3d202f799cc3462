// SPDX-License-Identifier: Apache-2.0
#include "plugin/ending.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace stowage {
namespace {

using torch::jit::Node;
using torch::jit::Value;
using Values = std::unordered_set<const Value*>;

/// Inputs of which an op reads shape, type or device, but no element.
struct ShapeUse {
  const char* kind;
  std::size_t input;
};
constexpr ShapeUse kShapeUses[] = {{"aten::type_as", 1},    {"aten::expand_as", 1},  {"aten::view_as", 1},
                                   {"aten::reshape_as", 1}, {"aten::size", 0},       {"aten::dim", 0},
                                   {"prim::dtype", 0},      {"prim::device", 0},     {"aten::zeros_like", 0},
                                   {"aten::ones_like", 0},  {"aten::empty_like", 0}, {"prim::layout", 0}};

bool is_shape_use(const Node& node, std::size_t input) {
  const std::string kind = node.kind().toQualString();
  return std::any_of(std::begin(kShapeUses), std::end(kShapeUses),
                     [&](const ShapeUse& use) { return use.input == input && use.kind == kind; });
}

bool holds_any(const std::vector<const Value*>& values, const Values& of) {
  return std::any_of(values.begin(), values.end(), [&](const Value* value) { return of.count(value) != 0; });
}

/// Whether the op may read elements of a value of `aliases`, which it uses.
bool reads_elements(const OpFacts& op, const Values& aliases) {
  if (op.has_blocks || op.barrier) return true;
  for (std::size_t input = 0; input < op.node->inputs().size(); ++input) {
    if (aliases.count(op.node->inputs()[input]) != 0 && !is_shape_use(*op.node, input)) return true;
  }
  return false;
}

/// The value and all that may share its storage: views of it, with `through_blocks` also what a branch may return.
Values aliases_of(const Value* value, const GraphFacts& facts, bool through_blocks) {
  Values aliases{value};
  for (const OpFacts& op : facts.ops) {
    if (op.has_blocks && !through_blocks) continue;
    for (std::size_t output = 0; output < op.may_return.size(); ++output) {
      if (holds_any(op.may_return[output], aliases)) aliases.insert(op.node->outputs()[output]);
    }
  }
  return aliases;
}

}  // namespace

Endings find_endings(const GraphFacts& facts, const std::vector<std::int32_t>& order,
                     const std::vector<bool>& may_end) {
  Endings endings{std::vector<std::vector<Ending>>(order.size()), std::vector<bool>(order.size(), false)};
  const auto returned = facts.graph->outputs();
  Values made_of_inputs;
  for (std::size_t input = 0; input < may_end.size(); ++input) {
    const Value* value = facts.graph->inputs()[input];
    if (!may_end[input] || value->type()->kind() != c10::TypeKind::TensorType) continue;
    if (std::find(returned.begin(), returned.end(), value) != returned.end()) continue;
    const Values aliases = aliases_of(value, facts, /*through_blocks=*/false);
    std::size_t last_read = 0;
    std::int64_t last_step = -1;
    for (std::size_t step = 0; step < order.size(); ++step) {
      const OpFacts& op = facts.ops[static_cast<std::size_t>(order[step])];
      if (holds_any(op.uses, {value})) last_step = static_cast<std::int64_t>(step);
      if (holds_any(op.uses, aliases) && reads_elements(op, aliases)) last_read = step;
    }
    if (last_step < 0) continue;  // the interpreter drops it before the first op
    endings.inputs[last_read].push_back({static_cast<std::int64_t>(input), last_step});
    for (const Value* alias : aliases_of(value, facts, /*through_blocks=*/true)) {
      if (aliases.count(alias) == 0) made_of_inputs.insert(alias);
    }
  }
  Values used_later;
  for (std::size_t step = order.size(); step-- > 0;) {
    for (const Value* used : facts.ops[static_cast<std::size_t>(order[step])].uses) {
      if (made_of_inputs.count(used) != 0 && used_later.insert(used).second) endings.aliases[step] = true;
    }
  }
  return endings;
}

}  // namespace stowage
