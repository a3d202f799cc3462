// SPDX-License-Identifier: Apache-2.0
#include "plugin/emptying.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "plugin/captures.h"

namespace stowage {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

thread_local Emptying* t_emptying = nullptr;

/// The node of `block` that contains `node`, or is it; null if none.
const Node* ancestor_in(const Block* block, const Node* node) {
  while (node != nullptr && node->owningBlock() != block) node = node->owningBlock()->owningNode();
  return node;
}

/// Whether `user` runs before the region does, or instead of it.
bool is_over_before(const Node* user, const Node& region) {
  if (user->kind() == torch::jit::prim::Drop) return true;
  for (const Block* block = region.owningBlock(); block != nullptr;) {
    const Node* at = ancestor_in(block, user);
    const Node* own = ancestor_in(block, &region);
    if (at != nullptr && at == own) return at->kind() == torch::jit::prim::If;  // in the other branch
    if (at != nullptr) return at->kind() != torch::jit::prim::Return && at->isBefore(own);
    block = block->owningNode() == nullptr ? nullptr : block->owningNode()->owningBlock();
  }
  return false;
}

/// Whether all blocks from the region's out to `block` are branches, which run once.
bool is_in_branches_of(const Block* block, const Node& region) {
  const Block* at = region.owningBlock();
  while (at != block) {
    const Node* owner = at->owningNode();
    if (owner == nullptr || owner->kind() != torch::jit::prim::If) return false;
    at = owner->owningBlock();
  }
  return true;
}

const char* const kReadAgain =
    "Trying to backward through the graph a second time, or to read a tensor that only a finished backward held: "
    "stowage has freed its memory. Specify retain_graph=True if the graph is needed again.";

}  // namespace

std::vector<OuterUse> outer_uses(const Node& region) {
  std::vector<OuterUse> uses;
  for (const Value* value : region.inputs()) {
    OuterUse& use = uses.emplace_back();
    const Block* block = value->node()->owningBlock();
    const auto inputs = region.inputs();
    const auto& users = value->uses();
    use.ends_here = is_in_branches_of(block, region) && std::count(inputs.begin(), inputs.end(), value) == 1 &&
                    std::all_of(users.begin(), users.end(), [&](const torch::jit::Use& each) {
                      return each.user == &region || is_over_before(each.user, region);
                    });
    use.in_register = block != region.owningBlock();
    const bool is_graphs = value->node()->kind() == torch::jit::prim::Param && block->owningNode() == nullptr;
    if (is_graphs) use.position = static_cast<std::int32_t>(value->offset());
  }
  return uses;
}

Emptying::Emptying(const std::vector<OuterUse>& uses, const torch::jit::Stack& inputs)
    : uses_(uses), outer_(std::exchange(t_emptying, this)), backward_(running_backward()) {
  std::unordered_map<const void*, std::int32_t> group_of_storage;
  std::vector<c10::IValue> captures;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    group_of_.push_back(-1);
    if (!inputs[input].isTensor()) continue;
    const at::Tensor& tensor = inputs[input].toTensor();
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const auto [at, is_new] = group_of_storage.try_emplace(tensor.storage().unsafeGetStorageImpl(),
                                                           static_cast<std::int32_t>(groups_.size()));
    if (is_new) groups_.emplace_back();
    group_of_.back() = at->second;
    Group& group = groups_[static_cast<std::size_t>(at->second)];
    ++group.open;
    group.may_empty &= uses_[input].ends_here;
  }
  if (backward_ == nullptr || torch::autograd::get_current_graph_task_keep_graph()) return;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    if (uses_[input].position >= static_cast<std::int32_t>(backward_->num_inputs())) captures.push_back(inputs[input]);
  }
  may_empty_captures_ = saved_without_hooks(*backward_, captures);
}

Emptying::~Emptying() {
  t_emptying = outer_;
  for (const c10::Storage& storage : emptied_) {
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(kReadAgain);
  }
}

Emptying* Emptying::current() { return t_emptying; }

void Emptying::end(const Ending& ending, at::Tensor&& tensor) {
  const std::int32_t number = group_of_[static_cast<std::size_t>(ending.input)];
  if (number < 0) return;
  Group& group = groups_[static_cast<std::size_t>(number)];
  --group.open;
  if (!group.may_empty) return;
  group.ended.emplace_back(ending, std::move(tensor));
  if (group.open == 0) waiting_.push_back(static_cast<std::size_t>(number));
}

void Emptying::empty(std::int64_t step) {
  std::erase_if(waiting_, [&](std::size_t number) {
    Group& group = groups_[number];
    if (!is_held_as_expected(group, step)) return false;
    const c10::Storage& storage = group.ended.front().second.storage();
    emptied_bytes_ += static_cast<std::int64_t>(storage.nbytes());
    emptied_.push_back(storage);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, storage.device()});
    group.ended.clear();
    return true;
  });
}

Emptying::Holder Emptying::holder_of(std::size_t input, const at::Tensor& tensor) const {
  if (backward_ == nullptr || uses_[input].position < static_cast<std::int32_t>(backward_->num_inputs())) {
    return Holder::kNobody;
  }
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr && meta->grad_fn_.get() == backward_ ? Holder::kOtherTensor : Holder::kSameTensor;
}

bool Emptying::is_held_as_expected(const Group& group, std::int64_t step) const {
  struct Expected {
    const at::Tensor* tensor;
    std::size_t references;
  };
  std::vector<Expected> tensors;
  std::size_t storage_references = 0;
  for (const auto& [ending, tensor] : group.ended) {
    const auto input = static_cast<std::size_t>(ending.input);
    const Holder holder = holder_of(input, tensor);
    if (holder != Holder::kNobody && !may_empty_captures_) return false;
    auto at = std::find_if(tensors.begin(), tensors.end(),
                           [&tensor = tensor](const Expected& each) { return each.tensor->is_same(tensor); });
    if (at == tensors.end()) {
      at = tensors.insert(tensors.end(), {&tensor, 0});
      ++storage_references;
    }
    const bool is_used_later = ending.last_step > step;  // our interpreter's register has it
    at->references +=
        1 + (is_used_later ? 1 : 0) + (uses_[input].in_register ? 1 : 0) + (holder == Holder::kSameTensor ? 1 : 0);
    if (holder == Holder::kOtherTensor) ++storage_references;
  }
  const bool are_tensors_ours = std::all_of(tensors.begin(), tensors.end(), [](const Expected& each) {
    return each.tensor->use_count() == each.references && each.tensor->weak_use_count() == 1 &&
           each.tensor->unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr;
  });
  const c10::Storage& storage = tensors.front().tensor->storage();
  return are_tensors_ours && storage.use_count() == storage_references &&
         !c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
}

}  // namespace stowage
