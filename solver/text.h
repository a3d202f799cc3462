// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stowage::solver {

/// A text from a user's file as messages show it: in single quotes, cut after 60 bytes, what is no printable ASCII as
/// '?'.
std::string quote(std::string_view text);

/// "4194304 B (4.00 MiB)".
std::string bytes_text(std::int64_t bytes);

/// The bytes that a user means by "6GiB", "1.5 GB" or "1048576", or by a share of `whole_bytes`, such as "0.5": a
/// number up to 1 without a unit. Throws `std::invalid_argument` for any other text, and for what is not above 0.
std::int64_t parse_budget(std::string_view text, std::int64_t whole_bytes);

/// The bytes in a second that a user means by "25GB". Throws `std::invalid_argument` for any other text.
std::int64_t parse_bandwidth(std::string_view text);

}  // namespace stowage::solver
