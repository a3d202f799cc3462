// SPDX-License-Identifier: Apache-2.0
#include "plugin/observation.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stowage {
namespace {

using profiler::kNone;
using profiler::TensorKind;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;
using torch::jit::Value;

// Functions, since operators are registered before this file's constants would be initialised.
Symbol observe_symbol() { return Symbol::fromQualString("stowage::observe"); }
Symbol inputs_symbol() { return Symbol::fromQualString("stowage::inputs"); }
Symbol op_attribute() { return Symbol::attr("op"); }

/// `stowage::observe[op, names](...)`: tells the running observation what op `op` returned.
torch::jit::Operation make_observe(const Node* node) {
  return [op = static_cast<std::int32_t>(node->i(op_attribute())), count = node->inputs().size(),
          names = node->ss(torch::jit::attr::names)](Stack& stack) {
    Observation::current()->observe(op, count, names, stack);
  };
}

/// `stowage::inputs[op](...)`: shows it what op `op` is about to take.
torch::jit::Operation make_inputs(const Node* node) {
  return [op = static_cast<std::int32_t>(node->i(op_attribute())), count = node->inputs().size()](Stack& stack) {
    Observation::current()->see_inputs(op, count, stack);
  };
}

}  // namespace

void insert_sorted(TensorIds& ids, std::int32_t id) {
  const auto at = std::lower_bound(ids.begin(), ids.end(), id);
  if (at == ids.end() || *at != id) ids.insert(at, id);
}

void insert_sorted(TensorIds& ids, const TensorIds& more) {
  for (const std::int32_t id : more) insert_sorted(ids, id);
}

thread_local Observation* Observation::t_current = nullptr;

Observation::Observation(const GraphFacts& facts, ProfileSession& session, profiler::Backend& backend)
    : facts_(facts), session_(session), backend_(backend), results_(facts.ops.size()) {}

TensorIds Observation::outside(const c10::IValue& value, const std::string& name, TensorKind kind) {
  outside_kind_ = kind;
  TensorIds ids = tensors_of(value, name);
  outside_kind_ = TensorKind::kConstant;
  return ids;
}

void Observation::begin() {
  backend_.start(static_cast<std::int32_t>(results_.size()));
  if (!results_.empty()) backend_.begin_op(0);
}

void Observation::see_inputs(std::int32_t op, std::size_t count, Stack& stack) {
  const Node& node = *facts_.ops[static_cast<std::size_t>(op)].node;
  reusable_.clear();
  for (ReusableInput& input : find_reusable(node, torch::jit::last(stack, count))) {
    const auto position = static_cast<std::size_t>(input.position);
    const std::int32_t id =
        id_of(torch::jit::peek(stack, position, count).toTensor(), node.inputs()[position]->debugName());
    reusable_.emplace_back(id, std::move(input));
  }
  torch::jit::drop(stack, count);
}

void Observation::observe(std::int32_t op, std::size_t count, const std::vector<std::string>& names, Stack& stack) {
  backend_.end_op(op);
  auto& results = results_[static_cast<std::size_t>(op)];
  for (std::size_t position = 0; position < count; ++position) {
    results.push_back(tensors_of(torch::jit::peek(stack, position, count), names[position]));
  }
  if (!reusable_.empty()) compare_result(op, torch::jit::peek(stack, 0, count).toTensor());
  torch::jit::drop(stack, count);  // a result that nobody uses dies here, while the op is still current
  if (static_cast<std::size_t>(op) + 1 < results_.size()) {
    session_.enter_op(op + 1);
    backend_.begin_op(op + 1);
  }
}

std::vector<profiler::TensorRecord> Observation::take_tensors(const std::vector<RecordedAllocation>& allocations,
                                                              std::vector<std::int32_t>& tensor_of_allocation) {
  for (std::size_t allocation = 0; allocation < allocations.size(); ++allocation) {
    const std::int32_t tensor = allocated(static_cast<std::int32_t>(allocation));
    tensors_[static_cast<std::size_t>(tensor)].size_bytes = allocations[allocation].size_bytes;
  }
  tensor_of_allocation = tensor_of_allocation_;
  return std::move(tensors_);
}

void Observation::compare_result(std::int32_t op, const at::Tensor& result) {
  const TensorIds& ids = results_[static_cast<std::size_t>(op)].front();
  for (const auto& [id, input] : reusable_) {
    if (input.matches(result)) reuses_.push_back({op, ids.front(), id, input.position, input.layout});
  }
  reusable_.clear();
}

std::int32_t Observation::add_tensor(TensorKind kind) {
  tensors_.emplace_back().kind = kind;
  return static_cast<std::int32_t>(tensors_.size()) - 1;
}

std::int32_t Observation::allocated(std::int32_t allocation) {
  if (tensor_of_allocation_.size() <= static_cast<std::size_t>(allocation)) {
    tensor_of_allocation_.resize(static_cast<std::size_t>(allocation) + 1, kNone);
  }
  std::int32_t& tensor = tensor_of_allocation_[static_cast<std::size_t>(allocation)];
  if (tensor == kNone) tensor = add_tensor(TensorKind::kWorkspace);
  return tensor;
}

TensorIds Observation::tensors_of(const c10::IValue& value, const std::string& name) {
  TensorIds ids;
  collect(value, name, ids);
  return ids;
}

void Observation::collect(const c10::IValue& value, const std::string& name, TensorIds& ids) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) insert_sorted(ids, id_of(value.toTensor(), name));
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) collect(each, name, ids);
  } else if (value.isTuple()) {
    for (const c10::IValue& each : value.toTupleRef().elements()) collect(each, name, ids);
  } else if (value.isGenericDict()) {
    for (const auto& each : value.toGenericDict()) collect(each.value(), name, ids);
  }
  // Objects are not looked into: a tensor that one holds is freed after its last visible use, and so gets no slot.
}

std::int32_t Observation::id_of(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.has_storage()) {
    opaque_ = fmt::format("'{}' is a tensor without a storage", name);
    return outside_storage(nullptr, 0, name, tensor);
  }
  const c10::Storage& storage = tensor.storage();
  const std::int32_t allocation = storage.data() == nullptr ? kNone : session_.find(storage.data());
  if (allocation == kNone) {
    // Held, so that no other storage gets its address while this observation lasts.
    if (outside_.find(storage.unsafeGetStorageImpl()) == outside_.end()) hold(storage, name);
    return outside_storage(storage.unsafeGetStorageImpl(), static_cast<std::int64_t>(storage.nbytes()), name, tensor);
  }
  const std::int32_t id = allocated(allocation);
  describe(id, name, tensor);
  return id;
}

void Observation::hold(const c10::Storage& storage, const std::string& name) {
  held_.push_back(storage);
  if (storage.nbytes() == 0 || storage.data() == nullptr) return;
  const auto* begin = static_cast<const char*>(storage.data());
  const char* end = begin + storage.nbytes();
  for (const Range& other : ranges_) {
    if (begin < other.end && other.begin < end) {
      opaque_ = fmt::format("'{}' and '{}' share memory, but not a storage", other.name, name);
    }
  }
  ranges_.push_back({begin, end, name});
}

std::int32_t Observation::outside_storage(const void* storage, std::int64_t size_bytes, const std::string& name,
                                          const at::Tensor& tensor) {
  const auto [at, is_new] = outside_.try_emplace(storage, kNone);
  if (is_new) {
    at->second = add_tensor(outside_kind_);
    tensors_.back().size_bytes = size_bytes;
    outside_bytes_ += size_bytes;
    describe(at->second, name, tensor);
  }
  return at->second;
}

void Observation::describe(std::int32_t id, const std::string& name, const at::Tensor& tensor) {
  profiler::TensorRecord& record = tensors_[static_cast<std::size_t>(id)];
  if (!record.name.empty()) return;
  record.name = name;
  if (record.kind == TensorKind::kWorkspace) record.kind = TensorKind::kIntermediate;  // a value holds it
  record.dtype = c10::toString(tensor.scalar_type());
  record.shape = fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

std::shared_ptr<Graph> with_observers(const GraphFacts& facts) {
  std::shared_ptr<Graph> copy = facts.graph->copy();
  const bool reuse = kernels_are_torchs();
  std::int64_t op = 0;
  for (auto each = copy->nodes().begin(); each != copy->nodes().end(); ++each) {
    Node* node = *each;
    if (node->kind() == torch::jit::prim::Constant) continue;
    if (reuse && may_reuse(facts.ops[static_cast<std::size_t>(op)])) {
      Node* inputs = copy->create(inputs_symbol(), node->inputs(), /*num_outputs=*/0);
      inputs->i_(op_attribute(), op);
      inputs->insertBefore(node);
    }
    Node* observe = copy->create(observe_symbol(), node->outputs(), /*num_outputs=*/0);
    std::vector<std::string> names;
    for (const Value* output : node->outputs()) names.push_back(output->debugName());
    observe->i_(op_attribute(), op++);
    observe->ss_(torch::jit::attr::names, std::move(names));
    observe->insertAfter(node);
    ++each;
  }
  return copy;
}

torch::jit::RegisterOperators register_observation_operators() {
  return torch::jit::RegisterOperators(
      {torch::jit::Operator(inputs_symbol(), make_inputs, c10::AliasAnalysisKind::CONSERVATIVE),
       torch::jit::Operator(observe_symbol(), make_observe, c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
