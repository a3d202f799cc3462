// SPDX-License-Identifier: Apache-2.0
#include "solver/recompute.h"

#include <algorithm>
#include <limits>

namespace stowage::solver {
namespace {

constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

/// What an op allocates and does not free itself.
std::vector<std::int32_t> find_makes(const Op& op) {
  std::vector<std::int32_t> makes;
  for (const Event& event : op.events) {
    if (event.kind == Event::Kind::kAllocate) {
      makes.push_back(event.tensor);
    } else {
      std::erase(makes, event.tensor);
    }
  }
  return makes;
}

}  // namespace

Recomputation::Recomputation(const Problem& problem, const std::vector<std::int32_t>& order, const BudgetLimits& limits)
    : problem_(problem),
      inner_sums_(find_inner_sums(problem)),
      needs_(problem.ops.size()),
      makes_(problem.ops.size()),
      makers_(problem.tensors.size()),
      makeable_until_(problem.tensors.size(), kNever),
      making_ns_(problem.tensors.size(), 0),
      gap_(problem.tensors.size(), 0),
      nothing_dropped_(problem.tensors.size(), 0),
      is_there_(problem.tensors.size()),
      instance_(problem.tensors.size()),
      left_(problem.tensors.size()),
      came_(problem.tensors.size()) {
  if (limits.copy_bytes_per_s > 0) link_.emplace(problem, limits.copy_bytes_per_s);
  for (const Tensor& tensor : problem.tensors) persistent_bytes_ += tensor.persistent ? tensor.size_bytes : 0;
  const std::vector<char> is_view = find_views(problem);
  std::vector<char> is_held(problem.tensors.size(), 0);  // by what is not made again when it is back
  for (const Op& op : problem.ops) {
    for (const std::int32_t view : op.views) {
      if (is_view[view] != 0) continue;
      for (const std::int32_t tensor : problem.ops[view].reads) is_held[tensor] = 1;
    }
  }
  for (const std::int32_t tensor : limits.uncopyable) is_held[tensor] = 1;
  for (const std::int32_t op : order) {
    if (is_view[op] == 0) order_.push_back(op);
  }
  ends_.resize(order_.size());

  struct Place {
    std::int32_t place;
    bool writes;
  };
  std::vector<std::vector<Place>> uses(problem.tensors.size());
  for (std::int32_t place = 0; place < std::ssize(order_); ++place) {
    const std::int32_t op_id = order_[place];
    const Op& op = problem.ops[op_id];
    makes_[op_id] = find_makes(op);
    for (const std::int32_t tensor : makes_[op_id]) {
      makers_[tensor].push_back(op_id);
      uses[tensor].push_back({place, true});
    }
    std::vector<std::int32_t> touched = op.reads;
    touched.insert(touched.end(), op.writes.begin(), op.writes.end());
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const std::int32_t tensor : touched) {
      if (contains(makes_[op_id], tensor)) continue;
      const bool writes = contains(op.writes, tensor);
      uses[tensor].push_back({place, writes});
      if (problem.tensors[tensor].persistent) continue;
      if (uses[tensor].size() == 1) continue;  // workspace of the op
      needs_[op_id].push_back(tensor);
      if (writes) makers_[tensor].push_back(op_id);
    }
  }

  std::vector<std::int32_t> place_of(problem.ops.size(), -1);
  for (std::int32_t place = 0; place < std::ssize(order_); ++place) place_of[order_[place]] = place;
  const auto next_write = [&](std::int32_t tensor, std::int32_t after) {
    for (const Place& use : uses[tensor]) {
      if (use.writes && use.place > after) return use.place;
    }
    return kNever;
  };
  for (std::int32_t tensor = 0; tensor < std::ssize(problem.tensors); ++tensor) {
    const Tensor& each = problem.tensors[tensor];
    if (each.persistent || each.output || makers_[tensor].empty()) continue;
    bool makeable = true;
    for (const std::int32_t maker : makers_[tensor]) {
      const Op& op = problem.ops[maker];
      making_ns_[tensor] += op.duration_ns;
      makeable &= op.repeatable;
      for (const std::int32_t made : makes_[maker]) {
        makeable &= !problem.tensors[made].output && (made == tensor || makers_[made].size() == 1);
      }
      for (const std::int32_t written : op.writes) {
        makeable &= written == tensor || problem.tensors[written].persistent || contains(makes_[maker], written);
      }
      for (const std::int32_t read : op.reads) {
        if (read == tensor || (problem.tensors[read].persistent && contains(op.writes, read))) continue;
        makeable_until_[tensor] = std::min(makeable_until_[tensor], next_write(read, place_of[maker]));
      }
    }
    std::int32_t last_write = -1;
    for (const Place& use : uses[tensor]) last_write = use.writes ? use.place : last_write;
    std::int32_t gap_begin = -1;
    for (std::size_t use = 0; use + 1 < uses[tensor].size(); ++use) {
      const std::int32_t length = uses[tensor][use + 1].place - uses[tensor][use].place;
      if (uses[tensor][use].place < last_write || length <= gap_[tensor]) continue;
      gap_[tensor] = length;
      gap_begin = uses[tensor][use].place;
    }
    const std::int32_t end = uses[tensor].back().place;
    const bool is_worth_it = gap_[tensor] > 1 && each.size_bytes > 0;
    const bool is_copyable = link_ && is_worth_it && !each.external && is_held[tensor] == 0;
    if (is_copyable) copyable_.push_back(tensor);
    if (is_worth_it && (makeable || is_copyable)) ends_[gap_begin].push_back(tensor);
    if (makeable && is_worth_it) {
      droppable_.push_back(tensor);
    } else if (makeable && end >= last_write) {
      keepable_.push_back(tensor);
      nothing_dropped_[tensor] = 1;
      ends_[end].push_back(tensor);
    }
  }
}

void Recomputation::execute(std::int32_t op, Recomputed& built) {
  const auto execution = static_cast<std::int32_t>(built.executions.size());
  built.executions.push_back(op);
  built.time_ns += problem_.ops[op].duration_ns;
  for (const std::int32_t tensor : needs_[op]) {
    if (came_[tensor] >= 0 && last_use_[came_[tensor]] < 0) {
      built.copies.push_back({.tensor = tensor, .offload_after = last_use_[left_[tensor]], .arrive_before = execution});
    }
    last_use_[instance_[tensor]] = execution;
    used_.push_back(instance_[tensor]);
  }
  for (const std::int32_t tensor : makes_[op]) {
    instance_[tensor] = static_cast<std::int32_t>(tensor_of_.size());
    tensor_of_.push_back(tensor);
    last_use_.push_back(execution);
    is_there_[tensor] = 1;
    came_[tensor] = -1;
  }
  used_end_.push_back(used_.size());
}

void Recomputation::come_back(std::int32_t tensor) {
  instance_[tensor] = came_[tensor] = static_cast<std::int32_t>(tensor_of_.size());
  tensor_of_.push_back(tensor);
  last_use_.push_back(-1);
  is_there_[tensor] = 1;
}

bool Recomputation::demand(std::int32_t tensor, std::int32_t place, Recomputed& built) {
  if (left_[tensor] >= 0) {
    come_back(tensor);
    return true;
  }
  if (place >= makeable_until_[tensor]) {
    built.conflict = tensor;
    return false;
  }
  for (const std::int32_t maker : makers_[tensor]) {
    for (const std::int32_t need : needs_[maker]) {
      if (need != tensor && is_there_[need] == 0 && !demand(need, place, built)) return false;
    }
    execute(maker, built);
  }
  return true;
}

void Recomputation::build(const Dropped& dropped, Recomputed& built) {
  built.executions.clear();
  built.time_ns = 0;
  built.copies.clear();
  built.conflict = -1;
  std::fill(is_there_.begin(), is_there_.end(), 0);
  std::fill(left_.begin(), left_.end(), -1);
  std::fill(came_.begin(), came_.end(), -1);
  tensor_of_.clear();
  last_use_.clear();
  used_.clear();
  used_end_.clear();
  for (std::int32_t place = 0; place < std::ssize(order_); ++place) {
    const std::int32_t op = order_[place];
    for (const std::int32_t tensor : needs_[op]) {
      if (is_there_[tensor] == 0 && !demand(tensor, place, built)) return;
    }
    execute(op, built);
    for (const std::int32_t tensor : ends_[place]) {
      if (dropped[tensor] != kKept) is_there_[tensor] = 0;
      if (dropped[tensor] == kCopied) left_[tensor] = instance_[tensor];
    }
  }
  if (!built.copies.empty()) schedule_copies(built);
  if (built.conflict < 0) measure(built);
}

void Recomputation::schedule_copies(Recomputed& built) {
  const std::int32_t late = link_->schedule(built.executions, built.copies, built.time_ns);
  if (late >= 0) built.conflict = built.copies[late].tensor;
  for (const Copy& copy : built.copies) last_use_[left_[copy.tensor]] = copy.offloaded_after;
}

void Recomputation::measure(Recomputed& built) {
  dying_first_.assign(built.executions.size(), -1);
  dying_next_.assign(tensor_of_.size(), -1);
  for (std::int32_t instance = 0; instance < std::ssize(tensor_of_); ++instance) {
    const Tensor& tensor = problem_.tensors[tensor_of_[instance]];
    if (tensor.output || last_use_[instance] < 0) continue;
    dying_next_[instance] = dying_first_[last_use_[instance]];
    dying_first_[last_use_[instance]] = instance;
  }
  built.peak_bytes.resize(built.executions.size());
  std::int64_t live_bytes = persistent_bytes_;
  built.largest_bytes = live_bytes;
  std::size_t used = 0;
  auto fetched = built.copies.begin();
  for (std::int32_t execution = 0; execution < std::ssize(built.executions); ++execution) {
    for (; fetched != built.copies.end() && fetched->fetch_before == execution; ++fetched) {
      live_bytes += problem_.tensors[fetched->tensor].size_bytes;
    }
    const Op& op = problem_.ops[built.executions[execution]];
    const InnerSums& sums = inner_sums_[built.executions[execution]];
    bool reuses = false;
    for (; used < used_end_[execution]; ++used) {
      if (op.reuses.empty() || last_use_[used_[used]] != execution) continue;
      reuses |= std::any_of(op.reuses.begin(), op.reuses.end(),
                            [&](const Reuse& reuse) { return reuse.input == tensor_of_[used_[used]]; });
    }
    built.peak_bytes[execution] = live_bytes + (reuses ? sums.reusing_peak_bytes : sums.peak_bytes);
    built.largest_bytes = std::max(built.largest_bytes, built.peak_bytes[execution]);
    live_bytes += sums.growth_bytes;
    for (std::int32_t instance = dying_first_[execution]; instance >= 0; instance = dying_next_[instance]) {
      live_bytes -= problem_.tensors[tensor_of_[instance]].size_bytes;
    }
  }
}

}  // namespace stowage::solver
