#include "perf/report/plot.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "chorus/error.hpp"
#include "perf/process.hpp"

namespace chorus::perf {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Report curves() {
  Report report;
  for (const char* library : {"chorus", "openmpi"}) {
    for (const std::uint64_t bytes : {64U, 4096U, 65536U}) {
      Row row;
      row.collective = "all_reduce";
      row.transport = "shm";
      row.library = library;
      row.bytes = bytes;
      row.p50_us = static_cast<double>(bytes) / 100;
      row.busbw = 1;
      report.rows.push_back(row);
    }
  }
  return report;
}

TEST(Plot, DrawsTimeAndBandwidthOfEveryLibrary) {
  const std::string script = gnuplot_script(curves(), "it's.svg");
  EXPECT_THAT(script, HasSubstr("'it''s.svg'"));
  EXPECT_THAT(script, HasSubstr("all_reduce over shm: median time"));
  EXPECT_THAT(script, HasSubstr("all_reduce over shm: bus bandwidth"));
  EXPECT_THAT(script, HasSubstr("'● chorus'"));
  EXPECT_THAT(script, HasSubstr("'● openmpi'"));
}

/// As many benchmarks over as many transports, four sizes each.
Report many(int benchmarks, int transports) {
  Report report;
  for (int b = 0; b < benchmarks; ++b) {
    for (int t = 0; t < transports; ++t) {
      for (const std::uint64_t bytes : {8U, 1024U, 65536U, 268435456U}) {
        Row row;
        row.collective = "benchmark" + std::to_string(b);
        row.transport = "transport" + std::to_string(t);
        row.library = "chorus";
        row.bytes = bytes;
        row.p50_us = 0.2 + static_cast<double>(bytes) / 100;
        row.busbw = 7.3;
        report.rows.push_back(row);
      }
    }
  }
  return report;
}

TEST(Plot, KeepsToAPageHoweverManyBenchmarks) {
  for (const auto& [benchmarks, transports] :
       {std::pair(1, 1), std::pair(4, 1), std::pair(11, 1), std::pair(11, 2), std::pair(8, 3)}) {
    const std::string script = gnuplot_script(many(benchmarks, transports), "x.svg");
    int width = 0, height = 0;
    ASSERT_EQ(std::sscanf(script.c_str(), "set terminal svg size %d,%d", &width, &height), 2);
    EXPECT_LE(width, 1400);
    EXPECT_LE(height, 1400);
    std::size_t plots = 0;
    for (std::size_t at = script.find("\nplot "); at != script.npos;
         at = script.find("\nplot ", at + 1)) {
      ++plots;
    }
    EXPECT_EQ(plots, static_cast<std::size_t>(2 * benchmarks * transports));
  }
  EXPECT_THROW((void)gnuplot_script(many(40, 1), "x.svg"), InputError);
}

TEST(Plot, NamesFirstAndLastTickAndKeepsTheLegendOffTheCurves) {
  const std::string script = gnuplot_script(many(11, 1), "x.svg");
  EXPECT_THAT(script, HasSubstr("set xtics ('8 B' 8"));
  EXPECT_THAT(script, HasSubstr("'256 MiB' 268435456)"));
  EXPECT_THAT(script, HasSubstr("'100 ns' 1e-1"));
  EXPECT_THAT(script, HasSubstr("'10 s' 1e7)"));
  EXPECT_THAT(script, HasSubstr("set yrange [0:8]"));
  EXPECT_THAT(script, HasSubstr("unset key"));
  EXPECT_THAT(script, Not(HasSubstr("\nset key")));
}

TEST(Plot, LeavesOutWrongResults) {
  Report report = curves();
  for (Row& row : report.rows) {
    if (row.library == "openmpi") row.wrong = 1;
  }
  EXPECT_THAT(gnuplot_script(report, "x.svg"), Not(HasSubstr("'● openmpi'")));
}

TEST(Plot, RefusesToDrawNothing) {
  Report report = curves();
  report.rows.resize(1);
  EXPECT_THROW((void)gnuplot_script(report, "x.svg"), InputError);
}

TEST(Plot, MakesAnSvgFile) {
  if (std::system("command -v gnuplot >/dev/null") != 0) GTEST_SKIP() << "gnuplot is not installed";
  const Scratch scratch;
  const std::string path = scratch.path() + "/plot.svg";
  draw_svg(curves(), path);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("<svg"));
  EXPECT_THAT(text.str(), HasSubstr("</svg>"));
}

TEST(Plot, SaysThatGnuplotIsMissing) {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nonexistent", 1);
  try {
    draw_svg(curves(), "/tmp/never.svg");
    ADD_FAILURE() << "drew without gnuplot";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("install gnuplot"));
  }
  ::setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace chorus::perf
