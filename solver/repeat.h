// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "solver/copies.h"
#include "solver/problem.h"

namespace stowage::solver {

/// In place of the op of an execution: a point of a copy.
inline constexpr std::int32_t kCopyPoint = -1;

/// A step some of whose ops run more than once, as a problem of its own: each execution is an op, each allocation that
/// one makes a tensor.
struct Repeated {
  Problem problem;
  std::vector<std::int32_t> op_of;      ///< by op of `problem`: which op of the step it is an execution of
  std::vector<std::int32_t> tensor_of;  ///< by tensor of `problem`: which tensor of the step it holds the bytes of
  std::vector<Copy> copies;             ///< those that were asked for, counting all executions, those of views too
};

/// `executions` are op ids in the order in which they run; each op of the step is there, and those that run again are
/// there again. An execution takes of each tensor and view what the latest before it made. Views are made again by
/// themselves where what they are of was. Persistent tensors that a repeat would write are left out of it.
/// Throws `std::invalid_argument` where that is another computation than the step's: an op that is not repeatable runs
/// again, or what it takes was written in between, or a tensor is made again without all its writers.
Repeated repeat(const Problem& problem, const std::vector<std::int32_t>& executions);

/// The same with copies, each of which is four ops that take no time: stowage::offload and stowage::offloaded read the
/// tensor, stowage::fetch allocates another with its bytes, stowage::arrive reads and writes that one, which later
/// executions then take. All ops stay in this order, each after the one before. Also throws where a tensor is written
/// while it is copied out.
Repeated repeat(const Problem& problem, const std::vector<std::int32_t>& executions, const std::vector<Copy>& copies);

}  // namespace stowage::solver
