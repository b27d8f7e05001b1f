// Every library found on this machine, every benchmark, over every transport it has.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "perf/report/campaign.hpp"

namespace chorus::perf {
namespace {

/// MPI libraries and sanitizers do not get along; the product is measured without them.
constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

class Smoke : public ::testing::TestWithParam<std::string> {};

TEST_P(Smoke, EveryBenchmarkIsRightAndHasATime) {
  if (kSanitized) GTEST_SKIP() << "peers are not measured in a sanitized build";
  Settings settings;
  for (const Library& library : find_libraries(BIN_DIR)) {
    if (library.name == GetParam()) settings.libraries = {library};
  }
  const bool is_nccl = GetParam() == "nccl";  // Chorus's own: host memory is not for NVIDIA's
  if (is_nccl && ::access("/dev/nvidiactl", F_OK) == 0) {
    GTEST_SKIP() << "where there are GPUs, NCCL is measured on their memory";
  }
  if (settings.libraries.empty()) GTEST_SKIP() << GetParam() << " was not found when building";
  if (is_nccl) settings.libraries[0].settings = {"--nccl", NCCL_LIBRARY};
  settings.kinds.clear();
  for (const Benchmark& entry : benchmarks()) {
    if (!is_nccl || entry.kind != Kind::barrier) settings.kinds.push_back(entry.kind);
  }
  settings.transports = {"shm", "tcp"};
  settings.sizes = {4, 4096, 128 << 10};
  settings.rounds = 1;
  settings.budget_ms = 5;
  settings.timeout_s = 60;
  const Report report = measure_all(settings, [](const Step&) {});
  for (const Row& row : report.rows) {
    const std::string where = fmt::format("{} over {}, {} bytes: {}", row.collective, row.transport,
                                          row.bytes, row.reason);
    EXPECT_EQ(row.wrong, 0U) << where << row.first_wrong;
    if (!why_not(settings.libraries[0], row.transport).empty()) continue;
    EXPECT_TRUE(row.p50_us.has_value()) << where;
  }
}

TEST(Explain, PrintsEveryScheduleWithItsPredictedAndMeasuredTime) {
  const std::string command =
      BIN_DIR "/chorus-perf all_reduce -n 2 -t tcp --sizes 64,4K --budget-ms 1 --explain 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) text += line;
  EXPECT_EQ(::pclose(pipe), 0) << text;
  for (const char* part :
       {"2 ranks over tcp", "4096", "predicted", "ring", "one_shot", "2 points"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  }
}

TEST(Output, ThatIsLostIsNoSuccess) {
  const std::string command =
      BIN_DIR "/chorus-perf -l chorus --sizes 4K --rounds 1 --budget-ms 1 2>/dev/null >/dev/full";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

INSTANTIATE_TEST_SUITE_P(Libraries, Smoke,
                         ::testing::Values("chorus", "openmpi", "mpich", "gloo", "nccl"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace chorus::perf
