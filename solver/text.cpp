// SPDX-License-Identifier: Apache-2.0
#include "solver/text.h"

namespace stowage::solver {

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string quoted = "'";
  for (const char letter : text.substr(0, kLongest)) quoted += letter >= ' ' && letter <= '~' ? letter : '?';
  quoted += text.size() > kLongest ? "...'" : "'";
  return quoted;
}

}  // namespace stowage::solver
