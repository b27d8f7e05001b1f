#include "perf/plot.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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
  EXPECT_THAT(script, HasSubstr("title 'chorus'"));
  EXPECT_THAT(script, HasSubstr("title 'openmpi'"));
}

TEST(Plot, LeavesOutWrongResults) {
  Report report = curves();
  for (Row& row : report.rows) {
    if (row.library == "openmpi") row.wrong = 1;
  }
  EXPECT_THAT(gnuplot_script(report, "x.svg"), Not(HasSubstr("title 'openmpi'")));
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
