#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "perf/cluster/table.hpp"

namespace chorus::perf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Row row_of(int cluster, const char* library, double p50_us, double faster_us) {
  Row row;
  row.collective = "all_reduce";
  row.transport = fmt::format("random:{}", cluster);
  row.library = library;
  row.bytes = cluster == 2 ? 16'777'200 : 16 << 20;  // cut into whole blocks
  row.p50_us = p50_us;
  row.p50_us_by_round = {p50_us, 1.1 * p50_us};
  row.bound_us = 900;
  row.faster_us = faster_us;
  return row;
}

Report sample() {
  Report report;
  report.rounds = 2;
  const double times[] = {1000, 900, 1800};
  for (int i = 0; i < 3; ++i) {
    report.rows.push_back(row_of(i + 1, "chorus", times[i], i == 2 ? 1000 : 300));
    report.rows.push_back(row_of(i + 1, "gloo", 1500, 0));
  }
  return report;
}

/// The cells of a table without what aligns them.
std::string squeezed(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
  }
  return out;
}

TEST(ShareTable, HasQuantilesOfAllAndOfThoseThatCablesLimit) {
  const std::string text = squeezed(share_table(sample(), Style::markdown));
  EXPECT_THAT(text, HasSubstr("3 clusters"));
  // Chorus, Gloo, Chorus over Gloo, spread of two rounds.
  EXPECT_THAT(text, HasSubstr("| all_reduce | 16 MiB | any | 3 | 90.0 50.0 50.0 | 60.0 60.0 60.0 "
                              "| 66.7 120.0 120.0 | 10.0 10.0 10.0 |"));
  EXPECT_THAT(text, HasSubstr("| all_reduce | 16 MiB | cables | 2 | 95.0 90.0 90.0 |"));
  EXPECT_THAT(text, HasSubstr("| all | | any | 3 |"));
}

TEST(ShareTable, RowsThatFailedOrAreWrongCountForNothing) {
  Report report = sample();
  report.rows[0].wrong = 3;
  report.rows[4].p50_us.reset();
  EXPECT_THAT(squeezed(share_table(report, Style::markdown)),
              HasSubstr("| any | 3 | 100.0 100.0 100.0 | 60.0 60.0 60.0 | 60.0 60.0 60.0 |"));
}

TEST(ShareTable, NeedsThreeClustersAndTellsCoresApartWhereMeasured) {
  Report report = sample();
  for (Row& row : report.rows) row.faster_us = 0;
  EXPECT_THAT(share_table(report, Style::markdown), Not(HasSubstr("cables")));
  report.rows.resize(4);
  EXPECT_EQ(share_table(report, Style::markdown), "");
}

TEST(CoresLimit, IsWhereFasterCablesTakeMoreThanHalfOfTheTime) {
  EXPECT_FALSE(cores_limit(row_of(1, "chorus", 1000, 0)));
  EXPECT_FALSE(cores_limit(row_of(1, "chorus", 1000, 500)));
  EXPECT_TRUE(cores_limit(row_of(1, "chorus", 1000, 501)));
  const std::string text = bound_table(sample(), Style::text);
  EXPECT_THAT(text, AllOf(HasSubstr("4 times as fast ms"), HasSubstr("1!"), HasSubstr("0.3  ")));
}

}  // namespace
}  // namespace chorus::perf
