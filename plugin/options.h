// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace stowage {

/// Everything a user can set, by `set_option(name, value)` or by the variable STOWAGE_NAME. `options.cpp` has the
/// table of names and meanings.
struct Options {
  std::string store;
  bool plan = true;
  bool reuse = true;
  std::string reuse_ops;
  bool poison = false;
  bool meter = false;
  bool verify = false;
  std::int64_t min_ops = 4;
  std::int64_t max_profile_runs = 8;
  std::int64_t max_plans = 8;
  std::int64_t max_step_plans = 64;
  bool scripted_steps = true;
  bool share_plans = false;
  std::int64_t deadline_ms = 10'000;
  std::string budget;
  std::string slowdown;
  std::string over_budget = "continue";
  bool offload = true;
  std::string offload_bandwidth;
};

/// The options in force: defaults, then STOWAGE_* variables as they were when the plugin was loaded, then what was
/// set since. Read and set them under Python's interpreter lock, or before training threads start.
const Options& options();

/// Throws `std::invalid_argument`, naming the option and what it takes.
void set_option(const std::string& name, const std::string& value);

/// Every option by name, as text.
std::map<std::string, std::string> option_values();

}  // namespace stowage
