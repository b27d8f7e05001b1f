// Schedules that others published in MSCCL XML: each is proved, comes back from being written, and
// runs on threads with the right result.
//
// The files are no part of the project: CHORUS_TEST_MSCCL_XML names their folder.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "formats/msccl_xml.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"
#include "reference.hpp"
#include "strip.hpp"
#include "world.hpp"

namespace chorus::formats {
namespace {

std::string folder() {
  const char* set = std::getenv("CHORUS_TEST_MSCCL_XML");
  return set != nullptr ? set : CHORUS_MSCCL_XML;
}

/// The texts by file name.
std::map<std::string, std::string> files() {
  std::map<std::string, std::string> result;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(folder(), absent)) {
    if (entry.path().extension() != ".xml") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    result[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return result;
}

class MscclFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    files_ = files();
    if (files_.empty()) {
      GTEST_SKIP() << "no MSCCL XML in " << folder()
                   << ": set CHORUS_TEST_MSCCL_XML to a folder that has some";
    }
  }

  std::map<std::string, std::string> files_;
};

TEST_F(MscclFiles, EachIsProved) {
  for (const auto& [name, text] : files_) {
    const Schedule schedule = schedule_from_msccl_xml(text, name);
    EXPECT_EQ(first_fault(schedule), std::nullopt) << name;
    std::size_t transfers = 0;
    for (const Step& step : schedule.steps) transfers += step.size();
    fmt::print("{:<26} {:<11} {} ranks {:>4} chunks {:>3} steps {:>5} transfers\n", name,
               name_of(schedule.collective.kind), schedule.world_size, schedule.num_chunks,
               schedule.steps.size(), transfers);
  }
}

TEST_F(MscclFiles, WritingAndReadingEachIsTheIdentity) {
  for (const auto& [name, text] : files_) {
    const Schedule schedule = schedule_from_msccl_xml(text, name);
    const std::string written = to_msccl_xml(schedule);
    EXPECT_EQ(schedule_from_msccl_xml(written, name), schedule) << name;
    EXPECT_EQ(to_msccl_xml(schedule_from_msccl_xml(written, name)), written) << name;
    const Schedule bare = schedule_from_msccl_xml(without_levels(written), name);
    EXPECT_EQ(first_fault(bare), std::nullopt) << name;
  }
}

// What a single wrong number does must be seen: drop any one dependency of a file and it races.
TEST_F(MscclFiles, NoDependencyIsThereForNothing) {
  const auto file = files_.find("ndv4-ap2ll.xml");
  if (file == files_.end()) GTEST_SKIP() << "no ndv4-ap2ll.xml in " << folder();
  const std::string wait = "depid=\"4\" deps=\"1\" hasdep=\"0\"/>";
  std::string text = file->second;
  const auto at = text.find(wait);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, wait.size(), "depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>");
  EXPECT_THROW((void)schedule_from_msccl_xml(text, file->first), ProgramFault);
}

TEST_F(MscclFiles, EachRunsWithTheRightResult) {
  std::map<int, std::vector<std::pair<std::string, Schedule>>> by_size;
  for (const auto& [name, text] : files_) {
    const Schedule schedule = schedule_from_msccl_xml(text, name);
    by_size[schedule.world_size].emplace_back(name, schedule);
  }
  for (const auto& [size, all] : by_size) {
    chorus::testing::World world{.size = size};
    world.options.transports = "shm";
    world.options.slot_bytes = 1024;
    world.options.timeout_ms = 120'000;
    world.options.flight_dir.clear();
    const auto& schedules = all;
    chorus::testing::expect_all_well(chorus::testing::run_world(world, [&](Communicator& comm) {
      for (const auto& [name, schedule] : schedules) {
        comm.use({.world_size = comm.world_size(),
                  .entries = {{.max_bytes = UINT64_MAX, .schedule = schedule}}});
        const auto kind = static_cast<Call::Kind>(schedule.collective.kind);
        try {
          for (const std::size_t count : {1, 37, 3001}) {
            for (const bool in_place : {false, true}) {
              chorus::testing::run_case(comm,
                                        {.kind = kind,
                                         .type = count == 37 ? DataType::int32 : DataType::float32,
                                         .count = count,
                                         .in_place = in_place});
            }
          }
        } catch (const std::exception& error) {
          throw std::runtime_error(fmt::format("{}: {}", name, error.what()));
        }
      }
    }));
  }
}

}  // namespace
}  // namespace chorus::formats
