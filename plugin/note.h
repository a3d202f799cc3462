// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace stowage {

/// Tells the user something in one line, on stderr and in `status()`; the same line only once. Thread safe.
void note(const std::string& line);

/// What was told so far.
std::vector<std::string> notes();

/// The first line that says something: PyTorch's messages go on for pages.
std::string first_line(const std::string& text);

}  // namespace stowage
