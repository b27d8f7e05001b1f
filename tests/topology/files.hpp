// Test data: where it lies, and texts that are expected.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace chorus::test {

/// A file of tests/data.
inline std::filesystem::path data(const std::string& name) {
  return std::filesystem::path(CHORUS_TEST_SOURCE_DIR) / "tests/data" / name;
}

/// Recordings of real machines that are no part of the project: $CHORUS_TEST_DATA, or beside the
/// project. Tests that want them skip where they are absent.
inline std::filesystem::path recordings() {
  const char* set = std::getenv("CHORUS_TEST_DATA");
  if (set != nullptr) return set;
  return std::filesystem::path(CHORUS_TEST_SOURCE_DIR) / "../shared/data";
}

inline std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Compares with the text on file; CHORUS_TEST_UPDATE=1 in the environment rewrites the file.
inline void expect_text(const std::string& actual, const std::filesystem::path& path) {
  if (std::getenv("CHORUS_TEST_UPDATE") != nullptr) {
    std::ofstream(path, std::ios::binary) << actual;
    return;
  }
  EXPECT_EQ(actual, read(path)) << path << ": CHORUS_TEST_UPDATE=1 rewrites it";
}

}  // namespace chorus::test
