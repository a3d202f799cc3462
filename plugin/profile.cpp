// SPDX-License-Identifier: Apache-2.0
#include "plugin/profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "plugin/bridge.h"
#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/observation.h"
#include "plugin/origins.h"
#include "plugin/repeatable.h"
#include "plugin/reuse.h"
#include "profiler/match_sizes.h"
#ifdef STOWAGE_CUDA
#include "plugin/cuda_backend.h"
#endif

namespace stowage {
namespace {

using profiler::kNone;
using profiler::Run;
using profiler::TensorKind;
using profiler::UseKind;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;

std::vector<profiler::OpRecord> op_records(const GraphFacts& facts) {
  std::vector<profiler::OpRecord> records;
  std::map<std::string, int> unnamed;
  for (const OpFacts& op : facts.ops) {
    profiler::OpRecord record;
    record.kind = op.node->kind().toQualString();
    record.name = op.node->outputs().empty() ? fmt::format("{}.{}", record.kind, unnamed[record.kind]++)
                                             : op.node->outputs()[0]->debugName();
    record.scope = scope_of(*op.node);
    record.source = source_of(*op.node);
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<profiler::AllocationRecord> allocation_records(const std::vector<RecordedAllocation>& allocations,
                                                           const std::vector<std::int32_t>& tensor_of_allocation,
                                                           std::int64_t alignment_bytes) {
  std::vector<profiler::AllocationRecord> records;
  for (std::size_t allocation = 0; allocation < allocations.size(); ++allocation) {
    const RecordedAllocation& each = allocations[allocation];
    profiler::AllocationRecord record;
    record.tensor = tensor_of_allocation[allocation];
    record.op = each.op;
    record.index = each.index;
    record.requested_bytes = each.size_bytes;
    record.rounded_bytes = round_up(each.size_bytes, alignment_bytes);
    record.stream = each.stream;
    record.allocate_event = each.allocate_event;
    record.free_op = each.free_op;
    record.free_event = each.free_event;
    records.push_back(record);
  }
  return records;
}

/// Where the driver itself made each allocation; 0 where the cache did.
std::vector<std::uint64_t> direct_addresses(const std::vector<RecordedAllocation>& allocations) {
  std::vector<std::uint64_t> addresses;
  for (const RecordedAllocation& each : allocations) {
    addresses.push_back(each.direct ? reinterpret_cast<std::uintptr_t>(each.address) : 0);
  }
  return addresses;
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

/// Reads, writes and results of each op, from the graph and the storages seen behind its values. Returns them by op.
std::vector<OpStorages> fill_uses(Run& run, const GraphFacts& facts,
                                  std::unordered_map<const Value*, TensorIds> tensors_of,
                                  const std::vector<std::vector<TensorIds>>& results) {
  std::vector<bool> visible(facts.ops.size(), false);
  std::unordered_map<const Value*, TensorIds> possible_of = tensors_of;  // what another run may have there, too
  PossibleUses possible(run);
  std::vector<OpStorages> storages;
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
    OpStorages of{reads, all_of(possible_of, each.uses), writes, possible_writes};
    possible.add(id, of.possible, reads, /*write=*/false);
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
      insert_sorted(of.seen, held);
      insert_sorted(of.possible, possible_of[output]);
      tensors_of[output] = std::move(held);
    }
    storages.push_back(std::move(of));
  }
  const auto others = orderings(facts, visible);
  run.dependencies.insert(run.dependencies.begin(), others.begin(), others.end());
  return storages;
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
    const bool is_left = allocation.free_op == kNone || allocation.free_op > last;
    // The work of another stream knows nothing of the plan's order.
    if (is_left || allocation.stream != 0) run.tensors[tensor].kind = TensorKind::kOutput;
  }
}

/// Gives a slot to each allocation that died in the run: those may come from the driver itself.
SlotTable died_in(const Run& run) {
  profiler::PlanRecord record;
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    if (allocation.free_op != kNone) record.slots.push_back({allocation.tensor, 0, allocation.requested_bytes});
  }
  return to_slot_table(run, record);
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
    : facts_(facts), code_(with_observers(facts), "stowage"), cpu_(profiler::make_cpu_backend()) {}

profiler::Backend& Profiler::backend_for(c10::Device device, const Run* previous) {
  if (!device.is_cuda() || previous == nullptr) return *cpu_;
#ifdef STOWAGE_CUDA
  if (cuda_ == nullptr) {
    std::string why_not;
    cuda_ = make_cuda_backend(why_not);
    if (cuda_ == nullptr) note(why_not);
  }
#endif
  return cuda_ == nullptr ? *cpu_ : *cuda_;
}

Run Profiler::run(Stack& stack, c10::Device device, const Run* previous, std::string& why_not) {
  profiler::Backend& backend = backend_for(device, previous);
  const bool has_cupti = &backend == cuda_.get();
  const SlotTable direct = has_cupti ? died_in(*previous) : SlotTable();
  ProfileSession session(allocator_of(device), has_cupti ? &direct : nullptr);
  Observation observation(facts_, session, backend);
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
  run.alignment_bytes = alignment_bytes(device);
  run.ops = op_records(facts_);
  {
    struct Current {
      explicit Current(Observation& observation) { observation.make_current(); }
      ~Current() { Observation::clear_current(); }
    } current(observation);
    try {
      observation.begin();
      torch::jit::InterpreterState(code_).run(stack);
    } catch (...) {
      backend.stop();  // or no other run could be recorded
      throw;
    }
  }
  if (has_cupti) synchronize(device);
  backend.stop();
  backend.drain(run);
  if (!backend.why_not().empty()) note(backend.why_not());

  const std::vector<RecordedAllocation> allocations = session.allocations();
  std::vector<std::int32_t> tensor_of_allocation;
  run.tensors = observation.take_tensors(allocations, tensor_of_allocation);
  run.allocations = allocation_records(allocations, tensor_of_allocation, run.alignment_bytes);
  if (has_cupti) profiler::match_sizes(run, direct_addresses(allocations));
  if (session.refused()) {
    note(
        "the device has too little memory for CUPTI to see each tensor of a step: of some only the allocator's record "
        "gives the size");
  }
  run.peak_bytes = observation.outside_bytes() + session.peak_bytes();
  const std::vector<OpStorages> storages = fill_uses(run, facts_, std::move(tensors_of), observation.results());
  find_outputs(run);
  mark_repeatable(run, facts_, storages);
  name_unseen(run);
  run.reuses = observation.reuses();
  keep_possible_reuses(run);
  why_not = observation.opaque();
  return run;
}

}  // namespace stowage
