// SPDX-License-Identifier: Apache-2.0
#include "plugin/note.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

namespace stowage {
namespace {

std::mutex g_mutex;

std::vector<std::string>& lines() {
  static auto* told = new std::vector<std::string>();
  return *told;
}

}  // namespace

void note(const std::string& line) {
  std::lock_guard lock(g_mutex);
  if (std::find(lines().begin(), lines().end(), line) != lines().end()) return;
  lines().push_back(line);
  std::fprintf(stderr, "stowage: %s\n", line.c_str());
}

std::vector<std::string> notes() {
  std::lock_guard lock(g_mutex);
  return lines();
}

std::string first_line(const std::string& text) {
  const std::size_t begin = text.find_first_not_of('\n');
  return begin == std::string::npos ? text : text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace stowage
