// What the pages show, for tests that hold them to it.
#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace chorus::test {

/// The blocks of docs/formats.md that are in ```json, in order.
inline std::vector<std::string> documented_examples(const std::string& source_dir) {
  std::ifstream file(source_dir + "/docs/formats.md");
  std::vector<std::string> blocks;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "```json") {
      blocks.emplace_back();
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

}  // namespace chorus::test
