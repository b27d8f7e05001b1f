// Ranks that believe themselves on different hosts probe what is between them. The hosts are this
// machine under several names, which takes the right to make a UTS namespace.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "chorus/plan.hpp"
#include "runtime/host/probe_cache.hpp"
#include "runtime/probing/drift.hpp"
#include "world.hpp"

namespace chorus::testing {
namespace {

bool can_rename_hosts() {
  // In a child: this process keeps its name.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWUTS) == 0 ? 0 : 1);
  int status = 1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

void live_on_a_host_of_its_own(Rank rank) {
  const std::string name = "probe-test-" + std::to_string(rank);
  if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) != 0) ::_exit(9);
}

Options tcp_only() {
  Options options;
  options.transports = "tcp";
  options.flight_dir.clear();
  return options;
}

std::string all_reduced(Communicator& communicator) {
  std::vector<int> data(1000, communicator.rank() + 1);
  communicator.all_reduce(std::span(data));
  const int n = communicator.world_size();
  for (const int value : data) EXPECT_EQ(value, n * (n + 1) / 2);
  return {};
}

class Probe : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_rename_hosts()) GTEST_SKIP() << "no right to make a UTS namespace";
  }
};

/// The networks kept in `directory`, beside what is known of this machine.
std::vector<std::filesystem::path> networks_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().filename().string().starts_with("probe-")) files.push_back(file.path());
  }
  return files;
}

TEST_F(Probe, HostsThatNobodyDescribedAreProbedAndThenServed) {
  const auto directory =
      std::filesystem::temp_directory_path() / ("probe-test-" + std::to_string(::getpid()));
  Options options = tcp_only();
  options.probe_cache = directory.string();
  World world{.size = 3, .ranks = Ranks::processes, .options = options};
  for (int run = 0; run < 2; ++run) {  // the second time from the cache
    expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
      live_on_a_host_of_its_own(rank);
      Communicator communicator = Communicator::join(id, rank, 3, options);
      all_reduced(communicator);
      EXPECT_EQ(communicator.topology().name == "3 hosts, probed", run > 0);
      // It knows what the whole finds, whether that is before or after it is made.
      auto part = communicator.split(rank == 2 ? 1 : 0);
      all_reduced(*part);
      communicator.await_plan();
      all_reduced(communicator);
      EXPECT_EQ(communicator.topology().name, "3 hosts, probed");
      part->await_plan();
      all_reduced(*part);
      if (rank != 2) {
        EXPECT_EQ(part->topology().name, "2 hosts, probed");
      }
    }));
  }
  EXPECT_EQ(networks_in(directory).size(), 1U);
  std::filesystem::remove_all(directory);
}

// Containers of one machine have networks of their own, but not cores.
TEST_F(Probe, HostsThatShareCoresKnowIt) {
  for (const bool one_machine : {true, false}) {
    World world{.size = 3, .ranks = Ranks::processes, .options = tcp_only()};
    expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
      live_on_a_host_of_its_own(rank);
      cpu_set_t allowed, first;
      CPU_ZERO(&first);
      ::sched_getaffinity(0, sizeof allowed, &allowed);
      for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&first) < 1; ++core) {
        if (CPU_ISSET(core, &allowed)) CPU_SET(core, &first);
      }
      ::sched_setaffinity(0, sizeof first, &first);
      Options options = tcp_only();
      if (!one_machine) options.machine = "virtual machine " + std::to_string(rank);
      Communicator communicator = Communicator::join(id, rank, 3, options);
      all_reduced(communicator);
      communicator.await_plan();
      all_reduced(communicator);
      const auto& groups = communicator.topology().port_groups;
      const bool knows = std::any_of(groups.begin(), groups.end(), [](const auto& group) {
        return group.name == "cores of rank 0's machine";
      });
      EXPECT_EQ(knows, one_machine) << "rank " << rank;
    }));
  }
}

// What an earlier job found is slower than any network here, however busy the machine.
TEST_F(Probe, WhatNoLongerHoldsIsForgottenAndProbedAgain) {
  const auto directory =
      std::filesystem::temp_directory_path() / ("drift-test-" + std::to_string(::getpid()));
  Options options = tcp_only();
  options.probe_cache = directory.string();
  World world{.size = 2, .ranks = Ranks::processes, .options = options};
  const auto run = [&](const std::function<void(Communicator&)>& body) {
    expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
      live_on_a_host_of_its_own(rank);
      Communicator communicator = Communicator::join(id, rank, 2, options);
      body(communicator);
    }));
  };
  run([](Communicator& communicator) {
    communicator.await_plan();
    all_reduced(communicator);
  });
  const auto files = networks_in(directory);
  ASSERT_EQ(files.size(), 1U);
  const std::filesystem::path& file = files[0];
  auto network = probed_network_from_json(read_file(file), "the cache");
  for (double& rate : network.tree.out) rate = 1e5;
  for (double& rate : network.tree.in) rate = 1e5;
  network.tree.groups.clear();
  network.trunk_alpha_s.clear();
  network.tree.core = 0;
  std::ofstream(file) << to_json(network);
  run([&](Communicator& communicator) {
    std::vector<float> data(1 << 19);
    for (int call = 0; call < 2 * Drift::kWindow; ++call) communicator.all_reduce(std::span(data));
    communicator.barrier();
    EXPECT_FALSE(std::filesystem::exists(file));
    communicator.barrier();
    EXPECT_TRUE(communicator.reprobe());
    EXPECT_TRUE(std::filesystem::exists(file));
    all_reduced(communicator);
  });
  const auto again = probed_network_from_json(read_file(file), "the cache");
  EXPECT_GT(again.tree.out[0], 1e6);
  std::filesystem::remove_all(directory);
}

/// Calls, each checked, until all ranks have seen what they wait for.
void call_until_all(Communicator& communicator, const std::function<bool()>& seen) {
  for (;;) {
    all_reduced(communicator);
    std::vector<int> have = {seen() ? 1 : 0};
    communicator.all_reduce(std::span(have));
    if (have[0] == communicator.world_size()) return;
  }
}

TEST_F(Probe, CallsRunAtOnceAndThePlanBeginsAmongThem) {
  const Options options = tcp_only();
  World world{.size = 4, .ranks = Ranks::processes, .options = options};
  expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
    live_on_a_host_of_its_own(rank);
    Communicator communicator = Communicator::join(id, rank, 4, options);
    std::string before = communicator.topology().name;
    EXPECT_EQ(before, "4 hosts x 1 rank");
    EXPECT_NE(communicator.explain({.kind = Call::Kind::barrier}).find("await_plan()"),
              std::string::npos);
    // Requests under way when it begins keep the schedules that they began with.
    std::vector<std::vector<int>> data(3, std::vector<int>(40'000));
    call_until_all(communicator, [&] {
      std::vector<Request> requests;
      for (auto& each : data) {
        std::fill(each.begin(), each.end(), rank);
        requests.push_back(communicator.start({.kind = Call::Kind::all_reduce,
                                               .input = each.data(),
                                               .output = each.data(),
                                               .count = each.size(),
                                               .type = DataType::int32}));
      }
      for (Request& request : requests) request.wait();
      for (const auto& each : data) {
        EXPECT_EQ(std::count(each.begin(), each.end(), 6), 40'000);
      }
      return communicator.topology().name != before;
    });
    EXPECT_EQ(communicator.topology().name, "4 hosts, probed");
    EXPECT_EQ(communicator.explain({.kind = Call::Kind::barrier}).find("await_plan()"),
              std::string::npos);
  }));
}

TEST_F(Probe, AJobMayEndBeforeItKnowsItsNetwork) {
  const Options options = tcp_only();
  for (int calls = 0; calls < 4; ++calls) {
    World world{.size = 3, .ranks = Ranks::processes, .options = options, .timeout_s = 60};
    expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
      live_on_a_host_of_its_own(rank);
      Communicator communicator = Communicator::join(id, rank, 3, options);
      for (int call = 0; call < calls; ++call) all_reduced(communicator);
      // A part may outlive the whole, and wants to know the network all the same.
      if (calls != 3) return;
      auto part = communicator.split(0);
      { const Communicator whole = std::move(communicator); }
      part->await_plan();
      all_reduced(*part);
      EXPECT_EQ(part->topology().name, "3 hosts, probed");
    }));
  }
}

TEST_F(Probe, AGivenPlanTakesThePlaceOfTheOneThatIsBeingMade) {
  const Options options = tcp_only();
  World world{.size = 2, .ranks = Ranks::processes, .options = options};
  expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
    live_on_a_host_of_its_own(rank);
    Communicator communicator = Communicator::join(id, rank, 2, options);
    const std::string assumed = communicator.topology().name;
    communicator.use(Plan{.world_size = 2});
    communicator.await_plan();
    all_reduced(communicator);
    EXPECT_EQ(communicator.topology().name, assumed);
    EXPECT_TRUE(communicator.reprobe());
    all_reduced(communicator);
    EXPECT_EQ(communicator.topology().name, "2 hosts, probed");
  }));
}

TEST_F(Probe, NobodyProbesWhereThatIsSwitchedOff) {
  Options options = tcp_only();
  options.probe_ms = 0;
  World world{.size = 2, .ranks = Ranks::processes, .options = options};
  expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
    live_on_a_host_of_its_own(rank);
    Communicator communicator = Communicator::join(id, rank, 2, options);
    communicator.await_plan();
    all_reduced(communicator);
    EXPECT_EQ(communicator.topology().name, "2 hosts x 1 rank");
    EXPECT_FALSE(communicator.reprobe());
  }));
}

TEST_F(Probe, IsRefusedOnAllRanksWhileOneHasCallsUnderWay) {
  const Options options = tcp_only();
  World world{.size = 2, .ranks = Ranks::processes, .options = options};
  expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
    live_on_a_host_of_its_own(rank);
    Communicator communicator = Communicator::join(id, rank, 2, options);
    int value = rank == 0 ? 0 : 7;
    Request request;
    if (rank == 0) {
      request = communicator.start({.kind = Call::Kind::recv,
                                    .output = &value,
                                    .count = 1,
                                    .type = DataType::int32,
                                    .peer = 1});
    }
    std::string why;
    try {
      communicator.reprobe();
    } catch (const InputError& error) {
      why = error.what();
    }
    EXPECT_NE(why.find("rank 0 cannot probe again"), std::string::npos) << why;
    if (rank == 1) communicator.send(std::span<const int>(&value, 1), 0);
    if (rank == 0) request.wait();
    EXPECT_EQ(value, 7);
  }));
}

TEST_F(Probe, ARankThatDiesMeanwhileIsNamed) {
  const Options options = tcp_only();
  World world{.size = 3, .ranks = Ranks::processes, .options = options, .timeout_s = 60};
  const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
    live_on_a_host_of_its_own(rank);
    if (rank == 1) {
      std::thread([] {
        // Three rounds of 40 ms are the least that it takes.
        std::this_thread::sleep_for(std::chrono::milliseconds(70));
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    Communicator communicator = Communicator::join(id, rank, 3, options);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    communicator.await_plan();
    throw CollectiveError("the plan was made without the other");
  });
  for (const Rank rank : {0, 2}) {
    EXPECT_NE(outcomes[static_cast<std::size_t>(rank)].find("rank 1"), std::string::npos)
        << outcomes[static_cast<std::size_t>(rank)];
  }
}

TEST_F(Probe, ARankThatStallsMeanwhileIsNamedWithinTheDeadline) {
  Options options = tcp_only();
  options.timeout_ms = 1500;
  options.join_timeout_ms = 8'000;  // where the machine is busy it stalls before the probe begins
  World world{.size = 2, .ranks = Ranks::processes, .options = options, .timeout_s = 25};
  const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
    live_on_a_host_of_its_own(rank);
    if (rank == 1) {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        ::kill(::getpid(), SIGSTOP);
      }).detach();
    }
    Communicator communicator = Communicator::join(id, rank, 2, options);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    for (;;) all_reduced(communicator);
  });
  EXPECT_NE(outcomes[0].find("rank 1"), std::string::npos) << outcomes[0];
}

probing::ProbedNetwork sample() {
  probing::ProbedNetwork network;
  network.hosts = {"a", "b \"quoted\"", "c", "d"};
  network.tree.out = {1e8, 2.5e8, 1e8 / 3, 1e8};
  network.tree.in = {1e8, 1e8, 1e8, 1e8};
  network.tree.groups = {{{1, 3}, 2e7, 3e7}};
  network.tree.core = 4e8;
  network.cable_alpha_s = {1e-5, 0, 1e-5, 2e-5};
  network.trunk_alpha_s = {5e-6};
  network.measured_at_s = 1'700'000'000;
  network.further.push_back({.name = "10.1.0.0/24",
                             .hosts = {"d", "a"},
                             .tree = {.out = {3e7, 4e7}, .in = {3e7, 4.5e7}, .groups = {}},
                             .cable_alpha_s = {0, 0},
                             .measured_at_s = network.measured_at_s});
  return network;
}

TEST(ProbeCache, GivesBackWhatWasSavedWhileItIsYoung) {
  EXPECT_EQ(probed_network_from_json(to_json(sample()), "here"), sample());
  const auto directory =
      std::filesystem::temp_directory_path() / ("probe-cache-" + std::to_string(::getpid()));
  save_probe(directory.string(), "key", sample());
  EXPECT_EQ(load_probe(directory.string(), "key", 100, 1'700'000'100), sample());
  EXPECT_EQ(load_probe(directory.string(), "key", 100, 1'700'000'101), std::nullopt);
  EXPECT_EQ(load_probe(directory.string(), "key", 100, 1'600'000'000), std::nullopt);
  EXPECT_EQ(load_probe(directory.string(), "other", 100, 1'700'000'000), std::nullopt);
  EXPECT_EQ(load_probe("", "key", 100, 1'700'000'000), std::nullopt);
  std::filesystem::remove_all(directory);
}

TEST(ProbeCache, RefusesWhatCannotBeANetwork) {
  const std::string good = to_json(sample());
  const auto refused = [&](const std::string& what, const std::string& by) {
    std::string bad = good;
    const auto at = bad.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    bad.replace(at, what.size(), by);
    EXPECT_THROW((void)probed_network_from_json(bad, "here"), InputError) << bad;
  };
  refused("\"version\": 2", "\"version\": 3");
  refused("\"10.1.0.0/24\"", "\"\"");
  refused("\"hosts\": [\"d\", \"a\"]", "\"hosts\": [\"d\", \"e\"]");
  refused("\"hosts\": [\"d\", \"a\"]", "\"hosts\": [\"d\"]");
  refused("\"hosts\": [1, 3]", "\"hosts\": [3, 1]");
  refused("\"hosts\": [1, 3]", "\"hosts\": [1, 4]");
  refused("\"hosts\": [1, 3]", "\"hosts\": [1, 2, 3]");
  refused("\"hosts\": [1, 3]", "\"hosts\": []");
  refused("\"c\"", "\"a\"");
  refused("30000000", "0");
  refused("\"trunk_alpha_s\": [5e-06]", "\"trunk_alpha_s\": []");
  refused("250000000", "-1");
  for (std::size_t cut = 0; cut + 2 < good.size(); cut += 7) {
    EXPECT_THROW((void)probed_network_from_json(good.substr(0, cut), "here"), InputError);
  }
}

}  // namespace
}  // namespace chorus::testing
