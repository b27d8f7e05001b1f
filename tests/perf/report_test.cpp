#include "perf/report/report.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "perf/report/table.hpp"

namespace chorus::perf {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Row row(const std::string& library, std::uint64_t bytes, std::optional<double> p50) {
  Row r;
  r.collective = "all_reduce";
  r.transport = "shm";
  r.library = library;
  r.ranks = 2;
  r.bytes = bytes;
  r.count = bytes / 4;
  r.type = "float32";
  r.op = "sum";
  r.p50_us = p50;
  r.p99_us = p50;
  if (p50) r.algbw = r.busbw = static_cast<double>(bytes) / (*p50 * 1e3);
  return r;
}

Report sample() {
  Report report;
  report.machine = {.cpu = "A CPU \"fast\"",
                    .cpus = 2,
                    .memory = "24 GB",
                    .kernel = "6.1",
                    .system = "Debian",
                    .tcp_congestion_control = "cubic"};
  report.commit = "abc";
  report.command = "chorus-perf all";
  report.date = "2025-01-01T00:00:00Z";
  report.rounds = 3;
  report.peers = {{"chorus", "shm", "Chorus 1", "chorus run"}};
  report.rows = {row("chorus", 1024, 1.0),  row("mpi", 1024, 2.0),
                 row("gloo", 1024, 4.0),    row("chorus", 1 << 20, 50),
                 row("mpi", 1 << 20, 25.0), row("gloo", 1 << 20, std::nullopt)};
  report.rows[5].reason = "timed out after 30 s";
  report.rows[0].p50_us_by_round = {1.0, 0.9, 1.1};
  report.rows[0].bound_us = 0.5;
  report.rows[0].faster_us = 0.25;
  return report;
}

/// The cells of the line that contains `what`.
std::vector<std::string> cells_of(const std::string& table, const std::string& what) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(what) == line.npos) continue;
    std::istringstream words(line);
    std::vector<std::string> cells;
    for (std::string word; words >> word;) cells.push_back(word);
    return cells;
  }
  return {};
}

TEST(Report, SurvivesJson) {
  const Report report = sample();
  EXPECT_EQ(report_from_json(to_json(report), "r.json"), report);
}

TEST(Report, NamesTheFileAndTheCauseOfBadJson) {
  const auto message = [](const std::string& text) {
    try {
      (void)report_from_json(text, "r.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message("{"), HasSubstr("r.json"));
  EXPECT_THAT(message("[1]"), HasSubstr("not a result of chorus-perf"));
  EXPECT_THAT(message("{\"format\":\"chorus-plan\",\"version\":1}"), HasSubstr("not a result"));
  std::string later = to_json(sample());
  later.replace(later.find("\"version\": 1"), 12, "\"version\": 2");
  EXPECT_THAT(message(later), HasSubstr("version 2"));
  const std::string whole = to_json(sample());
  for (std::size_t cut = 1; cut < whole.size() - 2; cut += 37) {
    EXPECT_NE(message(whole.substr(0, cut)), "accepted");
  }
}

TEST(Report, NamesAFileThatIsNotThere) {
  EXPECT_THROW((void)load_report("/nonexistent/r.json"), InputError);
  EXPECT_THROW(write_file("/nonexistent/r.json", "x"), InputError);
}

TEST(Report, ThatHasNoEndIsRefused) { EXPECT_THROW((void)load_report("/dev/zero"), InputError); }

TEST(Report, ThatCannotBeWrittenIsToldBeforeItIsMade) {
  const std::string path = ::testing::TempDir() + fmt::format("report-{}.json", ::getpid());
  require_writable(path);
  EXPECT_FALSE(std::filesystem::exists(path)) << "what was not there stays away";
  write_file(path, "kept");
  require_writable(path);
  EXPECT_EQ(std::filesystem::file_size(path), 4U);
  std::filesystem::remove(path);
  EXPECT_THROW(require_writable("/nonexistent/r.json"), InputError);
}

TEST(Comparison, GivesRatiosToEveryPeerAndTheBestOne) {
  const std::string table = comparison_table(sample(), Style::text);
  EXPECT_EQ(cells_of(table, "1 KiB"),
            (std::vector<std::string>{"all_reduce", "shm", "1", "KiB", "1.00", "2.00", "0.50",
                                      "4.00", "0.25", "mpi", "0.50"}));
  // Gloo has no figure there, so it cannot be the best and counts in no mean.
  EXPECT_EQ(cells_of(table, "1 MiB"),
            (std::vector<std::string>{"all_reduce", "shm", "1", "MiB", "50.0", "25.0", "2.00", "—",
                                      "—", "mpi", "2.00"}));
  EXPECT_EQ(cells_of(table, "geometric mean"),
            (std::vector<std::string>{"geometric", "mean", "1.00", "0.25", "1.00"}));
}

TEST(Comparison, DoesNotCompareWrongResults) {
  Report report = sample();
  report.rows[1].wrong = 3;
  const std::vector<std::string> cells = cells_of(comparison_table(report, Style::text), "1 KiB");
  EXPECT_EQ(cells.at(9), "gloo");
  EXPECT_EQ(cells.at(5), "—");
}

TEST(Comparison, IsEmptyForOneLibrary) {
  Report report = sample();
  std::erase_if(report.rows, [](const Row& r) { return r.library != "mpi"; });
  EXPECT_EQ(comparison_table(report, Style::text), "");
}

TEST(Details, ShowADashForWhatWasNotMeasured) {
  const std::string text = detail_tables(sample(), Style::text);
  EXPECT_THAT(text, HasSubstr("# all_reduce over shm, 2 ranks"));
  const std::vector<std::string> cells = cells_of(text, "gloo     1048576");
  ASSERT_GE(cells.size(), 7U) << text;
  EXPECT_EQ(cells[5], "—");
}

TEST(Details, FlagLoadFromOthers) {
  Report report = sample();
  report.rows[0].others_share = 0.25;
  EXPECT_THAT(detail_tables(report, Style::text), HasSubstr("25%!"));
  EXPECT_THAT(remarks(report), HasSubstr("! 1 of 6 rows"));
  EXPECT_THAT(remarks(sample()), Not(HasSubstr("!")));
}

TEST(Remarks, SayWhyARowIsMissingAndWhatWasWrong) {
  Report report = sample();
  report.rows[1].wrong = 7;
  report.rows[1].first_wrong = "rank 0: element 3 is not the reduction";
  EXPECT_THAT(remarks(report), HasSubstr("gloo over shm: timed out after 30 s [all_reduce 1 MiB]"));
  EXPECT_THAT(remarks(report), HasSubstr("WRONG: mpi over shm, all_reduce 1 KiB: 7 elements"));
}

TEST(Table, AlignsTextWithDashesByWhatIsSeen) {
  const Table table{.header = {"name", "x"}, .rows = {{"a", "—"}, {"bcdef", "12"}}};
  EXPECT_EQ(render(table, Style::text), "name    x\na       —\nbcdef  12\n");
  EXPECT_EQ(render(table, Style::markdown),
            "| name  |  x |\n| ----- | -: |\n| a     |  — |\n| bcdef | 12 |\n");
}

TEST(Table, WritesSizesForPeople) {
  EXPECT_EQ(human_bytes(4), "4 B");
  EXPECT_EQ(human_bytes(65536), "64 KiB");
  EXPECT_EQ(human_bytes(3 << 19), "1.5 MiB");
  EXPECT_EQ(human_bytes(256ULL << 20), "256 MiB");
  EXPECT_EQ(microseconds(0.4321), "0.43");
  EXPECT_EQ(microseconds(12.34), "12.3");
  EXPECT_EQ(microseconds(1234.5), "1234");
  EXPECT_EQ(microseconds(std::nullopt), "—");
}

TEST(Difference, GivesTheRatioOfCommonRows) {
  const Report a = sample();
  Report b = sample();
  for (Row& r : b.rows) {
    if (r.p50_us) *r.p50_us *= 0.5;
  }
  b.rows.pop_back();
  double mean = 0;
  const std::string table = difference_table(a, b, Style::text, &mean);
  EXPECT_DOUBLE_EQ(mean, 0.5);
  EXPECT_THAT(table, HasSubstr("0.50"));
  b.rows.clear();
  EXPECT_THROW((void)difference_table(a, b, Style::text), InputError);
}

}  // namespace
}  // namespace chorus::perf
