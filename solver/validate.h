// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage::solver {

/// Replays a plan event by event: slow, obvious, and sharing no code with the search. Returns nothing if the plan
/// keeps every rule, else one line that names the broken rule, the op and the tensors. The rules: the order is a
/// permutation and keeps every read/write dependency; every tensor is freed after its last use, exactly once, and no
/// output or persistent tensor ever; every tensor that is not persistent, external or empty has a slot, aligned, inside
/// the arena; no two live slots overlap; memory is reused only by a candidate, at the same offset, of an input that is
/// used no more; the stated peaks and arena size are what the replay finds.
std::optional<std::string> validate(const Problem& problem, const Plan& plan);

}  // namespace stowage::solver
