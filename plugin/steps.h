// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace stowage {

/// Opens a step of the calling thread on a device: "cpu", "cuda", "cuda:1"; "" means CUDA's current device if CUDA is
/// in use, else the CPU. Does nothing while stowage is disabled. Where another thread has one open, or nothing can be
/// planned, the step runs as it is, with a note. Throws `std::invalid_argument` if the thread has one open already.
void begin_step(const std::string& device);

/// Ends it, and learns from it unless it was not `complete`: plans the phase that it was, if that has been met twice.
/// Returns the digest of the phase instead, with the option `share_plans`, for the caller to have it planned. Throws
/// `std::invalid_argument` if the thread has none open.
std::string end_step(bool complete);

/// Plans the phase now. Does nothing if it is planned, or gone.
void plan_step_now(const std::string& digest);

/// The plan of a phase as text, for another process; empty if there is none.
std::string step_plan_text(const std::string& digest);

/// Follows a plan from another process, if a phase here waits for it. Returns why not; empty if it does.
std::string adopt_step_plan(const std::string& text);

/// Of the steps that begin by themselves on the calling thread, see `scripted_steps.h`.
enum class AutomaticStep : std::uint8_t {
  kNotWanted,  ///< the thread opens steps of its own, or nothing is planned
  kNone,
  kBeforeBackward,  ///< one is open, and no backward has allocated anything in it yet
  kAfterBackward,
};
AutomaticStep automatic_step();
/// As `begin_step` and `end_step` on the default device; a step that the thread opens itself ends an automatic one.
void begin_automatic_step();
void end_automatic_step(bool complete);

/// As `stowage.status()["steps"]` shows it.
nlohmann::json steps_status();

/// Whatever steps threads have opened end when they open the next, and where they begin is open again.
void disown_steps();
/// The same, and forgets all phases.
void forget_steps();

}  // namespace stowage
