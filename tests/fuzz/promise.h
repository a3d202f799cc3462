// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

/// What a fuzzer calls: it returns 0, or ends the process where a promise is broken. Defined by each fuzzer.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

inline void promise(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

inline void promise_one_line(const std::invalid_argument& error) {
  const std::string_view text = error.what();
  promise(text.starts_with("cannot "), "a message says what cannot be done");
  promise(text.size() < 400, "a message is short");
  for (const char letter : text) promise(static_cast<unsigned char>(letter) >= ' ', "a message is one line of text");
}
