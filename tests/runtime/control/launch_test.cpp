// Start-up from each launcher: what its variables mean, and the real ones where they are installed.
#include "runtime/launch/launch.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chorus/error.hpp"
#include "runtime/control/net.hpp"

namespace chorus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::vector<std::pair<std::string, std::string>>;

/// No launcher's variables are set while a test runs, but those the test sets.
class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      for (const char* prefix : {"CHORUS_", "PMI", "OMPI_COMM", "MPI_LOCAL", "SLURM_",
                                 "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "TORCHELASTIC_"}) {
        if (text.starts_with(prefix)) names.push_back(text.substr(0, text.find('=')));
      }
    }
    for (const std::string& name : names) ::unsetenv(name.c_str());
  }
  void TearDown() override { SetUp(); }

  Launch from(const Variables& variables) {
    SetUp();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    return Launch::from_env();
  }

  template <typename Failure>
  std::string complaint(const Variables& variables) {
    try {
      (void)from(variables);
    } catch (const Failure& error) {
      return error.what();
    }
    return "nothing";
  }
};

void expect(const Launch& launch, const std::string& launcher, int rank, int world_size,
            int local_rank, int local_world_size) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.world_size, world_size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_world_size, local_world_size);
}

TEST_F(LaunchTest, NothingIsAWorldOfOne) { expect(from({}), "single", 0, 1, 0, 1); }

TEST_F(LaunchTest, EachLauncherIsRecognised) {
  const Launch chorus = from({{"CHORUS_ID", "chorus:x"},
                              {"CHORUS_RANK", "3"},
                              {"CHORUS_WORLD_SIZE", "8"},
                              {"CHORUS_LOCAL_RANK", "1"},
                              {"CHORUS_LOCAL_WORLD_SIZE", "2"}});
  expect(chorus, "chorus", 3, 8, 1, 2);
  EXPECT_EQ(chorus.id, "chorus:x");
  expect(from({{"PMI_FD", "6"},
               {"PMI_RANK", "1"},
               {"PMI_SIZE", "4"},
               {"MPI_LOCALRANKID", "1"},
               {"MPI_LOCALNRANKS", "2"}}),
         "pmi", 1, 4, 1, 2);
  expect(from({{"PMIX_NAMESPACE", "n"},
               {"PMIX_RANK", "5"},
               {"OMPI_COMM_WORLD_RANK", "5"},
               {"OMPI_COMM_WORLD_SIZE", "6"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}),
         "pmix", 5, 6, 2, 3);
  expect(from({{"PMIX_NAMESPACE", "slurm.pmix.1.0"},
               {"PMIX_RANK", "2"},
               {"SLURM_PROCID", "2"},
               {"SLURM_STEP_NUM_TASKS", "4"},
               {"SLURM_LOCALID", "0"}}),
         "pmix", 2, 4, 0, 0);
  expect(from({{"RANK", "7"},
               {"WORLD_SIZE", "16"},
               {"LOCAL_RANK", "7"},
               {"LOCAL_WORLD_SIZE", "8"},
               {"MASTER_ADDR", "10.0.0.1"},
               {"MASTER_PORT", "29500"}}),
         "torchrun", 7, 16, 7, 8);
}

TEST_F(LaunchTest, ContradictoryVariablesAreNamed) {
  EXPECT_THAT(complaint<InputError>({{"CHORUS_ID", "x"}, {"CHORUS_RANK", "0"}}),
              HasSubstr("CHORUS_RANK is set but CHORUS_WORLD_SIZE is not"));
  EXPECT_THAT(complaint<InputError>({{"CHORUS_RANK", "0"}, {"CHORUS_WORLD_SIZE", "1"}}),
              HasSubstr("CHORUS_ID is not"));
  EXPECT_THAT(
      complaint<InputError>({{"CHORUS_ID", "x"}, {"CHORUS_RANK", "4"}, {"CHORUS_WORLD_SIZE", "4"}}),
      HasSubstr("rank 4 contradicts world size 4"));
  EXPECT_THAT(complaint<InputError>({{"PMI_FD", "6"}, {"PMI_RANK", "0"}}),
              HasSubstr("PMI_SIZE is not"));
  EXPECT_THAT(complaint<InputError>({{"PMI_FD", "6"}, {"PMI_RANK", "x"}, {"PMI_SIZE", "2"}}),
              AllOf(HasSubstr("PMI_RANK=x"), HasSubstr("[0, ")));
  EXPECT_THAT(complaint<InputError>({{"PMI_FD", "6"},
                                     {"PMI_RANK", "1"},
                                     {"PMI_SIZE", "2"},
                                     {"RANK", "0"},
                                     {"WORLD_SIZE", "2"}}),
              HasSubstr("PMI_RANK=1 contradicts RANK=0"));
  EXPECT_THAT(complaint<InputError>({{"RANK", "0"}, {"MASTER_ADDR", "localhost"}}),
              HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(complaint<InputError>({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("MASTER_ADDR is not"));
  EXPECT_THAT(
      complaint<InputError>(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "0"}}),
      HasSubstr("MASTER_PORT=0: must be a whole number in [1, 65534]"));
  EXPECT_THAT(complaint<InputError>({{"RANK", "0"},
                                     {"WORLD_SIZE", "4"},
                                     {"LOCAL_RANK", "2"},
                                     {"LOCAL_WORLD_SIZE", "2"},
                                     {"MASTER_ADDR", "localhost"},
                                     {"MASTER_PORT", "1"}}),
              HasSubstr("local rank 2 contradicts local world size 2"));
}

TEST_F(LaunchTest, SlurmWithoutPmiSaysWhatToDo) {
  EXPECT_THAT(complaint<BootstrapError>({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}),
              AllOf(HasSubstr("srun started 4 tasks"), HasSubstr("srun --mpi=pmix")));
  expect(from({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), "single", 0, 1, 0, 1);
}

// Real processes.

std::string probe() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string self(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return self.substr(0, self.rfind('/')) + "/launch_probe";
}

/// Output and exit status of a shell command.
std::pair<std::string, int> shell(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  const int status = ::pclose(pipe);
  return {output, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

bool installed(const std::string& program) { return shell("command -v " + program).second == 0; }

void expect_all_met(const std::pair<std::string, int>& result, const std::string& launcher, int n) {
  const auto& [output, status] = result;
  EXPECT_EQ(status, 0) << output;
  const int sum = n * (n + 1) / 2;
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_THAT(output, HasSubstr(fmt::format("launcher {} rank {} of {} local {} of {} sums {} {}",
                                              launcher, rank, n, rank, n, sum, sum)));
  }
}

TEST_F(LaunchTest, RanksOfMpichMeet) {
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "mpirun.mpich is not installed";
  for (const int n : {2, 5}) {
    expect_all_met(shell(fmt::format("timeout 60 mpirun.mpich -n {} {}", n, probe())), "pmi", n);
  }
}

TEST_F(LaunchTest, RanksOfOpenMpiMeet) {
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  for (const int n : {2, 5}) {
    expect_all_met(
        shell(fmt::format("timeout 60 mpirun.openmpi --oversubscribe -n {} {}", n, probe())),
        "pmix", n);
  }
}

/// What those say that are on several nodes, where each is another local rank.
void expect_all_meet(const std::pair<std::string, int>& result, const std::string& launcher,
                     int n) {
  const auto& [output, status] = result;
  EXPECT_EQ(status, 0) << output;
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_THAT(output, HasSubstr(fmt::format("launcher {} rank {} of {} ", launcher, rank, n)));
  }
  const int sum = n * (n + 1) / 2;
  std::size_t met = 0;
  const std::string sums = fmt::format(" sums {} {}", sum, sum);
  for (std::size_t at = 0; (at = output.find(sums, at)) != std::string::npos; ++at) ++met;
  EXPECT_EQ(met, static_cast<std::size_t>(n)) << output;
}

TEST_F(LaunchTest, RanksOfHydraMeetOverItsPort) {
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "mpirun.mpich is not installed";
  for (const int n : {1, 3}) {
    expect_all_met(shell(fmt::format("timeout 60 mpirun.mpich -pmi-port -n {} {}", n, probe())),
                   "pmi", n);
  }
  const std::string nobody =
      complaint<BootstrapError>({{"PMI_PORT", "127.0.0.1:1"}, {"PMI_ID", "0"}});
  EXPECT_THAT(nobody, HasSubstr("PMI (PMI_PORT=127.0.0.1:1): the launcher cannot be reached: "));
  EXPECT_THAT(complaint<BootstrapError>({{"PMI_PORT", "here"}, {"PMI_ID", "0"}}),
              HasSubstr("needs host:port, and PMI_ID (now '0')"));
}

/// Where perf/peers.sh has put the MPIs of PyPI. Read before a test takes the variable away.
const std::string g_peers = ::getenv("CHORUS_PEERS") == nullptr ? std::string(CHORUS_PEERS_FOLDER)
                                                                : ::getenv("CHORUS_PEERS");

/// Empty if it is not there.
std::string peer(const std::string& program) {
  const std::string path = g_peers + "/" + program;
  return ::access(path.c_str(), X_OK) == 0 ? path : "";
}
#define REQUIRE_PEER(path, program)       \
  const std::string path = peer(program); \
  if (path.empty())                       \
  GTEST_SKIP() << program                 \
               << " is not there: perf/peers.sh fetches it, and CHORUS_PEERS says where it is"

TEST_F(LaunchTest, RanksOfHydra5Meet) {
  REQUIRE_PEER(mpiexec, "mpich5/bin/mpiexec");
  for (const char* option : {"", "-pmi-port"}) {
    expect_all_met(shell(fmt::format("timeout 60 {} {} -n 4 {}", mpiexec, option, probe())), "pmi",
                   4);
  }
}

TEST_F(LaunchTest, RanksOfIntelsHydraMeet) {
  REQUIRE_PEER(mpiexec, "impi/bin/mpiexec.hydra");
  const std::string libraries = mpiexec.substr(0, mpiexec.rfind("/bin/")) + "/lib";
  expect_all_met(
      shell(fmt::format("LD_LIBRARY_PATH={} timeout 60 {} -n 4 {}", libraries, mpiexec, probe())),
      "pmi", 4);
}

TEST_F(LaunchTest, RanksOfPrrteMeet) {
  REQUIRE_PEER(prterun, "openmpi5/bin/prterun");
  const std::string prefix = prterun.substr(0, prterun.rfind("/bin/"));
  const std::string start = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 "
      "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 OPAL_PREFIX={0} PMIX_PREFIX={0} PRTE_PREFIX={0} "
      "LD_LIBRARY_PATH={0}/lib timeout 60 ",
      prefix);
  // As Open MPI 5 starts its programs, and without a word of Open MPI.
  expect_all_meet(
      shell(start + fmt::format("{}/bin/mpirun --map-by :OVERSUBSCRIBE -n 4 {}", prefix, probe())),
      "pmix", 4);
  expect_all_meet(shell(start + fmt::format("{} --personality prte --map-by :OVERSUBSCRIBE -n 4 {}",
                                            prterun, probe())),
                  "pmix", 4);
}

/// In a Slurm of its own, of so many nodes; skipped where there is none.
std::pair<std::string, int> in_slurm(int nodes, const std::string& command) {
  return shell(
      fmt::format("timeout 100 {}/launchers/slurm.sh {} {}", CHORUS_TESTS, nodes, command));
}

TEST_F(LaunchTest, RanksOfSlurmMeetByPmi2OnTwoNodes) {
  const auto result = in_slurm(2, "srun --mpi=pmi2 -N 2 -n 4 --overcommit " + probe());
  if (result.second == 77) GTEST_SKIP() << result.first;
  expect_all_meet(result, "pmi", 4);
}

TEST_F(LaunchTest, RanksOfSlurmMeetByPmix) {
  const auto result = in_slurm(1, "srun --mpi=pmix -n 4 --overcommit " + probe());
  if (result.second == 77) GTEST_SKIP() << result.first;
  expect_all_meet(result, "pmix", 4);
}

TEST_F(LaunchTest, RanksOfSlurmWithoutPmiAreToldWhatToDo) {
  const auto result = in_slurm(1, "srun --mpi=none -n 2 --overcommit " + probe());
  if (result.second == 77) GTEST_SKIP() << result.first;
  EXPECT_NE(result.second, 0);
  EXPECT_THAT(result.first, HasSubstr("srun started 2 tasks but gave them no way to meet"));
}

/// Free now, and below the range from which the kernel gives ports to whoever asks for any: so that
/// none of the tests beside this one is given it meanwhile.
std::uint16_t free_port() {
  for (int port = 20'000 + ::getpid() % 10'000; port < 32'000; ++port) {
    try {
      const auto number = static_cast<std::uint16_t>(port);
      const net::Socket free = net::listen_on(net::local_endpoint("", number));
      return number;
    } catch (const Error&) {  // taken
    }
  }
  throw std::runtime_error("no free port");
}

std::string torchrun_like(int n, const std::string& more) {
  const std::uint16_t port = free_port();
  // Backwards, so that most ranks come before the one that listens.
  return fmt::format(
      "export WORLD_SIZE={0} LOCAL_WORLD_SIZE={0} MASTER_ADDR=localhost MASTER_PORT={1} {2}; "
      "for r in $(seq {3} -1 0); do RANK=$r LOCAL_RANK=$r timeout 60 {4} & pids=\"$pids $!\"; "
      "done; for p in $pids; do wait $p || exit 1; done",
      n, port, more, n - 1, probe());
}

TEST_F(LaunchTest, RanksWithTheVariablesOfTorchrunMeet) {
  expect_all_met(shell(torchrun_like(4, "")), "torchrun", 4);
  expect_all_met(shell(torchrun_like(3,
                                     "CHORUS_SECRET=000102030405060708090a0b0c0d0e0f "
                                     "TORCHELASTIC_USE_AGENT_STORE=True")),
                 "torchrun", 3);
}

// The next job's rank 1 comes while the process of the last job's rank 0 still holds the place, and
// its own rank 0 only well after that has ended; the last job goes on undisturbed.
TEST_F(LaunchTest, TheRanksOfTheNextJobWaitForTheirOwnRankZero) {
  for (const int next : {2, 3}) {
    const auto [said, status] = shell(fmt::format(
        "export MASTER_ADDR=localhost MASTER_PORT={0}; export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2; "
        "RANK=0 LOCAL_RANK=0 timeout 60 {1} linger 1500 & last=$!; "
        "RANK=1 LOCAL_RANK=1 timeout 60 {1} || exit 1; "
        "export WORLD_SIZE={2} LOCAL_WORLD_SIZE={2}; "
        "for r in $(seq 1 {3}); do RANK=$r LOCAL_RANK=$r timeout 60 {1} & pids=\"$pids $!\"; done; "
        "wait $last || exit 2; sleep 1.2; RANK=0 LOCAL_RANK=0 timeout 60 {1} || exit 3; "
        "for p in $pids; do wait $p || exit 4; done",
        free_port(), probe(), next, next - 1));
    EXPECT_EQ(status, 0) << said;
    EXPECT_THAT(said, HasSubstr("rank 0 of 2 local 0 of 2 sums 3 3"));
    EXPECT_THAT(said, HasSubstr(next == 2 ? "rank 1 of 2 local 1 of 2 sums 3 3"
                                          : "rank 2 of 3 local 2 of 3 sums 6 6"));
  }
}

/// Ranks with the variables of torchrun, each as "RANK WORLD_SIZE"; what each printed, in order.
std::vector<std::string> torchrun_ranks(const std::vector<std::string>& ranks) {
  const std::string port = fmt::format("MASTER_ADDR=localhost MASTER_PORT={}", free_port());
  std::string command = fmt::format("export {}; d=$(mktemp -d); ", port);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto space = ranks[i].find(' ');
    command += fmt::format("RANK={} WORLD_SIZE={} timeout 60 {} >$d/{} 2>&1 & ",
                           ranks[i].substr(0, space), ranks[i].substr(space + 1), probe(), i);
  }
  command += "wait; ";
  for (std::size_t i = 0; i < ranks.size(); ++i) command += fmt::format("cat $d/{}; echo =; ", i);
  std::string output = shell(command + "rm -r $d").first;
  std::vector<std::string> said;
  for (std::size_t end = 0; (end = output.find("=\n")) != std::string::npos;) {
    said.push_back(output.substr(0, end));
    output.erase(0, end + 2);
  }
  return said;
}

// The time to join is a minute here: none of them waits it out.
TEST_F(LaunchTest, ContradictoryRanksUnderTorchrunHearOfEachOther) {
  const auto start = std::chrono::steady_clock::now();
  for (const auto& text : torchrun_ranks({"0 2", "1 3"})) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("joins a world of 3 ranks, but "),
                            HasSubstr("has a world of 2: start all ranks")));
  }
  for (const auto& text : torchrun_ranks({"0 4", "1 4", "1 4"})) {
    EXPECT_THAT(text, HasSubstr("two processes claim to be one rank: rank 1 (pid "));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_F(LaunchTest, ATakenPortAndABadSecretAreExplained) {
  const net::Socket taken = net::listen_on(net::local_endpoint("", 0));
  const std::string variables =
      fmt::format("WORLD_SIZE=2 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT={} ",
                  net::local_end(taken.get()).port());
  EXPECT_THAT(shell(variables + probe()).first, AllOf(HasSubstr("rank 0 must listen at 127.0.0.1"),
                                                      HasSubstr("Address already in use")));
  EXPECT_THAT(shell(variables + "CHORUS_SECRET=short " + probe()).first,
              HasSubstr("CHORUS_SECRET: must be 32 hex digits"));
}

}  // namespace
}  // namespace chorus
