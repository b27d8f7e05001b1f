// How the peers of a folder of their own are started.
#include "perf/libraries.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace chorus::perf {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Pair;

/// A folder with workers of the peers that perf/peers.sh makes, and with Debian's Open MPI.
class Peers : public ::testing::Test {
 protected:
  Peers() {
    std::filesystem::create_directories(folder_);
    for (const std::string name : {"openmpi", "openmpi5", "mpich5", "impi"}) {
      const std::string worker = folder_ + "/chorus-perf-worker-" + name;
      std::ofstream(worker) << "#!/bin/sh\n";
      ::chmod(worker.c_str(), 0755);
      if (name != "openmpi") std::ofstream(worker + ".home") << "/peers/" + name + "\n";
    }
  }
  ~Peers() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] Library library(const std::string& name) const {
    for (const Library& found : find_libraries(folder_)) {
      if (found.name == name) return found;
    }
    ADD_FAILURE() << name << " was not found";
    return {};
  }
  [[nodiscard]] Command command(const std::string& name, int ranks) const {
    const Launch launch = launch_for(library(name), "shm", ranks, "/scratch");
    EXPECT_EQ(launch.commands.size(), 1u);
    return launch.commands.at(0);
  }

  std::string folder_ = ::testing::TempDir() + "chorus-peers-" + std::to_string(::getpid());
};

TEST_F(Peers, AreStartedByTheirOwnMpirun) {
  EXPECT_EQ(command("openmpi", 2).argv[0], "mpirun.openmpi");
  const Command open = command("openmpi5", 2);
  EXPECT_EQ(open.argv[0], "/peers/openmpi5/bin/mpirun");
  EXPECT_THAT(open.argv, Contains("self,sm"));
  EXPECT_THAT(open.environment, Contains(Pair("OPAL_PREFIX", "/peers/openmpi5")));
  EXPECT_EQ(command("mpich5", 2).argv[0], "/peers/mpich5/bin/mpiexec.hydra");
  const Command intel = command("impi", 2);
  EXPECT_EQ(intel.argv[0], "/peers/impi/bin/mpiexec.hydra");
  EXPECT_THAT(intel.environment,
              IsSupersetOf({Pair("I_MPI_FABRICS", "shm"), Pair("I_MPI_ROOT", "/peers/impi")}));
  EXPECT_THAT(command("impi", 1000).environment, Contains(Pair("I_MPI_WAIT_MODE", "1")));
  for (const char* name : {"openmpi5", "mpich5", "impi"}) {
    EXPECT_THAT(command(name, 2).argv.back(), HasSubstr(folder_)) << "the worker comes last";
  }
}

TEST_F(Peers, AreMeasuredInsideOneHostAndTwoOfThemOnEmulatedClusters) {
  for (const char* name : {"openmpi5", "mpich5", "impi"}) {
    EXPECT_EQ(why_not(library(name), "shm"), "");
    EXPECT_THAT(why_not(library(name), "tcp"), HasSubstr("inside one host only"));
    EXPECT_EQ(why_not_on_cluster(library(name)).empty(), std::string_view(name) != "impi") << name;
    EXPECT_THAT(why_not_in_job(library(name), "shm", {.list = "a:2", .ranks = 2, .one_host = true}),
                HasSubstr("without a launcher"));
  }
  EXPECT_EQ(why_not(library("openmpi"), "tcp"), "");
}

TEST(AbsentPeers, AreNamedWithWhatMakesThem) {
  const std::vector<Absent> absent = absent_from({});
  const auto reason_of = [&](const std::string& name) -> std::string {
    for (const Absent& one : absent) {
      if (one.library == name) return one.reason;
    }
    return "not absent";
  };
  EXPECT_THAT(reason_of("impi"), ::testing::AnyOf(HasSubstr("perf/peers.sh makes it"),
                                                  HasSubstr("not named by --library")));
}

}  // namespace
}  // namespace chorus::perf
