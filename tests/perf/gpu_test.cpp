// Chorus and NCCL (Chorus's own libnccl in its place) on GPU memory, one process per rank, by the
// loop that measures all libraries: over a fake driver, which ctest puts on the workers' path.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "perf/report/campaign.hpp"

namespace chorus::perf {
namespace {

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

Settings settings(const std::string& name) {
  Settings settings;
  for (Library library : find_libraries(BIN_DIR)) {
    if (library.name != name) continue;
    if (name == "nccl") library.settings = {"--nccl", NCCL_LIBRARY};
    settings.libraries = {library};
  }
  settings.kinds = {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter, Kind::all_to_all,
                    Kind::broadcast,  Kind::reduce,     Kind::gather,         Kind::scatter};
  settings.transports = {"gpu"};
  settings.sizes = {40, 24 << 10};
  settings.rounds = 1;
  settings.max_iterations = 3;
  settings.budget_ms = 5;
  settings.timeout_s = 120;
  return settings;
}

class OnGpu : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(OnGpu, EveryCollectiveIsRightAndHasATime) {
  if (kSanitized) GTEST_SKIP() << "workers are not measured in a sanitized build";
  const auto& [name, in_place] = GetParam();
  Settings wanted = settings(name);
  ASSERT_EQ(wanted.libraries.size(), 1U) << "its worker was not built";
  wanted.in_place = in_place;
  const Report report = measure_all(wanted, [](const Step&) {});
  EXPECT_EQ(report.rows.size(), 16U);
  for (const Row& row : report.rows) {
    const std::string where =
        fmt::format("{}, {} bytes: {}{}", row.collective, row.bytes, row.reason, row.first_wrong);
    EXPECT_EQ(row.wrong, 0U) << where;
    const bool refused = in_place && name == "nccl" && row.collective == "all_to_all";
    EXPECT_EQ(row.p50_us.has_value(), !refused) << where;
  }
}

INSTANTIATE_TEST_SUITE_P(Libraries, OnGpu,
                         ::testing::Combine(::testing::Values("chorus", "nccl"), ::testing::Bool()),
                         [](const auto& instance) {
                           return std::get<0>(instance.param) +
                                  (std::get<1>(instance.param) ? "_in_place" : "");
                         });

TEST(OnGpu, HostLibrariesAndMessagesAreRefusedWithTheReason) {
  if (kSanitized) GTEST_SKIP() << "workers are not measured in a sanitized build";
  for (const std::string name : {"openmpi-ring", "openmpi5", "mpich5", "impi"}) {
    EXPECT_EQ(why_not({name, "", {}, {}, "/peers/" + name}, "gpu"),
              name + " is measured on host memory only");
  }
  Settings wanted = settings("chorus");
  ASSERT_EQ(wanted.libraries.size(), 1U) << "its worker was not built";
  wanted.kinds = {Kind::latency, Kind::barrier};
  wanted.sizes = {8};
  const Report report = measure_all(wanted, [](const Step&) {});
  ASSERT_EQ(report.rows.size(), 2U);
  EXPECT_EQ(report.rows[0].reason, "messages are measured on host memory only");
  EXPECT_TRUE(report.rows[1].p50_us.has_value()) << report.rows[1].reason;
}

}  // namespace
}  // namespace chorus::perf
