// SPDX-License-Identifier: Apache-2.0
#include "solver/moment.h"

#include <algorithm>

#include "solver/lifetimes.h"

namespace stowage::solver {
namespace {

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::vector<char> reach(std::int32_t start, const std::vector<std::vector<std::int32_t>>& next) {
  std::vector<char> reached(next.size());
  std::vector<std::int32_t> open{start};
  while (!open.empty()) {
    const std::int32_t op = open.back();
    open.pop_back();
    for (const std::int32_t other : next[op]) {
      if (!reached[other]) open.push_back(other);
      reached[other] = true;
    }
  }
  return reached;
}

}  // namespace

Makers::Makers(const Problem& problem)
    : allocator(problem.tensors.size(), -1),
      writers(problem.tensors.size()),
      users(problem.tensors.size()),
      inputs(problem.ops.size()),
      overwriters(problem.ops.size()),
      may_repeat(problem.ops.size()),
      is_view(find_views(problem)) {
  std::vector<std::vector<std::int32_t>> readers(
      problem.tensors.size());  // of persistent tensors, since the last write
  for (std::int32_t op_id = 0; op_id < std::ssize(problem.ops); ++op_id) {
    const Op& op = problem.ops[op_id];
    may_repeat[op_id] = op.repeatable;
    for (const Event& event : op.events) {
      allocator[event.tensor] = op_id;
      if (problem.tensors[event.tensor].output) may_repeat[op_id] = false;
    }
    for (const std::int32_t tensor : op.writes) {
      if (problem.tensors[tensor].persistent) {
        for (const std::int32_t reader : readers[tensor]) overwriters[reader].push_back(op_id);
        readers[tensor].clear();
      } else if (allocator[tensor] != op_id) {
        const auto repeats = [this](std::int32_t writer) { return may_repeat[writer] != 0; };
        const bool may_be_made =
            repeats(allocator[tensor]) && std::all_of(writers[tensor].begin(), writers[tensor].end(), repeats);
        if (!may_be_made) may_repeat[op_id] = false;
        writers[tensor].push_back(op_id);
      }
    }
    std::vector<std::int32_t>& taken = inputs[op_id];
    for (const auto* tensors : {&op.reads, &op.writes}) {
      for (const std::int32_t tensor : *tensors) {
        if (problem.tensors[tensor].persistent) {
          if (!contains(op.writes, tensor)) readers[tensor].push_back(op_id);
        } else if (allocator[tensor] != op_id && !contains(taken, tensor)) {
          taken.push_back(tensor);
          if (!is_view[op_id]) users[tensor].push_back(op_id);
        }
      }
    }
  }
}

Moment::Moment(const Problem& problem, const Dependencies& dependencies, const Makers& makers, std::int32_t op)
    : problem_(problem),
      makers_(makers),
      op_(op),
      before_(reach(op, dependencies.predecessors)),
      after_(reach(op, dependencies.successors)),
      fates_(problem.tensors.size(), Fate::kUnneeded),
      repeat_nodes_(problem.ops.size(), -1),
      taken_nodes_(problem.tensors.size(), -1) {
  sort_tensors();
  for (std::int32_t tensor = 0; tensor < std::ssize(fates_); ++tensor) {
    if (fates_[tensor] == Fate::kDroppable) add_droppable(tensor);
  }
  for (std::size_t next = 0; next < repeatable_.size(); ++next) {  // grows meanwhile
    const std::int32_t repeated = repeatable_[next];
    for (const std::int32_t tensor : makers_.inputs[repeated]) {
      if (fates_[tensor] == Fate::kUnneeded) add_uncuttable_edge(repeat_nodes_[repeated], taken_node(tensor));
    }
  }
}

void Moment::sort_tensors() {
  for (std::int32_t id = 0; id < std::ssize(problem_.tensors); ++id) {
    const Tensor& tensor = problem_.tensors[id];
    const std::int32_t allocator = makers_.allocator[id];
    if (allocator >= 0 && before_[allocator]) {
      if (tensor.output || contains(makers_.inputs[op_], id)) {
        fates_[id] = Fate::kFixed;
      } else if (is_needed(id)) {
        fates_[id] = tensor.size_bytes > 0 && may_drop(id) ? Fate::kDroppable : Fate::kFixed;
      }
    }
    if (tensor.persistent || fates_[id] == Fate::kFixed) fixed_bytes_ += tensor.size_bytes;
  }
  fixed_bytes_ += inner_peak_bytes();
}

std::int64_t Moment::inner_peak_bytes() const {
  const Op& op = problem_.ops[op_];
  const bool may_reuse = std::any_of(op.reuses.begin(), op.reuses.end(), [this](const Reuse& reuse) {
    return !is_needed(reuse.input) || may_drop(reuse.input);
  });
  return find_inner_peak(problem_, op, may_reuse).bytes;
}

bool Moment::is_needed(std::int32_t tensor) const {
  const std::vector<std::int32_t>& users = makers_.users[tensor];
  return std::any_of(users.begin(), users.end(), [this](std::int32_t user) { return after_[user] != 0; });
}

bool Moment::may_repeat(std::int32_t op) const {
  const std::vector<std::int32_t>& overwriters = makers_.overwriters[op];
  return makers_.may_repeat[op] && std::none_of(overwriters.begin(), overwriters.end(),
                                                [this](std::int32_t writer) { return before_[writer] != 0; });
}

bool Moment::may_drop(std::int32_t tensor) const {
  const std::vector<std::int32_t>& writers = makers_.writers[tensor];
  return may_repeat(makers_.allocator[tensor]) && std::all_of(writers.begin(), writers.end(), [this](auto writer) {
           return !before_[writer] || may_repeat(writer);
         });
}

void Moment::add_edge(std::int32_t from, std::int32_t to, Edge edge) {
  network_.add_edge(from, to, 0);
  edges_.push_back(edge);
  sums_.bytes += edge.bytes;
  sums_.duration_ns += edge.duration_ns;
}

void Moment::add_uncuttable_edge(std::int32_t from, std::int32_t to) {
  network_.add_edge(from, to, FlowNetwork::kUncuttable);
  edges_.push_back({.is_uncuttable = true});
}

std::int32_t Moment::repeat_node(std::int32_t op) {
  std::int32_t& node = repeat_nodes_[op];
  if (node >= 0) return node;
  node = network_.add_node();
  add_edge(node, FlowNetwork::kSink, {.duration_ns = problem_.ops[op].duration_ns});
  repeatable_.push_back(op);
  return node;
}

std::int32_t Moment::taken_node(std::int32_t tensor) {
  std::int32_t& node = taken_nodes_[tensor];
  if (node >= 0) return node;
  node = network_.add_node();
  const std::int32_t allocator = makers_.allocator[tensor];
  const std::int32_t made_node = may_repeat(allocator) ? repeat_node(allocator) : FlowNetwork::kSink;
  add_edge(node, made_node, {.bytes = problem_.tensors[tensor].size_bytes});
  taken_.push_back({.tensor = tensor, .node = node, .made_node = made_node});
  return node;
}

void Moment::add_droppable(std::int32_t tensor) {
  std::int32_t node = repeat_node(makers_.allocator[tensor]);
  std::vector<std::int32_t> writers = makers_.writers[tensor];
  std::erase_if(writers, [this](std::int32_t writer) { return before_[writer] == 0; });
  if (!writers.empty()) {
    const std::int32_t all_node = network_.add_node();
    add_uncuttable_edge(all_node, node);
    for (const std::int32_t writer : writers) add_uncuttable_edge(all_node, repeat_node(writer));
    node = all_node;
  }
  add_edge(FlowNetwork::kSource, node, {.bytes = problem_.tensors[tensor].size_bytes});
  droppable_.push_back({.tensor = tensor, .node = node});
}

Price Moment::fit(Price price) const {
  constexpr std::int64_t kMostCost = FlowNetwork::kUncuttable / 4;
  const auto is_too_large = [](std::int64_t factor, std::int64_t sum) { return sum > 0 && factor > kMostCost / sum; };
  while (price.bytes > 1 && (is_too_large(price.ns, sums_.bytes) || is_too_large(price.bytes, sums_.duration_ns))) {
    price = {.ns = price.ns / 2, .bytes = price.bytes / 2};
  }
  if (is_too_large(price.ns, sums_.bytes)) price.ns = kMostCost / sums_.bytes;
  return price;
}

std::int64_t Moment::cut(Price price) {
  for (std::int32_t edge = 0; edge < std::ssize(edges_); ++edge) {
    const auto& [bytes, duration_ns, is_uncuttable] = edges_[edge];
    if (!is_uncuttable) network_.set_capacity(edge, price.ns * bytes + price.bytes * duration_ns);
  }
  return network_.cut();
}

Relaxed Moment::choice() const {
  Relaxed choice{.dropped = {}, .kept = {}, .repeats = {}, .bytes = fixed_bytes_, .time_ns = 0};
  for (const Optional& droppable : droppable_) {
    if (network_.is_on_source_side(droppable.node)) {
      choice.dropped.push_back(droppable.tensor);
    } else {
      choice.bytes += problem_.tensors[droppable.tensor].size_bytes;
    }
  }
  for (const Optional& taken : taken_) {
    const bool lives = network_.is_on_source_side(taken.node) && !network_.is_on_source_side(taken.made_node);
    if (!lives) continue;
    choice.kept.push_back(taken.tensor);
    choice.bytes += problem_.tensors[taken.tensor].size_bytes;
  }
  for (const std::int32_t op : repeatable_) {
    if (!network_.is_on_source_side(repeat_nodes_[op])) continue;
    choice.repeats.push_back(op);
    choice.time_ns += problem_.ops[op].duration_ns;
  }
  std::sort(choice.repeats.begin(), choice.repeats.end());
  return choice;
}

}  // namespace stowage::solver
