// SPDX-License-Identifier: Apache-2.0
#include "plugin/checks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plugin/offload.h"
#include "plugin/rewrite.h"

namespace stowage {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;
using torch::jit::Value;

// Functions, since operators are registered before this file's constants would be initialised.
Symbol check_symbol() { return Symbol::fromQualString("stowage::check"); }
Symbol watch_symbol() { return Symbol::fromQualString("stowage::watch"); }
Symbol op_attribute() { return Symbol::attr("op"); }
Symbol execution_attribute() { return Symbol::attr("execution"); }
Symbol positions_attribute() { return Symbol::attr("positions"); }
Symbol fill_attribute() { return Symbol::attr("fill"); }
Symbol after_attribute() { return Symbol::attr("after"); }

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

/// Ops whose results nobody has written yet.
bool returns_unwritten(const Node& node) {
  for (const char* kind : {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided",
                           "aten::new_empty_strided", "aten::empty_permuted"}) {
    if (node.kind() == Symbol::fromQualString(kind)) return true;
  }
  return false;
}

/// Results that are in part unwritten: only what is written over them, or made of them, can be compared.
bool is_partly_unwritten(const Node& node, std::size_t output) {
  for (const char* kind : {"aten::resize", "aten::resize_", "aten::resize_as_"}) {
    if (node.kind() == Symbol::fromQualString(kind)) return true;
  }
  // What the forward leaves for the backward, in a form of oneDNN's own.
  return node.kind() == Symbol::fromQualString("aten::mkldnn_rnn_layer") && output == 3;
}

/// Puts a check after each op. `nodes[op]` is op `op` in `copy`, which has the ops of `facts` in any order; it is an
/// execution of the program's op `program_op[op]`, or of none. With `watch` inputs live longer than they need to.
void add_checks(Graph& copy, const std::vector<Node*>& nodes, const GraphFacts& facts, const GraphFacts& program,
                const std::vector<std::int32_t>& program_op, bool watch) {
  std::unordered_map<const Value*, Value*> copied;
  for (std::size_t input = 0; input < copy.inputs().size(); ++input) {
    copied[facts.graph->inputs()[input]] = copy.inputs()[input];
  }
  for (std::size_t op = 0; op < nodes.size(); ++op) {
    const auto outputs = facts.ops[op].node->outputs();
    for (std::size_t output = 0; output < outputs.size(); ++output) {
      copied[outputs[output]] = nodes[op]->outputs()[output];
    }
  }
  for (std::size_t op = 0; op < nodes.size(); ++op) {
    if (program_op[op] == profiler::kNone) continue;
    std::vector<Value*> values;
    std::vector<std::int64_t> positions;
    const std::vector<Checked> expected = checked_values(program.ops[index(program_op[op])]);
    for (const Checked& checked : checked_values(facts.ops[op])) {
      const auto same = std::find_if(expected.begin(), expected.end(),
                                     [&](const Checked& other) { return other.place == checked.place; });
      if (same == expected.end()) continue;
      values.push_back(copied.at(checked.value));
      positions.push_back(same - expected.begin());
    }
    Node* check = copy.create(check_symbol(), values, /*num_outputs=*/0);
    check->i_(op_attribute(), program_op[op]);
    check->i_(execution_attribute(), static_cast<std::int64_t>(op));
    check->is_(positions_attribute(), std::move(positions));
    check->i_(fill_attribute(), returns_unwritten(*nodes[op]));
    check->insertAfter(nodes[op]);
    if (!watch) continue;
    std::vector<Value*> watched;
    for (const Value* value : watched_values(facts.ops[op])) watched.push_back(copied.at(value));
    auto make_watch = [&](bool after) {
      Node* node = copy.create(watch_symbol(), watched, /*num_outputs=*/0);
      node->i_(op_attribute(), static_cast<std::int64_t>(op));
      node->i_(after_attribute(), after);
      return node;
    };
    make_watch(/*after=*/false)->insertBefore(nodes[op]);
    make_watch(/*after=*/true)->insertAfter(nodes[op]);
  }
}

/// The ops of a graph in the order in which it has them.
std::vector<Node*> ops_of(Graph& graph) {
  std::vector<Node*> nodes;
  for (Node* node : graph.nodes()) {
    if (node->kind() != torch::jit::prim::Constant && !is_point(*node)) nodes.push_back(node);
  }
  return nodes;
}

/// What tells two values apart beside their bytes.
std::string appearance(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor& tensor = value.toTensor();
    return fmt::format("{}[{}] with strides [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                       fmt::join(tensor.strides(), ", "));
  }
  if (!value.isInt() && !value.isDouble() && !value.isBool() && !value.isString()) return value.tagKind();
  std::ostringstream text;
  text << value;
  return text.str();
}

Checks::Seen look_at(const c10::IValue& value) { return {bytes_of(value), appearance(value)}; }

}  // namespace

std::vector<Checked> checked_values(const OpFacts& op) {
  std::vector<Checked> checked;
  for (std::size_t output = 0; output < op.node->outputs().size(); ++output) {
    if (is_partly_unwritten(*op.node, output)) continue;
    const Value* value = op.node->outputs()[output];
    if (value->hasUses() || !op.writes.empty()) checked.push_back({value, fmt::format("output {}", output), output});
  }
  for (std::size_t write = 0; write < op.writes.size(); ++write) {
    const Value* written = op.writes[write];
    if (written->node()->kind() == torch::jit::prim::Constant) continue;  // None, for running statistics
    const bool returned = std::any_of(op.may_return.begin(), op.may_return.end(), [&](const auto& may_return) {
      return std::find(may_return.begin(), may_return.end(), written) != may_return.end();
    });
    if (returned) continue;
    checked.push_back(
        {written, fmt::format("'{}', which it writes,", written->debugName()), op.node->outputs().size() + write});
  }
  return checked;
}

std::vector<const Value*> watched_values(const OpFacts& op) {
  if (!op.writes.empty()) return {};
  std::vector<const Value*> watched;
  std::copy_if(op.uses.begin(), op.uses.end(), std::back_inserter(watched),
               [](const Value* value) { return value->node()->kind() != torch::jit::prim::Constant; });
  return watched;
}

std::shared_ptr<Graph> checked_program(const GraphFacts& program) {
  std::shared_ptr<Graph> copy = program.graph->copy();
  std::vector<std::int32_t> program_op(program.ops.size());
  std::iota(program_op.begin(), program_op.end(), 0);
  add_checks(*copy, ops_of(*copy), program, program, program_op, /*watch=*/true);
  return copy;
}

std::shared_ptr<Graph> checked_plan(const GraphFacts& program, const GraphFacts& facts, const profiler::Run& run,
                                    const profiler::PlanRecord& plan) {
  std::shared_ptr<Graph> copy = planned_copy(facts, run, plan);
  const std::vector<Node*> in_order = ops_of(*copy);
  std::vector<Node*> nodes(in_order.size());
  for (std::size_t step = 0; step < in_order.size(); ++step) nodes[index(plan.order[step])] = in_order[step];
  std::vector<std::int32_t> program_op;
  for (std::size_t op = 0; op < run.ops.size(); ++op) {
    const std::int32_t of = run.ops[op].program_op;
    const bool is_programs = of == profiler::kNone && !is_copy_point(*facts.ops[op].node);
    program_op.push_back(is_programs ? static_cast<std::int32_t>(op) : of);
  }
  add_checks(*copy, nodes, facts, program, program_op, /*watch=*/false);
  return copy;
}

thread_local Checks* Checks::t_current = nullptr;

Checks::Current::Current(Checks& checks, Run run) {
  checks.run_ = run;
  t_current = &checks;
}

Checks::Current::~Current() { t_current = nullptr; }

void Checks::see(std::int32_t op, std::int32_t execution, const std::vector<std::int64_t>& positions,
                 c10::ArrayRef<c10::IValue> values) {
  last_execution_ = execution;
  auto& digests = digests_[index(op)];
  for (std::size_t each = 0; each < values.size(); ++each) {
    const auto position = static_cast<std::size_t>(positions[each]);
    std::int64_t unread = 0;
    const Digest now = digest(values[each], unread);
    if (run_ == Run::kProgram) {
      digests.push_back(now);
      unread_ += unread;
    } else if (run_ == Run::kPlanned) {
      if (!first_ && now != digests[position]) first_ = First{op, execution, position, look_at(values[each]), {}};
    } else if (first_ && first_->op == op && first_->position == position) {
      first_->program = look_at(values[each]);
      first_->by_itself = now != digests[position];
    }
  }
}

void Checks::watch(std::int32_t op, c10::ArrayRef<c10::IValue> values, bool after) {
  if (run_ != Run::kProgramAgain || unsaid_write_) return;
  if (!after) watched_.clear();
  for (std::size_t position = 0; position < values.size(); ++position) {
    std::int64_t unread = 0;
    const Digest now = digest(values[position], unread);
    if (!after) {
      watched_.push_back(now);
    } else if (now != watched_[position]) {
      unsaid_write_ = UnsaidWrite{op, position};
      return;
    }
  }
}

torch::jit::RegisterOperators register_check_operators() {
  auto make_check = [](const Node* node) -> torch::jit::Operation {
    return [op = static_cast<std::int32_t>(node->i(op_attribute())),
            execution = static_cast<std::int32_t>(node->i(execution_attribute())),
            positions = node->is(positions_attribute()), fill = node->i(fill_attribute()) != 0,
            count = node->inputs().size()](Stack& stack) {
      const auto values = torch::jit::last(stack, count);
      // Bytes that are never written are any bytes: the same in all runs, they tell no difference.
      if (fill) {
        for (const c10::IValue& value : values) {
          const c10::Storage& storage = value.toTensor().storage();
          if (value.toTensor().device().is_cpu()) std::memset(storage.mutable_data(), 0, storage.nbytes());
        }
      }
      Checks::current()->see(op, execution, positions, values);
      torch::jit::drop(stack, count);
    };
  };
  auto make_watch = [](const Node* node) -> torch::jit::Operation {
    return [op = static_cast<std::int32_t>(node->i(op_attribute())), after = node->i(after_attribute()) != 0,
            count = node->inputs().size()](Stack& stack) {
      Checks::current()->watch(op, torch::jit::last(stack, count), after);
      torch::jit::drop(stack, count);
    };
  };
  return torch::jit::RegisterOperators(
      {torch::jit::Operator(check_symbol(), make_check, c10::AliasAnalysisKind::CONSERVATIVE),
       torch::jit::Operator(watch_symbol(), make_watch, c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
