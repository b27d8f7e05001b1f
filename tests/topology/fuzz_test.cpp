// Damaged input of every format either imports as something sound or is refused as InputError.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "chorus/error.hpp"
#include "tests/topology/files.hpp"
#include "tests/topology/graph.hpp"
#include "topology/discover.hpp"
#include "topology/import.hpp"
#include "topology/sources.hpp"

namespace chorus {
namespace {

using Importer = Topology (*)(std::string_view text, std::string_view where);

double seconds_to_fuzz() {
  const char* text = std::getenv("CHORUS_TEST_FUZZ_SECONDS");
  return text == nullptr ? 2 : std::atof(text);
}

/// One to six random injuries: bytes changed, cut, repeated, swapped with pieces of elsewhere.
std::string injured(std::string text, std::mt19937_64& random) {
  auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  const std::size_t injuries = 1 + below(6);
  for (std::size_t i = 0; i < injuries && !text.empty(); ++i) {
    const std::size_t at = below(text.size());
    const std::size_t length = 1 + below(std::min<std::size_t>(40, text.size() - at));
    switch (below(7)) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), length));
        break;
      case 3:
        text.resize(at);
        break;
      case 4:
        text[at] = "0123456789-\"<>/=.:x,* \n"[below(23)];
        break;
      case 5: {
        static const char* kPieces[] = {"99999999999", "-1",         "0",   "1e999",
                                        "nan",         "0xffffffff", "\"",  "<pci>",
                                        "&lt;",        "<!-- ",      "]]>", "NV4096"};
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      }
      default: {
        const std::size_t line = text.find('\n', at);
        if (line != std::string::npos) text.insert(line, text.substr(at, line - at));
      }
    }
  }
  return text;
}

void fuzz(Importer import, const std::vector<std::string>& samples, double share) {
  set_log_level(LogLevel::error);
  std::mt19937_64 random(20240607);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_to_fuzz() * share);
  int imported = 0;
  int refused = 0;
  do {
    const std::string text = injured(samples[random() % samples.size()], random);
    try {
      const std::string fault = test::unsound(import(text, "fuzz"));
      ASSERT_EQ(fault, "") << text;
      ++imported;
    } catch (const InputError& error) {
      ASSERT_FALSE(std::string(error.what()).empty());
      ++refused;
    }
  } while (std::chrono::steady_clock::now() < end);
  ::testing::Test::RecordProperty("imported", imported);
  ::testing::Test::RecordProperty("refused", refused);
  EXPECT_GT(imported + refused, 10);
}

std::string sample(const std::string& name) { return test::read(test::data(name)); }

TEST(Fuzz, NcclXml) {
  fuzz(topology_from_text,
       {sample("topology/nccl-pairs.xml"), sample("topology/nccl-nvswitch.xml"),
        sample("topology/rccl-ring.xml"), sample("topology/nccl-partial.xml")},
       0.3);
}

TEST(Fuzz, HwlocXml) {
  fuzz(topology_from_text,
       {sample("machines/two-sockets.xml"), sample("machines/four-gpus.xml"),
        sample("machines/virtual.xml")},
       0.4);
}

TEST(Fuzz, NvidiaSmi) {
  fuzz(topology_from_nvidia_smi,
       {sample("topology/nvidia-smi-nvswitch.txt"), sample("topology/nvidia-smi-dgx1.txt")}, 0.15);
}

TEST(Fuzz, Names) {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) names.emplace_back(entry.name);
  names.emplace_back("2*dgx-h100,rails=yes,nic=50,nic-alpha=2");
  names.emplace_back("fat-tree:2x2x2,over=2,rate=10,alpha=0.5");
  fuzz([](std::string_view text, std::string_view) { return topology_from_name(text); }, names,
       0.15);
}

}  // namespace
}  // namespace chorus
