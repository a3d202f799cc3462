// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/dependencies.h"
#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// Whether every pointwise op runs the CPU kernel that torch comes with. What another does with its memory is not
/// known, and those call each other, so nothing is reused if one is replaced before the plan is made. Takes about a
/// millisecond.
bool kernels_are_torchs();

/// The version of stowage's planning rules, with the options that change them: plans made by others are not recalled.
std::string plan_rules();

/// Whether the op's one result may take the place of an input, as far as its node tells: it is pointwise or named in
/// the option `reuse_ops`, its result is fresh memory, and it writes nothing else. Never while the option `reuse` is
/// off.
bool may_reuse(const OpFacts& op);

/// A digest of everything that decides how an op lays out its result and what it allocates before it: dtypes, sizes,
/// strides and dispatch keys of its tensors, the kinds of its other inputs, the thread's dispatch state; and of which
/// input it is about. Nothing if somebody else is given the inputs and might keep them (autograd, a dispatch mode), if
/// new memory is filled before it is used, if an input is complex, whose kernels round differently in
/// place, or quantized, or if an input is no tensor, number, text or None.
std::optional<std::int64_t> layout_digest(c10::ArrayRef<c10::IValue> inputs, std::int32_t position);

/// Whether an observer on this thread, such as torch.profiler with shapes, is given the inputs of ops and might keep
/// them. It comes and goes, often while the first steps are profiled, so it is no part of the digest: asked in each
/// run.
bool inputs_are_observed();

/// Whether the memory of a CPU tensor dies with the `references` to it: nobody else holds the tensor or its storage. Of
/// a view made under no_grad, the base counts as part of the view.
bool dies_with(const at::Tensor& tensor, std::size_t references);

/// An input that fills its storage densely, as it was just before its op ran.
struct ReusableInput {
  std::int32_t position = 0;
  std::int64_t layout = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  /// Whether the op's result is laid out in the same way.
  bool matches(const at::Tensor& result) const;
};

/// The inputs of an op that its result may take the place of; no two values that share a storage.
std::vector<ReusableInput> find_reusable(const torch::jit::Node& node, c10::ArrayRef<c10::IValue> inputs);

/// Takes out what the whole run rules out: the result must be the only tensor that the op leaves behind, result and
/// input must live and die within the run.
void keep_possible_reuses(profiler::Run& run);

}  // namespace stowage
