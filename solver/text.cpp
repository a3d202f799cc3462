// SPDX-License-Identifier: Apache-2.0
#include "solver/text.h"

#include <array>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace stowage::solver {

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string quoted = "'";
  for (const char letter : text.substr(0, kLongest)) quoted += letter >= ' ' && letter <= '~' ? letter : '?';
  quoted += text.size() > kLongest ? "...'" : "'";
  return quoted;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr double kKib = 1024.0;
  const auto count = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (count < kKib * kKib) return fmt::format("{} B ({:.2f} KiB)", bytes, count / kKib);
  return fmt::format("{} B ({:.2f} MiB)", bytes, count / (kKib * kKib));
}

namespace {

/// The bytes meant by a text; nothing where it means none.
std::optional<std::int64_t> parse_bytes(std::string_view text, std::int64_t whole_bytes) {
  constexpr std::array<std::pair<std::string_view, double>, 9> kUnits = {{{"B", 1.0},
                                                                          {"KiB", 1024.0},
                                                                          {"MiB", 1048576.0},
                                                                          {"GiB", 1073741824.0},
                                                                          {"TiB", 1099511627776.0},
                                                                          {"KB", 1e3},
                                                                          {"MB", 1e6},
                                                                          {"GB", 1e9},
                                                                          {"TB", 1e12}}};
  constexpr double kMost = 4e18;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double factor = unit.empty() ? 1.0 : 0.0;
  if (unit.empty() && number <= 1) factor = static_cast<double>(whole_bytes);
  for (const auto& [name, size] : kUnits) {
    if (unit == name) factor = size;
  }
  if (error != std::errc() || !(number > 0) || factor == 0 || !(number * factor < kMost)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(number * factor);
}

}  // namespace

std::int64_t parse_budget(std::string_view text, std::int64_t whole_bytes) {
  if (const auto bytes = parse_bytes(text, whole_bytes)) return *bytes;
  throw std::invalid_argument(fmt::format(
      "cannot read budget {}: it takes bytes, such as '6GiB', or a share of the unplanned peak, such as '0.5'",
      quote(text)));
}

std::int64_t parse_bandwidth(std::string_view text) {
  const auto bytes_per_s = parse_bytes(text, 0);
  if (bytes_per_s && *bytes_per_s > 0) return *bytes_per_s;
  throw std::invalid_argument(
      fmt::format("cannot read bandwidth {}: it takes the bytes in a second, such as '25GB'", quote(text)));
}

}  // namespace stowage::solver
