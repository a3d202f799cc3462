// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugin/dependencies.h"

namespace stowage {

/// An input of a graph whose bytes nothing reads any more.
struct Ending {
  std::int64_t input = 0;
  std::int64_t last_step = 0;  ///< of the planned order, where it is used last: for its shape or type, if that is later

  bool operator==(const Ending&) const = default;
};

/// What ends in a planned order, by step.
struct Endings {
  std::vector<std::vector<Ending>> inputs;
  std::vector<bool> aliases;  ///< whether a value is used last that an `if` or a loop may have made of such an input
};

/// The inputs whose bytes, also through views, the step is the last to read. Of those that `may_end`, by input; if that
/// is empty, none.
Endings find_endings(const GraphFacts& facts, const std::vector<std::int32_t>& order, const std::vector<bool>& may_end);

}  // namespace stowage
