// SPDX-License-Identifier: Apache-2.0
#include "plugin/rewrite.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "plugin/emptying.h"
#include "plugin/ending.h"
#include "plugin/planned_allocator.h"
#include "plugin/reuse.h"

namespace stowage {
namespace {

using profiler::kNone;
using profiler::PointKind;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;
using torch::jit::Value;

// Functions, since operators are registered before this file's constants would be initialised.
Symbol place_symbol() { return Symbol::fromQualString("stowage::place"); }
Symbol reuse_symbol() { return Symbol::fromQualString("stowage::reuse"); }
Symbol free_symbol() { return Symbol::fromQualString("stowage::free"); }
Symbol empty_symbol() { return Symbol::fromQualString("stowage::empty"); }
Symbol op_attribute() { return Symbol::attr("op"); }
Symbol position_attribute() { return Symbol::attr("position"); }
Symbol layout_attribute() { return Symbol::attr("layout"); }
Symbol slots_attribute() { return Symbol::attr("slots"); }
Symbol inputs_attribute() { return Symbol::attr("inputs"); }
Symbol step_attribute() { return Symbol::attr("step"); }
Symbol last_steps_attribute() { return Symbol::attr("last_steps"); }

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

torch::jit::Operation make_place(const Node* node) {
  return [op = static_cast<std::int32_t>(node->i(op_attribute()))](Stack&) {
    if (Session* session = Session::current()) session->enter_op(op);
  };
}

/// Permits the op that follows to write its result over one of its inputs, which the inputs of this node are copies of.
torch::jit::Operation make_reuse(const Node* node) {
  const auto position = static_cast<std::int32_t>(node->i(position_attribute()));
  const std::int64_t layout = node->i(layout_attribute());
  const auto inputs = node->inputs();
  const auto copies = std::count(inputs.begin(), inputs.end(), inputs[index(position)]);
  // The interpreter holds a value that is still to be used in a register, and the copies on the stack.
  const auto references = static_cast<std::size_t>(copies) + 1;
  return [position, layout, references, count = inputs.size()](Stack& stack) {
    const auto values = torch::jit::last(stack, count);
    auto* session = static_cast<PlannedSession*>(Session::current());
    if (session != nullptr && !inputs_are_observed() && layout_digest(values, position) == layout) {
      const at::Tensor& input = values[index(position)].toTensor();
      if (input.defined() && dies_with(input, references)) {
        session->permit_reuse(input.storage().data(), static_cast<std::int64_t>(input.storage().nbytes()));
      }
    }
    torch::jit::drop(stack, count);
  };
}

/// Drops the last reference to each value; a storage that something else still holds keeps its slot until it dies.
torch::jit::Operation make_free(const Node* node) {
  return [count = node->inputs().size()](Stack& stack) {
    for (std::size_t each = 0; each < count; ++each) {
      at::Tensor tensor = torch::jit::pop(stack).toTensor();
      if (!tensor.defined() || !tensor.has_storage()) continue;  // as a branch that was not profiled may return it
      const bool surely_freed = tensor.use_count() == 1 && tensor.storage().use_count() == 1;
      const void* pointer = tensor.storage().data();
      tensor.reset();
      if (surely_freed) continue;
      // A view made under no_grad holds its base, so the count alone proves nothing.
      if (auto* session = static_cast<PlannedSession*>(Session::current())) session->check_freed(pointer);
    }
  };
}

/// Empties inputs of the region whose bytes nobody reads any more, whoever still refers to them.
torch::jit::Operation make_empty(const Node* node) {
  std::vector<Ending> endings;
  for (std::size_t each = 0; each < node->inputs().size(); ++each) {
    endings.push_back({node->is(inputs_attribute())[each], node->is(last_steps_attribute())[each]});
  }
  return [endings, step = node->i(step_attribute())](Stack& stack) {
    Emptying* emptying = Emptying::current();
    for (auto ending = endings.rbegin(); ending != endings.rend(); ++ending) {
      at::Tensor tensor = torch::jit::pop(stack).toTensor();
      if (emptying != nullptr) emptying->end(*ending, std::move(tensor));
    }
    if (emptying != nullptr) emptying->empty(step);
  };
}

/// By tensor, the values that a free point may drop: tensors, not containers, which may hold others too.
std::vector<std::vector<Value*>> droppable_values(const std::vector<Node*>& nodes, const profiler::Run& run) {
  std::vector<std::vector<Value*>> values(run.tensors.size());
  for (const profiler::UseRecord& use : run.uses) {
    if (use.kind != profiler::UseKind::kResult) continue;
    const auto outputs = nodes[index(use.op)]->outputs();
    if (index(use.position) >= outputs.size()) {
      throw std::invalid_argument(fmt::format("op {} '{}' has {} results, but the run has one at {}", use.op,
                                              run.ops[index(use.op)].name, outputs.size(), use.position));
    }
    Value* value = outputs[index(use.position)];
    if (value->type()->kind() == c10::TypeKind::TensorType) values[index(use.tensor)].push_back(value);
  }
  return values;
}

/// Where in the planned order each value is used last, `if` blocks and loops counting as their node.
class LastUses {
 public:
  LastUses(const std::vector<Node*>& nodes, const std::vector<std::int32_t>& order) {
    for (std::size_t step = 0; step < order.size(); ++step) step_of_[nodes[index(order[step])]] = step;
  }

  std::size_t step_of(const Value* value) const {
    std::size_t last = step_of_.at(value->node());
    for (const torch::jit::Use& use : value->uses()) {
      const Node* user = use.user;
      while (user->owningBlock() != value->node()->owningBlock()) user = user->owningBlock()->owningNode();
      if (const auto at = step_of_.find(user); at != step_of_.end()) last = std::max(last, at->second);
    }
    return last;
  }

  /// Whether the op at `step` is the last to use the value, which the graph does not return either.
  bool ends_at(const Value* value, std::size_t step) const {
    const auto returned = value->owningGraph()->outputs();
    return std::find(returned.begin(), returned.end(), value) == returned.end() && step_of(value) == step;
  }

 private:
  std::unordered_map<const Node*, std::size_t> step_of_;
};

}  // namespace

std::shared_ptr<Graph> planned_copy(const GraphFacts& facts, const profiler::Run& run, const profiler::PlanRecord& plan,
                                    const std::vector<bool>& may_end) {
  std::shared_ptr<Graph> copy = facts.graph->copy();
  std::vector<Node*> nodes;
  for (Node* node : copy->nodes()) {
    if (node->kind() != torch::jit::prim::Constant) nodes.push_back(node);
  }
  for (const std::int32_t op : plan.order) nodes[index(op)]->moveBefore(copy->return_node());
  copy->lint();  // every value is made before it is used; points come after, since they have no schema to look up

  std::vector<std::int64_t> slot_of(run.tensors.size(), kNone);
  std::vector<std::int64_t> offset_of(run.tensors.size(), 0);
  for (std::size_t slot = 0; slot < plan.slots.size(); ++slot) {
    slot_of[index(plan.slots[slot].tensor)] = static_cast<std::int64_t>(slot);
    offset_of[index(plan.slots[slot].tensor)] = plan.slots[slot].offset_bytes;
  }
  struct Points {
    std::vector<std::int64_t> placed_slots;
    std::vector<std::int64_t> offsets;
    std::int32_t reusing = kNone;  ///< the tensor that takes the memory of `reused`
    std::int32_t reused = kNone;
    const profiler::ReuseRecord* reuse = nullptr;  ///< the candidate that these two are
    std::vector<std::int32_t> freed;
  };
  std::vector<Points> points(run.ops.size());
  for (const profiler::PointRecord& point : plan.points) {
    Points& at = points[index(point.op)];
    if (point.kind == PointKind::kPlace) {
      at.placed_slots.push_back(slot_of[index(point.tensor)]);
      at.offsets.push_back(offset_of[index(point.tensor)]);
    } else if (point.kind == PointKind::kReuse) {
      at.reusing = point.tensor;
      at.reused = point.of;
    } else if (point.kind == PointKind::kFree && slot_of[index(point.tensor)] != kNone) {
      at.freed.push_back(point.tensor);
    }
  }

  for (const profiler::ReuseRecord& reuse : run.reuses) {
    Points& at = points[index(reuse.op)];
    if (at.reuse == nullptr && reuse.output == at.reusing && reuse.input == at.reused) at.reuse = &reuse;
  }

  std::vector<bool> allocates(run.ops.size(), false);
  for (const profiler::AllocationRecord& allocation : run.allocations) allocates[index(allocation.op)] = true;

  const std::vector<std::vector<Value*>> droppable = droppable_values(nodes, run);
  const LastUses last_uses(nodes, plan.order);
  const auto may_permit = [&](const profiler::ReuseRecord* reuse, std::size_t step) {
    if (reuse == nullptr || !may_reuse(facts.ops[index(reuse->op)])) return false;
    const auto inputs = nodes[index(reuse->op)]->inputs();
    if (index(reuse->position) >= inputs.size()) return false;
    const Value* input = inputs[index(reuse->position)];
    return input->type()->kind() == c10::TypeKind::TensorType && last_uses.ends_at(input, step);
  };
  const Endings endings = find_endings(facts, plan.order, may_end);
  bool permitted = false;
  for (std::size_t step = 0; step < plan.order.size(); ++step) {
    const std::int32_t op = plan.order[step];
    const Points& at = points[index(op)];
    // An op after a permission has a point of its own, which ends it.
    const bool ends_permission = std::exchange(permitted, false);
    if (allocates[index(op)] || ends_permission) {
      Node* place = copy->create(place_symbol(), /*num_outputs=*/0);
      place->i_(op_attribute(), op);
      if (!at.placed_slots.empty()) {
        place->is_(slots_attribute(), at.placed_slots);
        place->is_(Symbol::attr("offsets"), at.offsets);
      }
      place->insertBefore(nodes[index(op)]);
    }
    if (may_permit(at.reuse, step)) {
      Node* permit = copy->create(reuse_symbol(), nodes[index(op)]->inputs(), /*num_outputs=*/0);
      permit->i_(op_attribute(), op);
      permit->i_(Symbol::attr("slot"), slot_of[index(at.reusing)]);
      permit->i_(Symbol::attr("of"), slot_of[index(at.reused)]);
      permit->i_(position_attribute(), at.reuse->position);
      permit->i_(layout_attribute(), at.reuse->layout);
      permit->insertBefore(nodes[index(op)]);
      permitted = true;
    }

    if (!endings.inputs[step].empty() || endings.aliases[step]) {
      Node* empty = copy->create(empty_symbol(), /*num_outputs=*/0);
      std::vector<std::int64_t> inputs;
      std::vector<std::int64_t> last_steps;
      for (const Ending& ending : endings.inputs[step]) {
        empty->addInput(copy->inputs()[static_cast<std::size_t>(ending.input)]);
        inputs.push_back(ending.input);
        last_steps.push_back(ending.last_step);
      }
      empty->i_(step_attribute(), static_cast<std::int64_t>(step));
      if (!inputs.empty()) {
        empty->is_(inputs_attribute(), std::move(inputs));
        empty->is_(last_steps_attribute(), std::move(last_steps));
      }
      empty->insertAfter(nodes[index(op)]);
    }

    std::vector<std::int64_t> slots;
    std::vector<Value*> dropped;
    for (const std::int32_t tensor : at.freed) {
      // The alias that is used last, so that no other is kept any longer than it is needed. One that is made later
      // than this point does not exist yet, one that is used later is no business of this point.
      Value* chosen = nullptr;
      for (Value* value : droppable[index(tensor)]) {
        if (last_uses.step_of(value) == step) chosen = value;
      }
      // None: held by a container alone, which the interpreter drops. Twice: the result of an `if` may be either
      // tensor.
      if (chosen == nullptr || std::find(dropped.begin(), dropped.end(), chosen) != dropped.end()) continue;
      slots.push_back(slot_of[index(tensor)]);
      dropped.push_back(chosen);
    }
    if (dropped.empty()) continue;
    Node* free = copy->create(free_symbol(), dropped, /*num_outputs=*/0);
    free->is_(slots_attribute(), std::move(slots));
    free->insertAfter(nodes[index(op)]);
  }
  return copy;
}

bool is_point(const Node& node) {
  return node.kind() == place_symbol() || node.kind() == reuse_symbol() || node.kind() == free_symbol() ||
         node.kind() == empty_symbol();
}

torch::jit::RegisterOperators register_point_operators() {
  return torch::jit::RegisterOperators(
      {torch::jit::Operator(place_symbol(), make_place, c10::AliasAnalysisKind::CONSERVATIVE),
       torch::jit::Operator(reuse_symbol(), make_reuse, c10::AliasAnalysisKind::CONSERVATIVE),
       torch::jit::Operator(free_symbol(), make_free, c10::AliasAnalysisKind::CONSERVATIVE),
       torch::jit::Operator(empty_symbol(), make_empty, c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
