#include "chorus/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "runtime/options/variables.hpp"

namespace chorus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// No variable that Chorus reads is set while a test runs, but those the test sets.
class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (text.starts_with("CHORUS_")) names.push_back(text.substr(0, text.find('=')));
    }
    for (const std::string& name : names) ::unsetenv(name.c_str());
  }
  void TearDown() override { SetUp(); }

  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

  static std::string complaint() {
    try {
      (void)Options::from_env();
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  }
};

TEST_F(OptionsTest, AnEmptyEnvironmentGivesTheDefaults) {
  const Options options = Options::from_env();
  EXPECT_EQ(options.join_timeout_ms, 60'000);
  EXPECT_EQ(options.transports, "shm,rdma,tcp");
  EXPECT_EQ(options.slot_bytes, 128u * 1024);
  EXPECT_FALSE(options.deterministic);
  EXPECT_EQ(options.flight_dir, "auto");
  EXPECT_EQ(options.warn_after_ms, 30'000);
}

TEST_F(OptionsTest, EveryVariableReachesItsField) {
  set("CHORUS_JOIN_TIMEOUT_MS", "1234");
  set("CHORUS_TIMEOUT_MS", "2345");
  set("CHORUS_WARN_AFTER_MS", "0");
  set("CHORUS_AWAIT_PLAN", "1");
  set("CHORUS_TRANSPORTS", "tcp");
  set("CHORUS_SOCKET_IFNAME", "eth7");
  set("CHORUS_TCP_SOCKETS", "16");
  set("CHORUS_RDMA_HCA", "^mlx5_2");
  set("CHORUS_RDMA_GID_INDEX", "3");
  set("CHORUS_RDMA_TC", "106");
  set("CHORUS_RDMA_SL", "5");
  set("CHORUS_RDMA_TIMEOUT", "14");
  set("CHORUS_RDMA_RETRY", "3");
  set("CHORUS_RDMA_QPS", "2");
  set("CHORUS_RDMA_RAILS", "8");
  set("CHORUS_RDMA_GPU", "1");
  set("CHORUS_SLOT_BYTES", "65536");
  set("CHORUS_SLOTS", "2");
  set("CHORUS_DETERMINISTIC", "1");
  set("CHORUS_ALGORITHM", "ring");
  set("CHORUS_TOPOLOGY", "t.json");
  set("CHORUS_PLAN", "p.json");
  set("CHORUS_FLIGHT_DIR", "");
  set("CHORUS_SPIN_US", "0");
  set("CHORUS_SLICE_US", "400");
  set("CHORUS_POLL_US", "2000");
  set("CHORUS_LOG", "debug");
  const Options options = Options::from_env();
  EXPECT_EQ(options.join_timeout_ms, 1234);
  EXPECT_EQ(options.timeout_ms, 2345);
  EXPECT_EQ(options.warn_after_ms, 0);
  EXPECT_EQ(options.transports, "tcp");
  EXPECT_EQ(options.interface_name, "eth7");
  EXPECT_EQ(options.tcp_sockets, 16);
  EXPECT_EQ(options.rdma_hca, "^mlx5_2");
  EXPECT_EQ(options.rdma_gid_index, 3);
  EXPECT_EQ(options.rdma_traffic_class, 106);
  EXPECT_EQ(options.rdma_service_level, 5);
  EXPECT_EQ(options.rdma_timeout, 14);
  EXPECT_EQ(options.rdma_retry, 3);
  EXPECT_EQ(options.rdma_queue_pairs, 2);
  EXPECT_EQ(options.rdma_rails, 8);
  EXPECT_EQ(options.rdma_gpu, 1);
  EXPECT_EQ(options.slot_bytes, 65536u);
  EXPECT_EQ(options.slots, 2);
  EXPECT_TRUE(options.deterministic);
  EXPECT_TRUE(options.await_plan);
  EXPECT_EQ(options.algorithm, "ring");
  EXPECT_EQ(options.topology_file, "t.json");
  EXPECT_EQ(options.plan_file, "p.json");
  EXPECT_EQ(options.flight_dir, "");
  EXPECT_EQ(options.spin_us, 0);
  EXPECT_EQ(options.slice_us, 400);
  EXPECT_EQ(options.poll_us, 2000);
  EXPECT_EQ(options.log_level, "debug");
}

TEST_F(OptionsTest, AMalformedValueIsNamedWithItsVariableAndRange) {
  const std::pair<const char*, const char*> bad[] = {
      {"CHORUS_TCP_SOCKETS", "17"},    {"CHORUS_TCP_SOCKETS", "two"},
      {"CHORUS_TCP_SOCKETS", "4x"},    {"CHORUS_SLOTS", "1"},
      {"CHORUS_TIMEOUT_MS", "-5"},     {"CHORUS_JOIN_TIMEOUT_MS", "99999999999999999999"},
      {"CHORUS_DETERMINISTIC", "yes"}, {"CHORUS_SLOT_BYTES", "100"},
      {"CHORUS_SPIN_US", " 5"},        {"CHORUS_RDMA_RETRY", "8"},
      {"CHORUS_POLL_US", "-1"},        {"CHORUS_SLICE_US", "100001"},
  };
  for (const auto& [name, value] : bad) {
    set(name, value);
    EXPECT_THAT(complaint(), AllOf(HasSubstr(std::string(name) + "=" + value), HasSubstr("[")));
    ::unsetenv(name);
  }
  set("CHORUS_SLOT_BYTES", "65537");
  EXPECT_THAT(complaint(), HasSubstr("CHORUS_SLOT_BYTES=65537: must be a multiple of 64"));
  ::unsetenv("CHORUS_SLOT_BYTES");
  set("CHORUS_LOG", "loud");
  EXPECT_THAT(complaint(), HasSubstr("CHORUS_LOG=loud: must be one of error"));
  ::unsetenv("CHORUS_LOG");
  set("CHORUS_TRANSPORTS", "shm,,tcp");
  EXPECT_THAT(complaint(), HasSubstr("CHORUS_TRANSPORTS=shm,,tcp"));
}

// Of the table: each number is refused just outside its range, taken at its ends, and no field is
// set by two variables.
TEST_F(OptionsTest, EveryNumberIsTakenWithinItsRangeAndRefusedBeyond) {
  std::set<std::string> names, fields;
  int numbers = 0;
  for (const Variable& variable : variables()) {
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_GT(std::string(variable.text).size(), 10U) << variable.name;
    const bool of_options = !std::holds_alternative<std::monostate>(variable.field);
    EXPECT_EQ(of_options, variable.section == Variable::Section::options) << variable.name;
    EXPECT_TRUE(!of_options || fields.insert(variable.field_name).second) << variable.name;
    const auto* const field = std::get_if<int Options::*>(&variable.field);
    if (field == nullptr) continue;
    ++numbers;
    for (const long long good : {variable.low, variable.high}) {
      set(variable.name, std::to_string(good).c_str());
      EXPECT_EQ(Options::from_env().*(*field), good) << variable.name;
    }
    for (const std::string& bad :
         {std::to_string(variable.low - 1), std::to_string(variable.high + 1), std::string("x"),
          std::to_string(variable.low) + " "}) {
      set(variable.name, bad.c_str());
      EXPECT_THAT(complaint(), HasSubstr(std::string(variable.name) + "=" + bad + ": must be"));
    }
    ::unsetenv(variable.name);
    EXPECT_EQ(default_of(variable), std::to_string(Options{}.*(*field)));
  }
  EXPECT_GT(numbers, 15);
}

TEST_F(OptionsTest, AnUnknownVariableIsReportedOnceWithTheNearestName) {
  set("CHORUS_TIMEUOT_MS", "5");
  set("CHORUS_FROBNICATION_LEVEL", "5");
  ::testing::internal::CaptureStderr();
  (void)Options::from_env();
  const std::string first = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(first, HasSubstr("CHORUS_TIMEUOT_MS: did you mean CHORUS_TIMEOUT_MS?"));
  EXPECT_THAT(first, HasSubstr("CHORUS_FROBNICATION_LEVEL: it has no effect"));
  ::testing::internal::CaptureStderr();
  (void)Options::from_env();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("CHORUS_")));
}

}  // namespace
}  // namespace chorus
