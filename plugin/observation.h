// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugin/dependencies.h"
#include "plugin/planned_allocator.h"
#include "plugin/reuse.h"
#include "plugin/torch_headers.h"
#include "profiler/backend.h"
#include "profiler/record.h"

namespace stowage {

using TensorIds = std::vector<std::int32_t>;  ///< sorted, each once

void insert_sorted(TensorIds& ids, std::int32_t id);
void insert_sorted(TensorIds& ids, const TensorIds& more);

/// Which storages are behind the values of a running graph, which `with_observers` made. All arguments must outlive it.
class Observation {
 public:
  Observation(const GraphFacts& facts, ProfileSession& session, profiler::Backend& backend);

  /// The one that the operators of this thread tell, or null.
  static Observation* current() { return t_current; }
  void make_current() { t_current = this; }
  static void clear_current() { t_current = nullptr; }

  /// A value that was there before the step.
  TensorIds outside(const c10::IValue& value, const std::string& name, profiler::TensorKind kind);

  /// The first op is about to run.
  void begin();

  /// Op `op`, whose result may take an input's memory, is about to take copies of the top `count` values of the stack.
  void see_inputs(std::int32_t op, std::size_t count, torch::jit::Stack& stack);

  /// Op `op` has returned the top `count` values of the stack, which are observed and dropped.
  void observe(std::int32_t op, std::size_t count, const std::vector<std::string>& names, torch::jit::Stack& stack);

  /// By op, by output.
  const std::vector<std::vector<TensorIds>>& results() const { return results_; }
  const std::vector<profiler::ReuseRecord>& reuses() const { return reuses_; }
  /// Why the run cannot be planned from; empty if it can.
  const std::string& opaque() const { return opaque_; }
  std::int64_t outside_bytes() const { return outside_bytes_; }

  /// Tensors seen so far; each allocation of the session is one, seen or not.
  std::vector<profiler::TensorRecord> take_tensors(const std::vector<RecordedAllocation>& allocations,
                                                   std::vector<std::int32_t>& tensor_of_allocation);

 private:
  struct Range {
    const char* begin;
    const char* end;
    std::string name;
  };

  void compare_result(std::int32_t op, const at::Tensor& result);
  std::int32_t add_tensor(profiler::TensorKind kind);
  std::int32_t allocated(std::int32_t allocation);
  TensorIds tensors_of(const c10::IValue& value, const std::string& name);
  void collect(const c10::IValue& value, const std::string& name, TensorIds& ids);
  std::int32_t id_of(const at::Tensor& tensor, const std::string& name);
  void hold(const c10::Storage& storage, const std::string& name);
  std::int32_t outside_storage(const void* storage, std::int64_t size_bytes, const std::string& name,
                               const at::Tensor& tensor);
  void describe(std::int32_t id, const std::string& name, const at::Tensor& tensor);

  static thread_local Observation* t_current;

  const GraphFacts& facts_;
  ProfileSession& session_;
  profiler::Backend& backend_;
  std::vector<std::vector<TensorIds>> results_;
  std::vector<profiler::ReuseRecord> reuses_;
  std::vector<std::pair<std::int32_t, ReusableInput>> reusable_;  ///< of the op that runs, with the tensor of each
  std::vector<profiler::TensorRecord> tensors_;
  std::vector<std::int32_t> tensor_of_allocation_;
  std::unordered_map<const void*, std::int32_t> outside_;
  std::vector<c10::Storage> held_;
  std::vector<Range> ranges_;  ///< of what is held
  std::int64_t outside_bytes_ = 0;
  profiler::TensorKind outside_kind_ = profiler::TensorKind::kConstant;
  std::string opaque_;
};

/// A copy of the graph with `stowage::observe[op](%outputs...)` after every op, and before those whose result may take
/// an input's memory `stowage::inputs[op](%inputs...)`. Runs only while there is a current observation.
std::shared_ptr<torch::jit::Graph> with_observers(const GraphFacts& facts);

/// The operators that only such a copy contains.
torch::jit::RegisterOperators register_observation_operators();

}  // namespace stowage
