#include "tests/fuzz/samples.hpp"

#include <algorithm>

#include "base/files/files.hpp"
#include "tests/topology/files.hpp"

namespace chorus::fuzz {
namespace {

namespace fs = std::filesystem;

void append(std::vector<std::string>& all, const fs::path& folder, std::string_view ending) {
  std::error_code absent;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder, absent)) {
    if (entry.path().string().ends_with(ending)) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  for (const fs::path& path : paths) all.push_back(read_file(path));
}

}  // namespace

std::vector<std::string> files(std::string_view folder, std::string_view recordings,
                               std::string_view ending) {
  std::vector<std::string> all;
  append(all, test::data(std::string(folder)), ending);
  if (!recordings.empty()) append(all, test::recordings() / recordings, ending);
  return all;
}

std::vector<std::string> regressions(std::string_view reader) {
  std::vector<std::string> all;
  append(all, fs::path(CHORUS_TEST_SOURCE_DIR) / "tests/fuzz/corpus" / reader, "");
  return all;
}

}  // namespace chorus::fuzz
