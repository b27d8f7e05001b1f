// What scripts that read nccl-tests see.
#include "perf/report/nccl_tests.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace chorus::perf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Row row(const std::string& collective, std::uint64_t bytes, std::optional<double> p50) {
  Row r;
  r.collective = collective;
  r.transport = "gpu";
  r.library = "nccl";
  r.ranks = 2;
  r.bytes = bytes;
  r.count = bytes / 4;
  r.type = "float32";
  r.op = collective == "all_reduce" ? "sum" : "";
  r.p50_us = p50;
  if (p50) r.algbw = r.busbw = static_cast<double>(bytes) / (*p50 * 1e3);
  return r;
}

Report report(std::vector<Row> rows) {
  Report result;
  result.peers = {{"nccl", "gpu", "NCCL 2.28.9", "chorus-perf-worker-nccl"}};
  result.rows = std::move(rows);
  return result;
}

/// As such scripts do: lines that are no comment, cut at spaces.
std::vector<std::vector<std::string>> cells_of(const std::string& text) {
  std::vector<std::vector<std::string>> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    auto& cells = lines.emplace_back();
    for (std::string word; words >> word;) cells.push_back(word);
  }
  return lines;
}

TEST(NcclTests, HasOneLinePerSizeWithBothPlacements) {
  const std::string text =
      nccl_tests_text(report({row("all_reduce", 1024, 8.0), row("all_reduce", 1 << 20, 12345.6)}),
                      report({row("all_reduce", 1024, 4.0), row("all_reduce", 1 << 20, 123.4)}), 0);
  const auto lines = cells_of(text);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], ElementsAre("1024", "256", "float", "sum", "-1", "8.00", "0.13", "0.13",
                                    "0", "4.00", "0.26", "0.26", "0"));
  EXPECT_THAT(lines[1], ElementsAre("1048576", "262144", "float", "sum", "-1", "12346", "0.08",
                                    "0.08", "0", "123.4", "8.50", "8.50", "0"));
  EXPECT_THAT(text, HasSubstr("# Collective test starting: all_reduce_perf\n"));
  EXPECT_THAT(text, HasSubstr("# NCCL 2.28.9: chorus-perf-worker-nccl\n"));
  EXPECT_THAT(text, HasSubstr("# Out of bounds values : 0 OK\n"));
  EXPECT_THAT(text, HasSubstr("# Avg bus bandwidth    : 2.24"));
  EXPECT_THAT(text, HasSubstr("# Collective test concluded: all_reduce_perf\n"));
}

// The columns stand where nccl-tests has them: headers end where cells do.
TEST(NcclTests, ColumnsStandUnderTheirNames) {
  const std::string text = nccl_tests_text(report({row("all_reduce", 1024, 8.0)}),
                                           report({row("all_reduce", 1024, 4.0)}), 0);
  std::istringstream in(text);
  std::string names;
  std::string cells;
  for (std::string line; std::getline(in, line);) {
    if (line.find("redop") != line.npos) names = line;
    if (!line.empty() && line[0] != '#') cells = line;
  }
  ASSERT_EQ(names.size(), cells.size());
  for (std::size_t i = 0; i + 1 < names.size(); ++i) {
    const bool name_ends = names[i] != ' ' && names[i] != '#' && names[i + 1] == ' ';
    if (name_ends) {
      EXPECT_TRUE(cells[i] != ' ' && cells[i + 1] == ' ') << names << "\n" << cells;
    }
  }
}

TEST(NcclTests, NamesWhatIsWrongOrMissing) {
  Row wrong = row("all_to_all", 1024, 8.0);
  wrong.wrong = 3;
  Row refused = row("all_to_all", 1024, std::nullopt);
  refused.reason = "NCCL's all-to-all does not work in place";
  const std::string text = nccl_tests_text(report({wrong}), report({refused}), 0);
  EXPECT_THAT(cells_of(text)[0], ElementsAre("1024", "256", "float", "none", "-1", "8.00", "0.13",
                                             "0.13", "3", "N/A", "N/A", "N/A", "N/A"));
  EXPECT_THAT(text, HasSubstr("# NCCL's all-to-all does not work in place\n"));
  EXPECT_THAT(text, HasSubstr("# Out of bounds values : 3 FAILED\n"));
  EXPECT_THAT(text, HasSubstr("# Avg bus bandwidth    : 0.128\n"));
  EXPECT_THAT(text, HasSubstr("alltoall_perf"));
}

TEST(NcclTests, RootsAreGivenWhereThereAreAny) {
  const std::string text = nccl_tests_text(report({row("broadcast", 1024, 8.0)}), report({}), 1);
  EXPECT_EQ(cells_of(text)[0][4], "1");
}

TEST(NcclTests, EachLibraryAndCollectiveIsARunOfItsOwn) {
  Row other = row("all_reduce", 1024, 8.0);
  other.library = "chorus";
  const std::string text = nccl_tests_text(
      report({row("all_reduce", 1024, 8.0), other, row("all_gather", 1024, 8.0)}), report({}), 0);
  std::size_t runs = 0;
  for (std::size_t at = 0; (at = text.find("test starting", at)) != text.npos; ++at) ++runs;
  EXPECT_EQ(runs, 3U);
  EXPECT_THAT(text, HasSubstr("all_gather_perf"));
}

TEST(NcclTests, KnowsWhichTestsThereAre) {
  EXPECT_TRUE(has_nccl_tests_form(Kind::scatter));
  EXPECT_FALSE(has_nccl_tests_form(Kind::barrier));
  EXPECT_FALSE(has_nccl_tests_form(Kind::latency));
}

}  // namespace
}  // namespace chorus::perf
