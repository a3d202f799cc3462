// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stowage::solver {

/// A storage the step needs. Its id is its index in `Problem::tensors`.
struct Tensor {
  std::string name;
  std::int64_t size_bytes = 0;
  /// Power of two. The slot's offset is a multiple of it; the size is rounded up to it in a layout.
  std::int64_t alignment_bytes = 64;
  /// Lives before the first op and after the last: counts in every peak, gets no slot.
  bool persistent = false;
  /// Lives from its allocation to the end of the step.
  bool output = false;
  /// Allocated by the step, but outside the arena: counts in the peak, gets no slot.
  bool external = false;

  bool operator==(const Tensor&) const = default;
};

/// An allocation, or a free, that happens while an op runs.
struct Event {
  enum class Kind : std::uint8_t { kAllocate, kFree };
  Kind kind = Kind::kAllocate;
  std::int32_t tensor = 0;

  bool operator==(const Event&) const = default;
};

/// An output that may take the memory of an input, if this op is the input's last use: the op writes each element of
/// the output after it has read that of the input, and no other.
struct Reuse {
  std::int32_t output = 0;
  std::int32_t input = 0;

  bool operator==(const Reuse&) const = default;
};

/// A node of the graph. Its id is its index in `Problem::ops`, which is the program order.
struct Op {
  std::string name;
  std::string kind;
  std::int64_t duration_ns = 0;
  /// Tensors whose bytes the op reads / may write. Read after write, write after read and write after write keep
  /// program order. A read counts for a tensor's lifetime even where only its shape is needed.
  std::vector<std::int32_t> reads;
  std::vector<std::int32_t> writes;
  /// What the op allocates, in order, and the frees of its own workspace (tensors allocated and
  /// freed within the op). A tensor that outlives its op is freed after its last reader or writer.
  std::vector<Event> events;
  /// Earlier ops that must run before, for a reason that reads and writes do not show: a value that is no storage
  /// (a view, a size), the order of random draws, side effects.
  std::vector<std::int32_t> after;
  /// Candidates for reuse, best first. They all name one output.
  std::vector<Reuse> reuses;
  /// Of `after`, the ops that make the views through which this one takes tensors it reads.
  std::vector<std::int32_t> views = {};
  /// On the same inputs it makes the same bits again, and nothing else happens: it may run more than once. What it
  /// writes of persistent tensors (a batch norm's running statistics), a repeat leaves alone.
  bool repeatable = false;

  bool operator==(const Op&) const = default;
};

/// One training step to plan.
struct Problem {
  std::string name;
  std::vector<Op> ops;
  std::vector<Tensor> tensors;

  bool operator==(const Problem&) const = default;
};

/// What keeps the problem from being well formed, in one line that names the op or tensor; nothing if it is: ids in
/// range, `after` earlier than its op, each tensor that is not persistent allocated exactly once and before its uses in
/// program order, frees only of the op's own live workspace that no other op uses, reuses only of what the op only
/// reads by what it allocates and does not free, of equal size and alignment, neither of them persistent or external,
/// the input no output of the step, sizes not negative and with a sum below 2^62, alignments powers of two.
std::optional<std::string> find_fault(const Problem& problem);

/// Throws `std::invalid_argument` with the fault, if there is one.
void check(const Problem& problem);

/// By op: makes views for others, and does nothing else: it may run whenever one of them needs it.
std::vector<char> find_views(const Problem& problem);

/// Takes the reuse candidates out of a problem.
void forbid_reuse(Problem& problem);

}  // namespace stowage::solver
