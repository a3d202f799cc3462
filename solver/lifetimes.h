// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/layout.h"
#include "solver/problem.h"

namespace stowage::solver {

/// Steps of the plan's clock during which a tensor lives: `[first_step, end_step)`. Empty for persistent tensors.
struct Lifetime {
  std::int32_t first_step = 0;
  std::int32_t end_step = 0;

  bool operator==(const Lifetime&) const = default;
};

/// What follows from an order: the clock of `Plan`, played once.
struct Timeline {
  std::vector<Lifetime> lifetimes;                     ///< by tensor
  std::vector<std::int32_t> reuse_of;                  ///< by tensor: as in `Plan`
  std::vector<std::int32_t> first_holder;              ///< by tensor: who had its memory first; itself if no other
  std::vector<std::vector<std::int32_t>> frees_after;  ///< by op: as in `Plan`
  std::int64_t peak_bytes = 0;                         ///< largest live sum, as in `Plan`
  std::int32_t peak_op = -1;                           ///< the first op that reaches it; -1 before any op
  std::int32_t step_count = 0;
};

/// Whether outputs take the memory of dying inputs, where they are candidates: all that can, since that never makes a
/// sum larger, or none.
enum class Reusing : std::uint8_t { kAll, kNone };

/// `problem` must be well formed, `order` a permutation of its ops that keeps the dependencies.
Timeline play(const Problem& problem, const std::vector<std::int32_t>& order, Reusing reusing = Reusing::kAll);

/// The largest sum that an op's own events reach.
struct InnerPeak {
  std::int64_t bytes = 0;
  std::vector<std::int32_t> tensors;  ///< which make it
};

/// With `reuses`, the output of the op's reuse candidates takes no room of its own.
InnerPeak find_inner_peak(const Problem& problem, const Op& op, bool reuses);

/// What an op's own events add to the live sum, in bytes.
struct InnerSums {
  std::int64_t peak_bytes = 0;          ///< the largest sum they reach
  std::int64_t reusing_peak_bytes = 0;  ///< the same when the output of its reuse candidates takes no room of its own
  std::int64_t growth_bytes = 0;        ///< what is left of them behind the op
};

/// By op.
std::vector<InnerSums> find_inner_sums(const Problem& problem);

/// Tensors that need a slot: neither persistent nor external nor empty.
std::vector<std::int32_t> find_slotted(const Problem& problem);

/// What a layout has to place, one buffer for each of `find_slotted` that reuses no other, in that order: id is the
/// tensor's, size rounded up to alignment, until the end of the last tensor that takes its memory.
std::vector<Buffer> find_buffers(const Problem& problem, const Timeline& timeline);

/// By op: the tensors whose last use it can be, each once: what it reads, writes or allocates, but neither persistent
/// ones and outputs, which are never freed, nor workspace, which the op frees itself.
std::vector<std::vector<std::int32_t>> find_uses(const Problem& problem);

}  // namespace stowage::solver
