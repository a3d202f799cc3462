// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plugin/ending.h"
#include "plugin/torch_headers.h"

namespace stowage {

/// How the graph around a region holds one of the region's inputs.
struct OuterUse {
  bool ends_here = false;      ///< nothing uses it that runs after the region has
  bool in_register = false;    ///< the interpreter holds it until the branch is over that the region is in
  std::int32_t position = -1;  ///< which input of the whole graph it is; -1: an op makes it

  bool operator==(const OuterUse&) const = default;
};

/// By input of the node, which is in a graph that is ready to run (interpreter.cpp, 2.11: the last use in the block
/// that makes a value moves it; after a last use in an inner block `prim::Drop` follows).
std::vector<OuterUse> outer_uses(const torch::jit::Node& region);

/// Empties storages of the inputs of a region's run after their last use, though the interpreter around it and the
/// variables that autograd saved refer to them until the backward is over. Only those whose every reference is one of
/// these: the counts of tensors and storage are exactly theirs. After the run, a read of what was emptied throws.
///
/// A backward that saved a tensor holds the tensor itself or, of an output of the forward, another tensor with the same
/// storage, which nobody else has (saved_variable.cpp, 2.11). Such a storage is emptied only if autograd does not keep
/// the graph and no hooks saved it.
class Emptying {
 public:
  /// `uses`, by input, must outlive it. While it exists, the thread's `stowage::empty` belongs to it.
  Emptying(const std::vector<OuterUse>& uses, const torch::jit::Stack& inputs);
  ~Emptying();
  Emptying(const Emptying&) = delete;
  Emptying& operator=(const Emptying&) = delete;

  /// The thread's, or null.
  static Emptying* current();

  /// The run has read the input for the last time, and gives up this reference to it.
  void end(const Ending& ending, at::Tensor&& tensor);
  /// Empties what has ended by this step of the plan and nobody else holds any more.
  void empty(std::int64_t step);

  std::int64_t emptied_bytes() const { return emptied_bytes_; }

 private:
  enum class Holder : std::uint8_t { kNobody, kSameTensor, kOtherTensor };
  /// The inputs with one storage.
  struct Group {
    std::size_t open = 0;  ///< how many of them are still to be read
    bool may_empty = true;
    std::vector<std::pair<Ending, at::Tensor>> ended;
  };

  /// How autograd holds the input beyond the interpreter's references.
  Holder holder_of(std::size_t input, const at::Tensor& tensor) const;
  /// Whether nobody but the interpreters and the backward holds the group's storage, after this step.
  bool is_held_as_expected(const Group& group, std::int64_t step) const;

  const std::vector<OuterUse>& uses_;
  Emptying* const outer_;
  torch::autograd::Node* const backward_;
  bool may_empty_captures_ = false;
  std::vector<std::int32_t> group_of_;  ///< by input; -1: none
  std::vector<Group> groups_;
  std::vector<std::size_t> waiting_;  ///< groups that are read no more, but held by a view
  std::vector<c10::Storage> emptied_;
  std::int64_t emptied_bytes_ = 0;
};

}  // namespace stowage
