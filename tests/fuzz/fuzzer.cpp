// The door to libFuzzer: one program for all readers, told by --reader=NAME which one to run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/mutate.hpp"
#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/samples.hpp"

namespace chorus::fuzz {
namespace {

const Reader* chosen = nullptr;

/// Makes the corpus to begin with: FOLDER/READER/N for all readers.
void write_samples(const std::filesystem::path& folder) {
  for (const Reader& reader : readers()) {
    const std::filesystem::path own = folder / reader.name;
    std::filesystem::create_directories(own);
    int number = 0;
    std::vector<std::string> all = reader.samples();
    const std::vector<std::string> more = regressions(reader.name);
    all.insert(all.end(), more.begin(), more.end());
    for (const std::string& sample : all) {
      std::ofstream(own / std::to_string(number++), std::ios::binary) << sample;
    }
    std::printf("%s\n", std::string(reader.name).c_str());
  }
}

void choose(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--samples=")) {
      write_samples(argument.substr(argument.find('=') + 1));
      std::exit(0);
    }
    if (!argument.starts_with("--reader=")) continue;
    for (const Reader& reader : readers()) {
      if (argument.substr(argument.find('=') + 1) == reader.name) chosen = &reader;
    }
  }
  if (chosen != nullptr) return;
  std::fprintf(stderr, "say --reader=NAME, or --samples=FOLDER, which prints the names\n");
  std::exit(2);
}

}  // namespace
}  // namespace chorus::fuzz

extern "C" {

// Declared by libFuzzer, which has no header.
int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                    unsigned seed);

int LLVMFuzzerInitialize(int* argc, char*** argv) {
  chorus::fuzz::choose(*argc, *argv);
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string finding = chorus::fuzz::finding(*chorus::fuzz::chosen, input);
  if (finding.empty()) return 0;
  std::fprintf(stderr, "FINDING: %s\n", finding.c_str());
  std::abort();
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                    unsigned seed) {
  using chorus::fuzz::chosen;
  chorus::fuzz::Random random(seed);
  // Every fourth time the fuzzer's own way, which knows what the code compares with.
  if (random() % 4 == 0) {
    size = LLVMFuzzerMutate(data, size, most);
    if (chosen->repair == nullptr) return size;
  }
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string result = chorus::fuzz::mutated(*chosen, input, random);
  if (result.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, result.data(), result.size());
  return result.size();
}

}  // extern "C"
