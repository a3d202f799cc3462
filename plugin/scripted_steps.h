// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace stowage {

/// While on, steps of a loop that trains scripted modules begin by themselves: when a thread enters TorchScript from
/// outside in grad mode, and a backward has run since its last step began. So a step goes from one forward to the next,
/// with the backward, the optimizer's step and whatever else the loop does. TorchScript under `no_grad` ends it. A
/// thread that opens a step of its own is left to itself from then on.
void watch_scripted_steps(bool on);

}  // namespace stowage
