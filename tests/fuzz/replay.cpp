// SPDX-License-Identifier: Apache-2.0
// Feeds every file of a folder to a fuzzer once: what was found before stays found.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/fuzz/promise.h"

int main(int argument_count, char** arguments) {
  if (argument_count != 2) return 2;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    std::ostringstream content;
    content << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    const std::string text = content.str();
    std::cout << entry.path().filename().string() << std::endl;  // before the call: the last line names a culprit
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    ++count;
  }
  std::cout << count << " inputs\n";
  return count > 0 ? 0 : 1;
}
