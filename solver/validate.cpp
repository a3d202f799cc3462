// SPDX-License-Identifier: Apache-2.0
#include "solver/validate.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "solver/text.h"

namespace stowage::solver {
namespace {

using Fault = std::optional<std::string>;

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool frees_itself(const Op& op, std::int32_t tensor) {
  return std::find(op.events.begin(), op.events.end(), Event{Event::Kind::kFree, tensor}) != op.events.end();
}

bool allocates(const Op& op, std::int32_t tensor) {
  return std::find(op.events.begin(), op.events.end(), Event{Event::Kind::kAllocate, tensor}) != op.events.end();
}

std::int64_t slot_bytes(const Tensor& tensor) {
  std::int64_t bytes = tensor.size_bytes;
  if (bytes % tensor.alignment_bytes != 0) bytes += tensor.alignment_bytes - bytes % tensor.alignment_bytes;
  return bytes;
}

class Replay {
 public:
  Replay(const Problem& problem, const Plan& plan) : problem_(problem), plan_(plan) {}

  Fault run() {
    if (auto fault = check_counts()) return fault;
    if (auto fault = check_permutation()) return fault;
    if (auto fault = check_dependencies()) return fault;
    if (auto fault = check_slots()) return fault;
    if (auto fault = check_events()) return fault;
    return check_sums();
  }

 private:
  std::string op_text(std::int32_t op) const { return fmt::format("op {} {}", op, quote(problem_.ops[op].name)); }
  std::string tensor_text(std::int32_t tensor) const {
    return fmt::format("tensor {} {}", tensor, quote(problem_.tensors[tensor].name));
  }

  Fault check_counts() const {
    if (plan_.order.size() != problem_.ops.size()) {
      return fmt::format("order: {} ops, the problem has {}", plan_.order.size(), problem_.ops.size());
    }
    if (plan_.frees_after.size() != problem_.ops.size()) {
      return fmt::format("frees: lists for {} ops, the problem has {}", plan_.frees_after.size(), problem_.ops.size());
    }
    if (plan_.offset_bytes.size() != problem_.tensors.size()) {
      return fmt::format("slots: {} offsets, the problem has {} tensors", plan_.offset_bytes.size(),
                         problem_.tensors.size());
    }
    if (plan_.reuse_of.size() != problem_.tensors.size()) {
      return fmt::format("reuse: entries for {} tensors, the problem has {}", plan_.reuse_of.size(),
                         problem_.tensors.size());
    }
    return std::nullopt;
  }

  Fault check_permutation() {
    position_.assign(problem_.ops.size(), -1);
    for (std::int32_t position = 0; position < std::ssize(plan_.order); ++position) {
      const std::int32_t op = plan_.order[position];
      if (op < 0 || op >= std::ssize(problem_.ops)) return fmt::format("order: there is no op {}", op);
      if (position_[op] != -1) return fmt::format("order: {} runs twice", op_text(op));
      position_[op] = position;
    }
    return std::nullopt;
  }

  /// Every pair of ops that touch one tensor, at least one of them writing it.
  Fault check_dependencies() const {
    struct Access {
      std::int32_t op;
      bool writes;
    };
    std::vector<std::vector<Access>> accesses(problem_.tensors.size());
    for (std::int32_t later = 0; later < std::ssize(problem_.ops); ++later) {
      const Op& op = problem_.ops[later];
      for (const std::int32_t earlier : op.after) {
        if (position_[earlier] > position_[later]) {
          return fmt::format("order: {} runs before {}, which it must run after", op_text(later), op_text(earlier));
        }
      }
      std::vector<std::int32_t> touched = op.reads;
      touched.insert(touched.end(), op.writes.begin(), op.writes.end());
      for (const Event& event : op.events) touched.push_back(event.tensor);
      for (const std::int32_t tensor : touched) {
        const bool writes = contains(op.writes, tensor) || allocates(op, tensor);
        for (const Access& access : accesses[tensor]) {
          if ((writes || access.writes) && position_[access.op] > position_[later]) {
            return fmt::format("order: {} runs before {}, but {} {} after it in the program", op_text(later),
                               op_text(access.op), writes ? "writes" : "reads", tensor_text(tensor));
          }
        }
        accesses[tensor].push_back({later, writes});
      }
    }
    return std::nullopt;
  }

  Fault check_slots() const {
    if (plan_.cut_bytes != 0 && (plan_.cut_bytes < 0 || plan_.cut_bytes >= plan_.arena_bytes)) {
      return fmt::format("slots: the cut at {} B is outside the arena of {} B", plan_.cut_bytes, plan_.arena_bytes);
    }
    std::int64_t height_bytes = 0;
    for (std::int32_t id = 0; id < std::ssize(problem_.tensors); ++id) {
      const Tensor& tensor = problem_.tensors[id];
      const std::int64_t offset_bytes = plan_.offset_bytes[id];
      if (tensor.persistent && plan_.reuse_of[id] != kNoReuse) {
        return fmt::format("reuse: {} is persistent, but takes the memory of tensor {}", tensor_text(id),
                           plan_.reuse_of[id]);
      }
      if (tensor.persistent || tensor.external || tensor.size_bytes == 0) {
        if (offset_bytes != kNoSlot) return fmt::format("slots: {} needs no slot, but has one", tensor_text(id));
        continue;
      }
      if (offset_bytes == kNoSlot) return fmt::format("slots: {} has none", tensor_text(id));
      if (offset_bytes < 0 || offset_bytes % tensor.alignment_bytes != 0) {
        return fmt::format("slots: offset {} of {} is not a multiple of its alignment {}", offset_bytes,
                           tensor_text(id), tensor.alignment_bytes);
      }
      if (offset_bytes > plan_.arena_bytes || slot_bytes(tensor) > plan_.arena_bytes - offset_bytes) {
        return fmt::format("slots: {} at offset {} ends outside the arena of {} B", tensor_text(id), offset_bytes,
                           plan_.arena_bytes);
      }
      if (offset_bytes < plan_.cut_bytes && offset_bytes + slot_bytes(tensor) > plan_.cut_bytes) {
        return fmt::format("slots: {} at offset {} lies across the cut at {} B", tensor_text(id), offset_bytes,
                           plan_.cut_bytes);
      }
      if (plan_.cut_bytes % tensor.alignment_bytes != 0) {
        return fmt::format("slots: the cut at {} B is not a multiple of the alignment {} of {}", plan_.cut_bytes,
                           tensor.alignment_bytes, tensor_text(id));
      }
      height_bytes = std::max(height_bytes, offset_bytes + slot_bytes(tensor));
    }
    if (height_bytes != plan_.arena_bytes) {
      return fmt::format("sums: arena_bytes is {}, the slots end at {}", plan_.arena_bytes, height_bytes);
    }
    return std::nullopt;
  }

  /// Plays the plan: what is live, where it lies, and the largest sums.
  Fault check_events() {
    std::int64_t live_bytes = persistent_bytes();
    std::int64_t arena_live_bytes = 0;
    peak_bytes_ = live_bytes;
    std::vector<std::int32_t> live;  // allocated by the step and not yet freed
    std::vector<char> was_freed(problem_.tensors.size());
    std::vector<std::int32_t> reused_by(problem_.tensors.size(), -1);  // by tensor: the op that took its memory
    const auto free = [&](std::int32_t tensor) {
      std::erase(live, tensor);
      was_freed[tensor] = true;
      live_bytes -= problem_.tensors[tensor].size_bytes;
      if (plan_.offset_bytes[tensor] != kNoSlot) arena_live_bytes -= slot_bytes(problem_.tensors[tensor]);
    };
    for (const std::int32_t op : plan_.order) {
      for (const Event& event : problem_.ops[op].events) {
        const std::int32_t tensor = event.tensor;
        if (event.kind == Event::Kind::kFree) {
          if (was_freed[tensor])
            return fmt::format("frees: {} is freed twice, by {}", tensor_text(tensor), op_text(op));
          free(tensor);
          continue;
        }
        const std::int32_t reused = plan_.reuse_of[tensor];
        if (reused != kNoReuse) {
          if (auto fault = check_reuse(op, tensor)) return fault;
          if (was_freed[reused]) {
            return fmt::format("reuse: {} takes the memory of {} in {}, after it was freed", tensor_text(tensor),
                               tensor_text(reused), op_text(op));
          }
          free(reused);
          reused_by[reused] = op;
        }
        if (auto fault = check_room(op, tensor, live)) return fault;
        live.push_back(tensor);
        live_bytes += problem_.tensors[tensor].size_bytes;
        if (plan_.offset_bytes[tensor] != kNoSlot) arena_live_bytes += slot_bytes(problem_.tensors[tensor]);
        peak_bytes_ = std::max(peak_bytes_, live_bytes);
        arena_bound_bytes_ = std::max(arena_bound_bytes_, arena_live_bytes);
      }
      for (const auto* used : {&problem_.ops[op].reads, &problem_.ops[op].writes}) {
        for (const std::int32_t tensor : *used) {
          if (was_freed[tensor] && !frees_itself(problem_.ops[op], tensor) && reused_by[tensor] != op) {
            return fmt::format("frees: {} uses {} after it was freed", op_text(op), tensor_text(tensor));
          }
        }
      }
      for (const std::int32_t tensor : plan_.frees_after[op]) {
        if (tensor < 0 || tensor >= std::ssize(problem_.tensors)) {
          return fmt::format("frees: there is no tensor {}, freed after {}", tensor, op_text(op));
        }
        const Tensor& freed = problem_.tensors[tensor];
        if (freed.persistent || freed.output) {
          return fmt::format("frees: {} is {}, but freed after {}", tensor_text(tensor),
                             freed.persistent ? "persistent" : "an output", op_text(op));
        }
        if (was_freed[tensor])
          return fmt::format("frees: {} is freed twice, after {}", tensor_text(tensor), op_text(op));
        if (!contains(live, tensor)) {
          return fmt::format("frees: {} is freed after {}, before it is allocated", tensor_text(tensor), op_text(op));
        }
        free(tensor);
      }
    }
    for (const std::int32_t tensor : live) {
      if (!problem_.tensors[tensor].output) return fmt::format("frees: {} is never freed", tensor_text(tensor));
    }
    return std::nullopt;
  }

  /// A candidate, in place; that the input is used no more shows in the replay.
  Fault check_reuse(std::int32_t op, std::int32_t output) const {
    const std::int32_t input = plan_.reuse_of[output];
    const std::vector<Reuse>& candidates = problem_.ops[op].reuses;
    if (std::find(candidates.begin(), candidates.end(), Reuse{output, input}) == candidates.end()) {
      return fmt::format("reuse: {} takes the memory of tensor {} in {}, which is no candidate", tensor_text(output),
                         input, op_text(op));
    }
    if (plan_.offset_bytes[output] != plan_.offset_bytes[input]) {
      return fmt::format("reuse: {} takes the memory of {} in {}, but lies at offset {}, not {}", tensor_text(output),
                         tensor_text(input), op_text(op), plan_.offset_bytes[output], plan_.offset_bytes[input]);
    }
    return std::nullopt;
  }

  Fault check_room(std::int32_t op, std::int32_t tensor, const std::vector<std::int32_t>& live) const {
    const std::int64_t start_bytes = plan_.offset_bytes[tensor];
    if (start_bytes == kNoSlot) return std::nullopt;
    const std::int64_t end_bytes = start_bytes + slot_bytes(problem_.tensors[tensor]);
    for (const std::int32_t other : live) {
      const std::int64_t other_start_bytes = plan_.offset_bytes[other];
      if (other_start_bytes == kNoSlot) continue;
      const std::int64_t other_end_bytes = other_start_bytes + slot_bytes(problem_.tensors[other]);
      if (start_bytes < other_end_bytes && other_start_bytes < end_bytes) {
        return fmt::format("slots: {} and {} overlap while {} runs", tensor_text(tensor), tensor_text(other),
                           op_text(op));
      }
    }
    return std::nullopt;
  }

  Fault check_sums() const {
    const auto differ = [](std::string_view field, std::int64_t stated, std::int64_t found) -> Fault {
      if (stated == found) return std::nullopt;
      return fmt::format("sums: {} is {}, the replay finds {}", field, stated, found);
    };
    if (auto fault = differ("peak_bytes", plan_.peak_bytes, peak_bytes_)) return fault;
    if (auto fault = differ("program_peak_bytes", plan_.program_peak_bytes, find_program_peak())) return fault;
    // The search may have proven a higher bound than the replay can find, but none above a layout that exists.
    if (plan_.arena_bound_bytes < arena_bound_bytes_ || plan_.arena_bound_bytes > plan_.arena_bytes) {
      return differ("arena_bound_bytes", plan_.arena_bound_bytes, arena_bound_bytes_);
    }
    if (plan_.peak_bytes > plan_.program_peak_bytes) {
      return fmt::format("sums: peak_bytes {} is above program_peak_bytes {}", plan_.peak_bytes,
                         plan_.program_peak_bytes);
    }
    if (plan_.bound_bytes > plan_.peak_bytes) {
      return fmt::format("sums: bound_bytes {} is above peak_bytes {}", plan_.bound_bytes, plan_.peak_bytes);
    }
    if ((plan_.order_status == Status::kOptimal) != (plan_.bound_bytes == plan_.peak_bytes)) {
      return fmt::format("status: the order is '{}' with a peak of {} B and a bound of {} B",
                         to_string(plan_.order_status), plan_.peak_bytes, plan_.bound_bytes);
    }
    if ((plan_.layout_status == Status::kOptimal) != (plan_.arena_bound_bytes == plan_.arena_bytes)) {
      return fmt::format("status: the layout is '{}' with a height of {} B and a bound of {} B",
                         to_string(plan_.layout_status), plan_.arena_bytes, plan_.arena_bound_bytes);
    }
    return std::nullopt;
  }

  std::int64_t persistent_bytes() const {
    std::int64_t bytes = 0;
    for (const Tensor& tensor : problem_.tensors) bytes += tensor.persistent ? tensor.size_bytes : 0;
    return bytes;
  }

  /// Each tensor is freed after the last op, in program order, that has anything to do with it.
  std::int64_t find_program_peak() const {
    std::vector<std::int32_t> last_op(problem_.tensors.size(), -1);
    for (std::int32_t op = 0; op < std::ssize(problem_.ops); ++op) {
      for (const Event& event : problem_.ops[op].events) last_op[event.tensor] = op;
      for (const std::int32_t tensor : problem_.ops[op].reads) last_op[tensor] = op;
      for (const std::int32_t tensor : problem_.ops[op].writes) last_op[tensor] = op;
    }
    std::multimap<std::int32_t, std::int32_t> dying;  // op, tensor
    for (std::int32_t id = 0; id < std::ssize(problem_.tensors); ++id) {
      const Tensor& tensor = problem_.tensors[id];
      if (tensor.persistent || tensor.output || frees_itself(problem_.ops[last_op[id]], id)) continue;
      dying.emplace(last_op[id], id);
    }
    std::int64_t live_bytes = persistent_bytes();
    std::int64_t peak_bytes = live_bytes;
    for (std::int32_t op = 0; op < std::ssize(problem_.ops); ++op) {
      for (const Event& event : problem_.ops[op].events) {
        const std::int64_t size_bytes = problem_.tensors[event.tensor].size_bytes;
        live_bytes += event.kind == Event::Kind::kAllocate ? size_bytes : -size_bytes;
        peak_bytes = std::max(peak_bytes, live_bytes);
      }
      const auto [first, end] = dying.equal_range(op);
      for (auto entry = first; entry != end; ++entry) live_bytes -= problem_.tensors[entry->second].size_bytes;
    }
    return peak_bytes;
  }

  const Problem& problem_;
  const Plan& plan_;
  std::vector<std::int32_t> position_;  ///< by op
  std::int64_t peak_bytes_ = 0;
  std::int64_t arena_bound_bytes_ = 0;
};

}  // namespace

std::optional<std::string> validate(const Problem& problem, const Plan& plan) {
  if (auto fault = find_fault(problem)) return "problem: " + *fault;
  return Replay(problem, plan).run();
}

}  // namespace stowage::solver
