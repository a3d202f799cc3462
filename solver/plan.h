// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace stowage::solver {

enum class Status : std::uint8_t {
  kOptimal,     ///< value equals its proven lower bound
  kFeasible,    ///< valid; the bound is lower
  kInfeasible,  ///< proven: no answer within the capacity
  kTimedOut,    ///< no answer before the limit
};

/// "optimal", "feasible", "infeasible" or "timed_out".
std::string_view to_string(Status status);

/// How the lower bound of all orders is known.
enum class Proof : std::uint8_t {
  kMustLive,       ///< what must live while one op runs
  kContradiction,  ///< the same, of what any order below the planned peak would have to be like
  kSearch,         ///< every better order has been ruled out
};

/// "must_live", "contradiction" or "search".
std::string_view to_string(Proof proof);

/// Offset of a tensor that has no slot.
inline constexpr std::int64_t kNoSlot = -1;

/// Of a tensor that takes no other's memory.
inline constexpr std::int32_t kNoReuse = -1;

/// What the solver decides: in which order the ops run, where each tensor goes, when each is freed.
///
/// The clock counts events: the ops' inner allocations and frees in plan order, then, after each op, the frees of
/// the tensors it used last. A slot is occupied in [allocation, free). An allocation that reuses an input's memory is
/// the end of that input: one event, after which the output has its place.
struct Plan {
  /// Op ids in execution order: a permutation of the problem's ops.
  std::vector<std::int32_t> order;
  /// By tensor: byte offset in the arena, or `kNoSlot` for a persistent, external or empty one.
  std::vector<std::int64_t> offset_bytes;
  /// By tensor: the dying input of its op whose memory it takes, or `kNoReuse`.
  std::vector<std::int32_t> reuse_of;
  /// By op: tensors freed right after it, in tensor order (free points; neither workspace nor what is reused).
  std::vector<std::vector<std::int32_t>> frees_after;

  /// Largest live sum over the planned step, persistent and external tensors included; exact sizes.
  std::int64_t peak_bytes = 0;
  /// The same for the program order.
  std::int64_t program_peak_bytes = 0;
  /// No order has a lower peak.
  std::int64_t bound_bytes = 0;
  /// The op at which that bound is met; -1 if the persistent tensors alone make it, or a search found it.
  std::int32_t bound_op = -1;
  Proof bound_proof = Proof::kMustLive;
  /// Whether the order is proven best.
  Status order_status = Status::kFeasible;

  /// Height of the layout.
  std::int64_t arena_bytes = 0;
  /// No slot lies across this offset, so that the arena may be two blocks of memory; 0: it must be one.
  std::int64_t cut_bytes = 0;
  /// No layout of this order is lower: the largest sum of aligned sizes of slots live at once, or more if an exhaustive
  /// search has proven that nothing fits in that.
  std::int64_t arena_bound_bytes = 0;
  Status layout_status = Status::kFeasible;

  bool operator==(const Plan&) const = default;
};

}  // namespace stowage::solver
