// SPDX-License-Identifier: Apache-2.0
#include "plugin/dependencies.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "plugin/offload.h"
#include "plugin/repeatable.h"

namespace stowage {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operator;
using torch::jit::Symbol;
using torch::jit::Value;
namespace aten = torch::jit::aten;
namespace prim = torch::jit::prim;

bool is_one_of(Symbol kind, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return kind == Symbol::fromQualString(name); });
}

/// Schema-less nodes that only pack, unpack or rename values, or hold blocks whose ops are looked at one by one.
bool is_structural(const Node& node) {
  switch (node.kind()) {
    case prim::Constant:
    case prim::If:
    case prim::Loop:
    case prim::ListConstruct:
    case prim::ListUnpack:
    case prim::TupleConstruct:
    case prim::TupleUnpack:
    case prim::TupleIndex:
    case prim::TupleSlice:
    case prim::DictConstruct:
    case prim::Uninitialized:
    case prim::unchecked_cast:
    case prim::unchecked_unwrap_optional:
    case prim::ConstantChunk:
    case prim::GetAttr:
    case prim::DifferentiableGraph:
    case prim::FusionGroup:
    case prim::TensorExprGroup:
      return true;
    default:
      return false;
  }
}

/// Ops that give a tensor another storage, or change global state: schemas do not tell.
bool changes_what_no_storage_shows(const Node& node) {
  if (node.kind().is_cuda() || node.kind().ns() == torch::jit::Symbol::fromQualString("profiler::x").ns()) return true;
  return is_one_of(node.kind(), {"aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_", "aten::swap",
                                 "aten::manual_seed", "aten::set_grad_enabled", "prim::Enter", "prim::Exit"});
}

/// Ops after which a value's storage is another than the one it had when it was made.
bool replaces_storages(const Node& node) {
  return is_one_of(node.kind(), {"prim::SetAttr", "aten::set_", "aten::set_data", "aten::swap"});
}

bool is_effect(const Node& node) {
  return is_one_of(node.kind(), {"prim::Print", "prim::RaiseException", "aten::warn"});
}

/// Ops that check values, not only shapes. Their backwards take what the forward has checked.
bool may_raise(const Node& node) {
  return is_one_of(node.kind(), {"aten::embedding",
                                 "aten::embedding_bag",
                                 "aten::_embedding_bag",
                                 "aten::index",
                                 "aten::index_select",
                                 "aten::gather",
                                 "aten::take",
                                 "aten::take_along_dim",
                                 "aten::one_hot",
                                 "aten::nll_loss",
                                 "aten::nll_loss_nd",
                                 "aten::nll_loss2d",
                                 "aten::nll_loss_forward",
                                 "aten::nll_loss2d_forward",
                                 "aten::cross_entropy_loss",
                                 "aten::multi_margin_loss",
                                 "aten::multilabel_margin_loss",
                                 "aten::binary_cross_entropy",
                                 "aten::ctc_loss",
                                 "aten::_ctc_loss",
                                 "aten::linalg_cholesky",
                                 "aten::cholesky",
                                 "aten::linalg_inv",
                                 "aten::inverse",
                                 "aten::linalg_solve",
                                 "aten::linalg_svd",
                                 "aten::linalg_eigh",
                                 "aten::__getitem__",
                                 "aten::_assert_async"});
}

bool is_random(const Node& node) {
  if (node.isNondeterministic()) return true;
  const Operator* op = node.maybeOperator();
  if (op == nullptr) return false;
  const auto& arguments = op->schema().arguments();
  const bool takes_generator = std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.type()->str().find("Generator") != std::string::npos;
  });
  if (takes_generator) return true;
  // Ops without a generator argument, such as native_dropout, carry the tag alone; the seeded ops with the
  // training switched off were ruled out above only where the node knows it, so this errs towards random.
  const auto tags = op->isC10Op() ? op->getTags() : c10::ArrayRef<at::Tag>();
  return node.kind().is_aten() && std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) != tags.end();
}

bool any_write(const c10::AliasInfo& alias) {
  return alias.isWrite() || std::any_of(alias.containedTypes().begin(), alias.containedTypes().end(), any_write);
}

/// Inputs that an op writes though its schema does not say so: the running statistics of a training batch norm
/// (`native_batch_norm` and its kin in native_functions.yaml, 2.11; `AliasDb` knows of `batch_norm` alone).
std::vector<std::size_t> silent_writes(const Node& node, const c10::FunctionSchema& schema) {
  std::vector<std::size_t> written;
  if (schema.name().find("backward") != std::string::npos) return written;
  for (std::size_t argument = 0; argument < schema.arguments().size() && argument < node.inputs().size(); ++argument) {
    const std::string& name = schema.arguments()[argument].name();
    if (name == "running_mean" || name == "running_var") written.push_back(argument);
    if (name == "training" || name == "train" || name == "use_input_stats") {
      const auto training = torch::jit::toIValue(node.inputs()[argument]);
      if (training && training->isBool() && !training->toBool()) return {};
    }
  }
  return written;
}

bool is_tensor(const Value* value) { return value->type()->isSubtypeOf(*c10::TensorType::get()); }

void collect_sets(const c10::AliasInfo& alias, std::unordered_set<Symbol>& sets) {
  sets.insert(alias.beforeSets().begin(), alias.beforeSets().end());
  sets.insert(alias.afterSets().begin(), alias.afterSets().end());
  for (const c10::AliasInfo& inner : alias.containedTypes()) collect_sets(inner, sets);
}

std::unordered_set<Symbol> alias_sets(const c10::Argument& argument) {
  std::unordered_set<Symbol> sets;
  if (argument.alias_info() != nullptr) collect_sets(*argument.alias_info(), sets);
  return sets;
}

/// Whether the op may return, as this output, a storage of this input. Schemas name the sets that tensors are in; a
/// container made from another holds the same tensors though no schema says so.
bool may_return(const c10::FunctionSchema& schema, const Node& node, std::size_t output, std::size_t input) {
  if (!is_tensor(node.outputs()[output]) && !is_tensor(node.inputs()[input])) return true;
  if (output >= schema.returns().size() || input >= schema.arguments().size()) return true;
  const std::unordered_set<Symbol> returned = alias_sets(schema.returns()[output]);
  if (returned.count(c10::AliasInfo::wildcardSet()) != 0) return true;
  const std::unordered_set<Symbol> taken = alias_sets(schema.arguments()[input]);
  return std::any_of(returned.begin(), returned.end(), [&](const Symbol& set) { return taken.count(set) != 0; });
}

/// Walks a node and the nodes inside it.
class FactReader {
 public:
  explicit FactReader(std::vector<std::string>& not_understood) : not_understood_(not_understood) {}

  /// Whether a node so far changes what some container or attribute holds, or which storage a tensor has.
  bool storages_change_hands() const { return storages_change_hands_; }
  bool sets_grad_mode() const { return sets_grad_mode_; }

  OpFacts read(Node* node) {
    facts_ = {};
    facts_.node = node;
    add_uses(node, {});
    visit(*node, /*nested=*/false);
    if (nested_write_) facts_.writes = facts_.uses;
    nested_write_ = false;
    for (std::size_t output = 0; output < node->outputs().size(); ++output) {
      facts_.may_return.push_back(returnable(*node, output));
    }
    return std::move(facts_);
  }

 private:
  void add_use(const Value* value) {
    if (value->node()->kind() == prim::Constant && !holds_tensors(value->type())) return;
    if (std::find(facts_.uses.begin(), facts_.uses.end(), value) == facts_.uses.end()) facts_.uses.push_back(value);
  }

  void add_uses(const Node* node, std::unordered_set<const Value*> inner) {
    for (const Value* input : node->inputs()) {
      if (inner.count(input) == 0) add_use(input);
    }
    for (const Block* block : node->blocks()) {
      for (const Value* input : block->inputs()) inner.insert(input);
      for (const Node* each : block->nodes()) {
        add_uses(each, inner);
        for (const Value* output : each->outputs()) inner.insert(output);
      }
      for (const Value* output : block->outputs()) {
        if (inner.count(output) == 0) add_use(output);
      }
    }
  }

  std::vector<const Value*> returnable(const Node& node, std::size_t output) const {
    std::vector<const Value*> found;
    if (!holds_tensors(node.outputs()[output]->type())) return found;
    const Operator* op = is_structural(node) || facts_.has_blocks || facts_.barrier ? nullptr : node.maybeOperator();
    const bool is_told = op != nullptr && op->aliasAnalysisKind() != c10::AliasAnalysisKind::INTERNAL_SPECIAL_CASE;
    for (const Value* use : facts_.uses) {
      if (!holds_tensors(use->type())) continue;
      bool may = !is_told;
      for (std::size_t input = 0; input < node.inputs().size() && !may; ++input) {
        may = node.inputs()[input] == use && may_return(op->schema(), node, output, input);
      }
      if (may) found.push_back(use);
    }
    return found;
  }

  void visit(const Node& node, bool nested) {
    classify(node, nested);
    facts_.has_blocks |= !node.blocks().empty();
    for (const Block* block : node.blocks()) {
      for (const Node* inner : block->nodes()) visit(*inner, true);
    }
    if (node.hasAttribute(torch::jit::attr::Subgraph)) {
      facts_.has_blocks = true;
      for (const Node* inner : node.g(torch::jit::attr::Subgraph)->nodes()) visit(*inner, true);
    }
  }

  void classify(const Node& node, bool nested) {
    facts_.random |= is_random(node);
    facts_.may_raise |= may_raise(node);
    storages_change_hands_ |= replaces_storages(node);
    sets_grad_mode_ |= node.kind() == Symbol::fromQualString("aten::set_grad_enabled");
    if (is_effect(node)) {
      facts_.effect = true;
      return;
    }
    if (changes_what_no_storage_shows(node) || is_copy_point(node)) {
      facts_.barrier = true;
      return;
    }
    if (is_structural(node)) return;
    const Operator* op = node.maybeOperator();
    const auto alias_kind = op == nullptr ? c10::AliasAnalysisKind::CONSERVATIVE : op->aliasAnalysisKind();
    if (alias_kind == c10::AliasAnalysisKind::CONSERVATIVE) {
      facts_.barrier = true;
      const std::string kind = node.kind().toQualString();
      const bool is_users = !node.kind().is_prim() || node.kind() == prim::PythonOp;
      if (is_users && std::find(not_understood_.begin(), not_understood_.end(), kind) == not_understood_.end()) {
        not_understood_.push_back(kind);
      }
      return;
    }
    // An op that returns nothing is there for something its schema does not name.
    if (node.hasSideEffects() || node.outputs().empty()) facts_.barrier = true;
    if (alias_kind != c10::AliasAnalysisKind::FROM_SCHEMA) return;

    const auto& arguments = op->schema().arguments();
    for (std::size_t argument = 0; argument < arguments.size() && argument < node.inputs().size(); ++argument) {
      const c10::AliasInfo* alias = arguments[argument].alias_info();
      if (alias == nullptr || !any_write(*alias)) continue;
      const Value* input = node.inputs()[argument];
      // A changed list or dict is seen by every later reader of it, and by no storage.
      if (alias->isWrite() && !is_tensor(input)) {
        facts_.barrier = true;
        storages_change_hands_ |= holds_tensors(input->type());
      }
      add_write(input, nested);
    }
    for (const std::size_t argument : silent_writes(node, op->schema())) add_write(node.inputs()[argument], nested);
  }

  void add_write(const Value* input, bool nested) {
    if (nested) {
      nested_write_ = true;  // what it is a view of, outside, is not worth finding out
    } else if (std::find(facts_.writes.begin(), facts_.writes.end(), input) == facts_.writes.end()) {
      facts_.writes.push_back(input);
    }
  }

  std::vector<std::string>& not_understood_;
  OpFacts facts_;
  bool nested_write_ = false;
  bool storages_change_hands_ = false;
  bool sets_grad_mode_ = false;
};

std::string find_untouchable(const Block& block) {
  for (const Node* node : block.nodes()) {
    const std::string kind = node->kind().toQualString();
    if (is_one_of(node->kind(), {"prim::fork", "prim::awaitable", "prim::rpc_async", "prim::rpc_sync",
                                 "prim::rpc_remote", "prim::awaitable_wait", "aten::wait"})) {
      return "it contains " + kind + ", which runs ops on other threads";
    }
    if (kind == "aten::requires_grad_") return "it contains " + kind + ", after which autograd records";
    if (is_one_of(node->kind(), {"prim::profile", "prim::profile_ivalue", "prim::BailOut"})) {
      return "it contains " + kind + ": the executor is still profiling it";
    }
    // The executor makes it runnable after the passes, in what it finds; not within a region.
    if (node->kind() == prim::FallbackGraph) return "it contains " + kind + ", which only the executor can run";
    for (const Block* inner : node->blocks()) {
      if (std::string why = find_untouchable(*inner); !why.empty()) return why;
    }
    if (node->hasAttribute(torch::jit::attr::Subgraph)) {
      if (std::string why = find_untouchable(*node->g(torch::jit::attr::Subgraph)->block()); !why.empty()) return why;
    }
  }
  return {};
}

}  // namespace

bool holds_tensors(const c10::TypePtr& type) {
  if (type->isSubtypeOf(*c10::TensorType::get())) return true;
  if (type->kind() == c10::TypeKind::AnyType) return true;
  const auto contained = type->containedTypes();
  return std::any_of(contained.begin(), contained.end(),
                     [](const c10::TypePtr& inner) { return holds_tensors(inner); });
}

GraphFacts read_facts(std::shared_ptr<Graph> graph) {
  GraphFacts facts;
  FactReader reader(facts.not_understood);
  for (Node* node : graph->nodes()) {
    if (node->kind() != prim::Constant) facts.ops.push_back(reader.read(node));
  }
  facts.sets_grad_mode = reader.sets_grad_mode();
  for (OpFacts& op : facts.ops) op.barrier |= reader.storages_change_hands() && !op.writes.empty();
  mark_repeatable(facts);
  facts.graph = std::move(graph);
  return facts;
}

std::string why_left_alone(const Block& block) { return find_untouchable(block); }

std::vector<profiler::DependencyRecord> orderings(const GraphFacts& facts, const std::vector<bool>& visible) {
  using profiler::DependencyReason;
  std::vector<profiler::DependencyRecord> found;
  std::unordered_map<const Node*, std::int32_t> op_of;
  std::int32_t last_random = profiler::kNone;
  std::int32_t last_effect = profiler::kNone;
  std::int32_t last_barrier = profiler::kNone;
  std::vector<std::int32_t> visible_since_effect;
  std::vector<std::int32_t> raising_since_effect;

  for (std::int32_t op = 0; op < static_cast<std::int32_t>(facts.ops.size()); ++op) {
    const OpFacts& each = facts.ops[static_cast<std::size_t>(op)];
    op_of[each.node] = op;
    auto follow = [&](std::int32_t earlier, DependencyReason reason) {
      if (earlier != profiler::kNone) found.push_back({op, earlier, reason});
    };

    std::vector<std::int32_t> producers;
    for (const Value* value : each.uses) {
      const auto producer = op_of.find(value->node());
      if (producer != op_of.end()) producers.push_back(producer->second);
    }
    std::sort(producers.begin(), producers.end());
    producers.erase(std::unique(producers.begin(), producers.end()), producers.end());
    for (const std::int32_t producer : producers) follow(producer, DependencyReason::kValue);

    if (each.random) {
      follow(last_random, DependencyReason::kRandom);
      last_random = op;
    }
    const bool is_visible = each.random || visible[static_cast<std::size_t>(op)];
    auto follow_all = [&](const std::vector<std::int32_t>& earlier) {
      for (const std::int32_t one : earlier) follow(one, DependencyReason::kEffect);
    };
    if (each.effect || is_visible || each.may_raise) follow(last_effect, DependencyReason::kEffect);
    if (each.effect || is_visible) follow_all(raising_since_effect);
    if (each.effect || each.may_raise) follow_all(visible_since_effect);
    if (each.effect) {
      visible_since_effect.clear();
      raising_since_effect.clear();
      last_effect = op;
    } else {
      if (is_visible) visible_since_effect.push_back(op);
      if (each.may_raise) raising_since_effect.push_back(op);
    }
    if (each.barrier) {
      for (std::int32_t earlier = std::max(last_barrier, 0); earlier < op; ++earlier) {
        follow(earlier, DependencyReason::kBarrier);
      }
      last_barrier = op;
    } else {
      follow(last_barrier, DependencyReason::kBarrier);
    }
  }
  return found;
}

}  // namespace stowage
