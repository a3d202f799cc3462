// SPDX-License-Identifier: Apache-2.0
#include "plugin/profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plugin/reuse.h"

namespace stowage {
namespace {

using profiler::kNone;
using profiler::Run;
using profiler::TensorKind;
using profiler::UseKind;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;
using torch::jit::Value;
using TensorIds = std::vector<std::int32_t>;

// Functions, since operators are registered before this file's constants would be initialised.
Symbol observe_symbol() { return Symbol::fromQualString("stowage::observe"); }
Symbol inputs_symbol() { return Symbol::fromQualString("stowage::inputs"); }
Symbol op_attribute() { return Symbol::attr("op"); }

void insert_sorted(TensorIds& ids, std::int32_t id) {
  const auto at = std::lower_bound(ids.begin(), ids.end(), id);
  if (at == ids.end() || *at != id) ids.insert(at, id);
}

void insert_sorted(TensorIds& ids, const TensorIds& more) {
  for (const std::int32_t id : more) insert_sorted(ids, id);
}

/// Which storages are behind the values of a running graph.
class Observation {
 public:
  Observation(const GraphFacts& facts, ProfileSession& session, profiler::Backend& backend)
      : facts_(facts), session_(session), backend_(backend), results_(facts.ops.size()) {}

  static Observation* current() { return t_current; }
  void make_current() { t_current = this; }
  static void clear_current() { t_current = nullptr; }

  /// A value that was there before the step.
  TensorIds outside(const c10::IValue& value, const std::string& name, TensorKind kind) {
    outside_kind_ = kind;
    TensorIds ids = tensors_of(value, name);
    outside_kind_ = TensorKind::kConstant;
    return ids;
  }

  void begin() {
    backend_.start(static_cast<std::int32_t>(results_.size()));
    if (!results_.empty()) backend_.begin_op(0);
  }

  /// Op `op`, whose result may take an input's memory, is about to take copies of the top `count` values of the stack.
  void see_inputs(std::int32_t op, std::size_t count, Stack& stack) {
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

  /// Op `op` has returned the top `count` values of the stack, which are observed and dropped.
  void observe(std::int32_t op, std::size_t count, const std::vector<std::string>& names, Stack& stack) {
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

  const std::vector<std::vector<TensorIds>>& results() const { return results_; }
  const std::vector<profiler::ReuseRecord>& reuses() const { return reuses_; }
  const std::string& opaque() const { return opaque_; }
  std::int64_t outside_bytes() const { return outside_bytes_; }

  /// Tensors seen so far; each allocation of the session is one, seen or not.
  std::vector<profiler::TensorRecord> take_tensors(const std::vector<RecordedAllocation>& allocations,
                                                   std::vector<std::int32_t>& tensor_of_allocation) {
    for (std::size_t allocation = 0; allocation < allocations.size(); ++allocation) {
      const std::int32_t tensor = allocated(static_cast<std::int32_t>(allocation));
      tensors_[static_cast<std::size_t>(tensor)].size_bytes = allocations[allocation].size_bytes;
    }
    tensor_of_allocation = tensor_of_allocation_;
    return std::move(tensors_);
  }

 private:
  void compare_result(std::int32_t op, const at::Tensor& result) {
    const TensorIds& ids = results_[static_cast<std::size_t>(op)].front();
    for (const auto& [id, input] : reusable_) {
      if (input.matches(result)) reuses_.push_back({op, ids.front(), id, input.position, input.layout});
    }
    reusable_.clear();
  }

  std::int32_t add_tensor(TensorKind kind) {
    tensors_.emplace_back().kind = kind;
    return static_cast<std::int32_t>(tensors_.size()) - 1;
  }

  std::int32_t allocated(std::int32_t allocation) {
    if (tensor_of_allocation_.size() <= static_cast<std::size_t>(allocation)) {
      tensor_of_allocation_.resize(static_cast<std::size_t>(allocation) + 1, kNone);
    }
    std::int32_t& tensor = tensor_of_allocation_[static_cast<std::size_t>(allocation)];
    if (tensor == kNone) tensor = add_tensor(TensorKind::kWorkspace);
    return tensor;
  }

  TensorIds tensors_of(const c10::IValue& value, const std::string& name) {
    TensorIds ids;
    collect(value, name, ids);
    return ids;
  }

  void collect(const c10::IValue& value, const std::string& name, TensorIds& ids) {
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

  std::int32_t id_of(const at::Tensor& tensor, const std::string& name) {
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

  void hold(const c10::Storage& storage, const std::string& name) {
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

  std::int32_t outside_storage(const void* storage, std::int64_t size_bytes, const std::string& name,
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

  void describe(std::int32_t id, const std::string& name, const at::Tensor& tensor) {
    profiler::TensorRecord& record = tensors_[static_cast<std::size_t>(id)];
    if (!record.name.empty()) return;
    record.name = name;
    if (record.kind == TensorKind::kWorkspace) record.kind = TensorKind::kIntermediate;  // a value holds it
    record.dtype = c10::toString(tensor.scalar_type());
    record.shape = fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
  }

  struct Range {
    const char* begin;
    const char* end;
    std::string name;
  };

  static thread_local Observation* t_current;

  const GraphFacts& facts_;
  ProfileSession& session_;
  profiler::Backend& backend_;
  std::vector<std::vector<TensorIds>> results_;  ///< by op, by output
  std::vector<profiler::ReuseRecord> reuses_;
  std::vector<std::pair<std::int32_t, ReusableInput>> reusable_;  ///< of the op that runs, with the tensor of each
  std::vector<profiler::TensorRecord> tensors_;
  std::vector<std::int32_t> tensor_of_allocation_;
  std::unordered_map<const void*, std::int32_t> outside_;
  std::vector<c10::Storage> held_;
  std::vector<Range> ranges_;  ///< of what is held
  std::int64_t outside_bytes_ = 0;
  TensorKind outside_kind_ = TensorKind::kConstant;
  std::string opaque_;
};

thread_local Observation* Observation::t_current = nullptr;

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

std::shared_ptr<Graph> with_observers(const GraphFacts& facts) {
  std::shared_ptr<Graph> copy = facts.graph->copy();
  std::int64_t op = 0;
  for (auto each = copy->nodes().begin(); each != copy->nodes().end(); ++each) {
    Node* node = *each;
    if (node->kind() == torch::jit::prim::Constant) continue;
    if (may_reuse(facts.ops[static_cast<std::size_t>(op)])) {
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

std::string source_of(const Node& node) {
  if (const auto location = node.sourceRange().file_line_col()) {
    return fmt::format("{}:{}", std::get<0>(*location), std::get<1>(*location));
  }
  return {};
}

std::vector<profiler::OpRecord> op_records(const GraphFacts& facts) {
  std::vector<profiler::OpRecord> records;
  std::map<std::string, int> unnamed;
  for (const OpFacts& op : facts.ops) {
    profiler::OpRecord record;
    record.kind = op.node->kind().toQualString();
    record.name = op.node->outputs().empty() ? fmt::format("{}.{}", record.kind, unnamed[record.kind]++)
                                             : op.node->outputs()[0]->debugName();
    record.scope = op.node->scopeName();
    record.source = source_of(*op.node);
    records.push_back(std::move(record));
  }
  return records;
}

/// Orders reads and writes of storages that ops may share in another run, though they did not in this one.
class PossibleUses {
 public:
  explicit PossibleUses(Run& run) : run_(run), of_(run.tensors.size()) {}

  /// In program order. `seen` are those of `possible` that the op used in this run: uses show their order.
  void add(std::int32_t op, const TensorIds& possible, const TensorIds& seen, bool write) {
    for (const std::int32_t tensor : possible) {
      Uses& uses = of_[static_cast<std::size_t>(tensor)];
      const Use use{op, std::binary_search(seen.begin(), seen.end(), tensor)};
      follow(use, uses.last_write);
      if (!write) {
        uses.reads_since.push_back(use);
        continue;
      }
      for (const Use& read : uses.reads_since) follow(use, read);
      uses.reads_since.clear();
      uses.last_write = use;
    }
  }

 private:
  struct Use {
    std::int32_t op = kNone;
    bool seen = false;
  };
  struct Uses {
    Use last_write;
    std::vector<Use> reads_since;
  };

  void follow(const Use& use, const Use& earlier) {
    if (earlier.op == kNone || earlier.op == use.op || (use.seen && earlier.seen)) return;
    run_.dependencies.push_back({use.op, earlier.op, profiler::DependencyReason::kValue});
  }

  Run& run_;
  std::vector<Uses> of_;  ///< by tensor
};

/// Reads, writes and results of each op, from the graph and the storages seen behind its values.
void fill_uses(Run& run, const GraphFacts& facts, std::unordered_map<const Value*, TensorIds> tensors_of,
               const std::vector<std::vector<TensorIds>>& results) {
  std::vector<bool> visible(facts.ops.size(), false);
  std::unordered_map<const Value*, TensorIds> possible_of = tensors_of;  // what another run may have there, too
  PossibleUses possible(run);
  auto all_of = [](std::unordered_map<const Value*, TensorIds>& of, const std::vector<const Value*>& values) {
    TensorIds ids;
    for (const Value* value : values) insert_sorted(ids, of[value]);
    return ids;
  };
  for (std::size_t op = 0; op < facts.ops.size(); ++op) {
    const OpFacts& each = facts.ops[op];
    const auto id = static_cast<std::int32_t>(op);
    const TensorIds reads = all_of(tensors_of, each.uses);
    const TensorIds writes = all_of(tensors_of, each.writes);
    const TensorIds possible_writes = all_of(possible_of, each.writes);
    for (const std::int32_t tensor : reads) run.uses.push_back({id, tensor, UseKind::kRead, kNone});
    for (const std::int32_t tensor : writes) run.uses.push_back({id, tensor, UseKind::kWrite, kNone});
    possible.add(id, all_of(possible_of, each.uses), reads, /*write=*/false);
    possible.add(id, possible_writes, writes, /*write=*/true);
    for (const std::int32_t tensor : possible_writes) {
      const TensorKind kind = run.tensors[static_cast<std::size_t>(tensor)].kind;
      if (kind == TensorKind::kInput || kind == TensorKind::kConstant) visible[op] = true;
    }
    for (std::size_t position = 0; position < results[op].size(); ++position) {
      const Value* output = each.node->outputs()[position];
      TensorIds held = results[op][position];
      // The branch that was not taken may return any tensor that the op uses: none of them may go before the result.
      if (each.has_blocks && holds_tensors(output->type())) insert_sorted(held, reads);
      for (const std::int32_t tensor : held) {
        run.uses.push_back({id, tensor, UseKind::kResult, static_cast<std::int32_t>(position)});
      }
      possible_of[output] = held;
      insert_sorted(possible_of[output], all_of(possible_of, each.may_return[position]));
      tensors_of[output] = std::move(held);
    }
  }
  const auto others = orderings(facts, visible);
  run.dependencies.insert(run.dependencies.begin(), others.begin(), others.end());
}

/// A tensor that is not freed where the graph stops using it outlives what the graph shows: it gets no slot.
void find_outputs(Run& run) {
  std::vector<std::int32_t> last_use(run.tensors.size(), kNone);
  for (const profiler::UseRecord& use : run.uses) {
    std::int32_t& last = last_use[static_cast<std::size_t>(use.tensor)];
    last = std::max(last, use.op);
  }
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    const auto tensor = static_cast<std::size_t>(allocation.tensor);
    const std::int32_t last = std::max(last_use[tensor], allocation.op);
    if (allocation.free_op == kNone || allocation.free_op > last) run.tensors[tensor].kind = TensorKind::kOutput;
  }
}

void name_unseen(Run& run) {
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    profiler::TensorRecord& tensor = run.tensors[static_cast<std::size_t>(allocation.tensor)];
    if (tensor.name.empty()) {
      tensor.name =
          fmt::format("{}.workspace{}", run.ops[static_cast<std::size_t>(allocation.op)].name, allocation.index);
    }
  }
}

}  // namespace

Profiler::Profiler(const GraphFacts& facts)
    : facts_(facts), code_(with_observers(facts), "stowage"), backend_(profiler::make_cpu_backend()) {}

Run Profiler::run(Stack& stack, PlannedAllocator& allocator, std::string& why_not) {
  ProfileSession session(allocator);
  Observation observation(facts_, session, *backend_);
  std::unordered_map<const Value*, TensorIds> tensors_of;
  for (std::size_t input = 0; input < stack.size(); ++input) {
    const Value* value = facts_.graph->inputs()[input];
    tensors_of[value] = observation.outside(stack[input], value->debugName(), TensorKind::kInput);
  }
  for (const Node* node : facts_.graph->nodes()) {
    if (node->kind() != torch::jit::prim::Constant) continue;
    if (const auto constant = torch::jit::toIValue(node->output())) {
      tensors_of[node->output()] = observation.outside(*constant, node->output()->debugName(), TensorKind::kConstant);
    }
  }

  Run run;
  run.created_unix_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  run.ops = op_records(facts_);
  {
    struct Current {
      explicit Current(Observation& observation) { observation.make_current(); }
      ~Current() { Observation::clear_current(); }
    } current(observation);
    observation.begin();
    torch::jit::InterpreterState(code_).run(stack);
  }
  backend_->stop();
  backend_->drain(run);

  const std::vector<RecordedAllocation> allocations = session.allocations();
  std::vector<std::int32_t> tensor_of_allocation;
  run.tensors = observation.take_tensors(allocations, tensor_of_allocation);
  for (std::size_t allocation = 0; allocation < allocations.size(); ++allocation) {
    const RecordedAllocation& each = allocations[allocation];
    profiler::AllocationRecord record;
    record.tensor = tensor_of_allocation[allocation];
    record.op = each.op;
    record.index = each.index;
    record.requested_bytes = each.size_bytes;
    record.rounded_bytes = round_up(each.size_bytes);
    record.allocate_event = each.allocate_event;
    record.free_op = each.free_op;
    record.free_event = each.free_event;
    run.allocations.push_back(record);
  }
  run.peak_bytes = observation.outside_bytes() + session.peak_bytes();
  fill_uses(run, facts_, std::move(tensors_of), observation.results());
  find_outputs(run);
  name_unseen(run);
  run.reuses = observation.reuses();
  keep_possible_reuses(run);
  why_not = observation.opaque();
  return run;
}

torch::jit::RegisterOperators register_profile_operators() {
  return torch::jit::RegisterOperators(
      {torch::jit::Operator(inputs_symbol(), make_inputs, c10::AliasAnalysisKind::CONSERVATIVE),
       torch::jit::Operator(observe_symbol(), make_observe, c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
