// SPDX-License-Identifier: Apache-2.0
#include "plugin/repeatable.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace stowage {
namespace {

using profiler::TensorKind;
using profiler::UseKind;
using torch::jit::Node;
using torch::jit::Symbol;

constexpr std::array kBatchNorms = {"aten::native_batch_norm", "aten::_native_batch_norm_legit",
                                    "aten::cudnn_batch_norm"};

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

TensorIds without(const TensorIds& ids, const TensorIds& others) {
  TensorIds rest;
  std::set_difference(ids.begin(), ids.end(), others.begin(), others.end(), std::back_inserter(rest));
  return rest;
}

/// The running statistics among the inputs of a training batch norm that makes the same results without them
/// (batch_norm_cpu in native/Normalization.cpp and native/cudnn/BatchNorm.cpp, 2.11).
std::vector<std::size_t> statistics_of(const Node& node) {
  const bool is_known = std::any_of(kBatchNorms.begin(), kBatchNorms.end(),
                                    [&](const char* name) { return node.kind() == Symbol::fromQualString(name); });
  if (!is_known || node.inputs().size() != 8) return {};
  const auto training = torch::jit::toIValue(node.inputs()[5]);
  return training && training->isBool() && training->toBool() ? std::vector<std::size_t>{3, 4}
                                                              : std::vector<std::size_t>();
}

/// Whether the op may run again as far as its kind tells. Of ops that are not PyTorch's own nothing is known but what
/// their schemas say: they may count their calls, or talk to other processes.
bool may_repeat(const OpFacts& op) {
  if (op.random || op.effect || op.barrier || op.has_blocks) return false;
  if (op.node->kind().is_prim()) return op.writes.empty();
  const torch::jit::Operator* schema = op.node->kind().is_aten() ? op.node->maybeOperator() : nullptr;
  if (schema == nullptr) return false;
  const auto tags = schema->getTags();
  return std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_bitwise) == tags.end();
}

/// What is made again must not be reached through what is not: an op that holds a tensor which it neither makes nor
/// writes is made again with that tensor if it is a mere view, else the tensor is not made again.
void keep_what_others_hold(profiler::Run& run, const std::vector<OpStorages>& storages) {
  std::vector<std::int32_t> maker(run.tensors.size(), profiler::kNone);
  std::vector<bool> allocates(run.ops.size(), false);
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    maker[index(allocation.tensor)] = allocation.op;
    allocates[index(allocation.op)] = true;
  }
  for (bool changed = true; std::exchange(changed, false);) {
    for (const profiler::UseRecord& use : run.uses) {
      const std::int32_t made_by = maker[index(use.tensor)];
      if (use.kind != UseKind::kResult || made_by == profiler::kNone || made_by == use.op) continue;
      const TensorIds& writes = storages[index(use.op)].seen_writes;
      const bool is_view = run.ops[index(use.op)].repeatable && !allocates[index(use.op)] && writes.empty();
      if (is_view || std::binary_search(writes.begin(), writes.end(), use.tensor)) continue;
      changed |= std::exchange(run.ops[index(made_by)].repeatable, false);
    }
  }
}

}  // namespace

void mark_repeatable(GraphFacts& facts) {
  // What an op behind which there is a barrier made or took may be changed by it.
  bool may = true;
  for (auto op = facts.ops.rbegin(); op != facts.ops.rend(); ++op) {
    op->statistics = statistics_of(*op->node);
    may &= !op->barrier;
    op->repeatable = may && may_repeat(*op);
  }
}

void mark_repeatable(profiler::Run& run, const GraphFacts& facts, const std::vector<OpStorages>& storages) {
  std::vector<bool> written(run.tensors.size(), false);         // by some op, in this run or another
  std::vector<bool> written_unseen(run.tensors.size(), false);  // by one that did not in this run
  for (const OpStorages& of : storages) {
    for (const std::int32_t tensor : of.possible_writes) written[index(tensor)] = true;
    for (const std::int32_t tensor : without(of.possible_writes, of.seen_writes)) written_unseen[index(tensor)] = true;
  }
  const auto is_any = [](const std::vector<bool>& of, const TensorIds& ids) {
    return std::any_of(ids.begin(), ids.end(), [&](std::int32_t id) { return of[index(id)]; });
  };
  const auto is_outside = [&](std::int32_t tensor) {
    const TensorKind kind = run.tensors[index(tensor)].kind;
    return kind == TensorKind::kInput || kind == TensorKind::kConstant;
  };
  for (std::size_t op = 0; op < run.ops.size(); ++op) {
    const OpStorages& of = storages[op];
    // A batch norm writes its statistics alone, and a repeat leaves them out: they must not be made again with others.
    const bool keeps_statistics = !facts.ops[op].statistics.empty();
    const bool writes_as_it_may = std::all_of(of.seen_writes.begin(), of.seen_writes.end(), [&](std::int32_t tensor) {
      return is_outside(tensor) == keeps_statistics;
    });
    run.ops[op].repeatable = facts.ops[op].repeatable && writes_as_it_may && !is_any(written_unseen, of.possible) &&
                             !is_any(written, without(of.possible, of.seen));
  }
  const auto is_output = [&](std::int32_t tensor) { return run.tensors[index(tensor)].kind == TensorKind::kOutput; };
  for (const profiler::UseRecord& use : run.uses) {
    if (use.kind == UseKind::kResult && is_output(use.tensor)) run.ops[index(use.op)].repeatable = false;
  }
  for (const profiler::AllocationRecord& allocation : run.allocations) {
    if (is_output(allocation.tensor)) run.ops[index(allocation.op)].repeatable = false;
  }
  keep_what_others_hold(run, storages);
}

}  // namespace stowage
