// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace stowage::solver {

/// A text from a user's file as messages show it: in single quotes, cut after 60 bytes, what is no printable ASCII as
/// '?'.
std::string quote(std::string_view text);

}  // namespace stowage::solver
