// What a host's cores cost: measured, kept, read back, and what follows from it.
#include "topology/discover/host_rates.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "base/cores.hpp"
#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "runtime/executors/direct_cost.hpp"
#include "runtime/host/host_probe.hpp"
#include "runtime/host/host_probe_cores.hpp"
#include "tests/runtime/drawn_rates.hpp"
#include "tests/transports/forbid_foreign_memory.hpp"
#include "transports/shm/put_ways.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

HostRates recorded(const char* name) {
  const std::string path = fmt::format("{}/hosts/{}.json", CHORUS_DATA, name);
  return host_rates_from_json(read_file(path), path);
}

std::vector<RankLoad> loads(double staged, double fetched) {
  return {{staged, {fetched}}, {staged, {fetched}}};
}

SharedMachine machine(const HostRates& rates, int cores = 2, double slot_bytes = 131'072) {
  return {.cores = cores, .rates = rates, .slot_bytes = slot_bytes};
}

TEST(HostRates, ComeBackAsTheyWereWritten) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const HostRates rates = drawn_rates(seed);
    EXPECT_EQ(host_rates_from_json(to_json(rates), "text"), rates);
  }
}

TEST(HostRates, AreRefusedByTheirPlace) {
  const std::pair<std::function<void(HostRates&)>, const char*> faults[] = {
      {[](HostRates& r) { r.machine.clear(); }, "/machine: must name the machine"},
      {[](HostRates& r) { r.turn_s = 0; }, "/turn_s: takes more than no time"},
      {[](HostRates& r) { r.wake_s = 1e4; }, "/wake_s"},
      {[](HostRates& r) { r.pairs.clear(); }, "/pairs: must be 1 to 4"},
      {[](HostRates& r) { r.loopback->byte_s = 0; }, "/loopback/byte_s: takes more than no time"},
      {[](HostRates& r) { r.pairs[0].distance = "far"; }, "/pairs/0/distance: must be siblings"},
      {[](HostRates& r) { r.pairs.push_back(r.pairs[0]); }, "/pairs/1/distance: comes after one"},
      {[](HostRates& r) { r.pairs[0].samples[3].together = 0.5; },
       "/pairs/0/samples/3/together: is at least 1"},
      {[](HostRates& r) { r.pairs[0].samples.resize(1); }, "/pairs/0/samples: must be 2 to 64"},
      {[](HostRates& r) { r.pairs[0].samples[1].bytes = 1; }, "/pairs/0/samples: must ascend"},
      {[](HostRates& r) { r.pairs[0].samples[1].kernel_s = 0; }, "all sizes or none"},
      {[](HostRates& r) { r.pairs[0].samples[2].fetch_s = -1; }, "/pairs/0/samples/2/fetch_s"}};
  for (const auto& [spoil, complaint] : faults) {
    HostRates rates = drawn_rates(1);
    spoil(rates);
    try {
      static_cast<void>(host_rates_from_json(to_json(rates), "host.json"));
      ADD_FAILURE() << complaint;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("host.json: "));
      EXPECT_THAT(error.what(), HasSubstr(complaint));
    }
  }
}

TEST(HostRates, TimesGrowWithSizeAndMeetTheSamples) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const HostRates rates = drawn_rates(seed);
    for (const HostRates::Sample& sample : rates.pairs[0].samples) {
      EXPECT_DOUBLE_EQ(
          seconds(rates, &HostRates::Sample::kernel_s, static_cast<double>(sample.bytes)),
          sample.kernel_s);
    }
    double last = 0;
    for (double bytes = 1; bytes < 1e12; bytes *= 1.7) {
      const double time = seconds(rates, &HostRates::Sample::stage_s, bytes);
      EXPECT_GE(time, last);
      last = time;
    }
  }
}

// One copy in place of two, where a copy takes the same whoever makes it; never where it takes
// longer than both.
TEST(HostRates, TheKernelCopiesWhereItsOneCopyTakesLessThanTwo) {
  int by_kernel = 0, staged = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const HostRates rates = drawn_rates(seed);
    for (const HostRates::Sample& sample : rates.pairs[0].samples) {
      const auto bytes = static_cast<double>(sample.bytes);
      const bool pays = copy_times(machine(rates), loads(bytes, bytes)).kernel_pays();
      const double two_copies = sample.stage_s + sample.fetch_s;
      const double one = sample.kernel_s + rates.pairs[0].line_s;
      EXPECT_EQ(pays, one < two_copies) << "seed " << seed << ", " << sample.bytes << " bytes";
      (pays ? by_kernel : staged)++;
    }
    HostRates forbidden = rates;
    for (HostRates::Sample& sample : forbidden.pairs[0].samples) sample.kernel_s = 0;
    EXPECT_FALSE(copy_times(machine(forbidden), loads(1e6, 1e6)).kernel_pays());
  }
  EXPECT_GT(by_kernel, 100);
  EXPECT_GT(staged, 100);
}

// The root of a broadcast stages while the others fetch; ranks that share a core take turns.
TEST(HostRates, WhatOverlapsAndWhatTakesTurnsIsCounted) {
  HostRates rates = drawn_rates(1);
  rates.pairs[0].line_s = 1e-9;
  rates.pairs[0].samples = {{1024, 1e-6, 1e-6, 1.5e-6, 1e-6}, {1 << 20, 1e-3, 1e-3, 1.5e-3, 1e-3}};
  const double bytes = 1 << 20;
  const std::vector<RankLoad> broadcast = {{bytes, {}}, {0, {bytes}}};
  EXPECT_TRUE(copy_times(machine(rates, 2, bytes), broadcast)
                  .kernel_pays());  // one tile: one after another
  EXPECT_FALSE(
      copy_times(machine(rates, 2, bytes / 16), broadcast).kernel_pays());  // at the same time
  EXPECT_TRUE(
      copy_times(machine(rates, 1, bytes / 16), broadcast).kernel_pays());  // on the same core
}

TEST(HostRates, MessagesInARowGoByTheKernelOnlyIfThatIsFasterThanEitherCopy) {
  HostRates rates = drawn_rates(1);
  rates.pairs[0].line_s = 1e-9;
  rates.pairs[0].samples = {{1024, 1e-6, 1e-6, 1e-5, 1e-6},
                            {16'384, 1e-5, 1e-5, 1.5e-5, 1e-6},
                            {131'072, 1e-4, 1e-4, 1.5e-4, 1e-4}};
  PutWays ways(message_copies(machine(rates)));
  EXPECT_EQ(ways.next(4096, false), PutWay::stage);
  // 12.3 us, hardly more than the 10.3 through slots
  EXPECT_EQ(ways.next(8192, false), PutWay::kernel);
  EXPECT_EQ(ways.next(131'072, false), PutWay::kernel);
  for (std::size_t bytes = 1024; bytes <= 131'072; bytes *= 2) {
    EXPECT_EQ(ways.next(bytes, true), PutWay::stage) << bytes;
  }
  rates.pairs[0].samples[2].kernel_s = 0.9e-4;
  ways = PutWays(message_copies(machine(rates)));
  EXPECT_EQ(ways.next(32'768, true), PutWay::stage);
  EXPECT_EQ(ways.next(65'536, true), PutWay::kernel);  // 46 us, a copy 50
  EXPECT_EQ(ways.next(131'072, true), PutWay::kernel);
  EXPECT_FALSE(PutWays(message_copies(machine(assumed_host_rates()))).any_by_kernel());
}

// 2 cores that share a third-level cache: two copies out of it are 3 times as fast as the kernel's
// one.
TEST(HostRates, OfAnAmdEpycLeaveEverythingToSlots) {
  const HostRates rates = recorded("amd-epyc-2-cores");
  for (double bytes = 512; bytes < 1e9; bytes *= 2) {
    EXPECT_FALSE(copy_times(machine(rates), loads(bytes, bytes)).kernel_pays()) << bytes;
  }
  EXPECT_FALSE(PutWays(message_copies(machine(rates))).any_by_kernel());
}

/// Figures that still hold.
double as_measured(const HostRates::Pair& pair) { return pair.line_s; }

/// Runs `body` in a process of its own, which what is known to this one is not known to.
void alone(const std::function<bool()>& body) {
  EXPECT_EXIT(::_exit(body() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

bool is_sound(const HostRates& rates) {
  if (!rates.is_measured()) return rates == assumed_host_rates();
  return host_rates_from_json(to_json(rates), "what was measured") == rates;
}

TEST(HostProbe, MeasuresThisMachine) {
  const HostRates rates = probe_host();
  EXPECT_TRUE(is_sound(rates)) << to_json(rates);
  if (!rates.is_measured())
    GTEST_SKIP() << "one core, or other programs keep both: nothing can be measured";
  EXPECT_EQ(rates.machine, machine_identity());
  EXPECT_THAT(describe(rates), HasSubstr("from slots"));
  ASSERT_TRUE(rates.loopback) << "TCP with itself";
  EXPECT_GT(rates.loopback->latency_s, rates.loopback->message_s);
  EXPECT_LT(rates.loopback->message_s, 1);
  EXPECT_LT(rates.loopback->byte_s, 1e-6);
}

TEST(HostProbe, EndsThoughTheOtherCoreNeverTakesItsTurn) {
  const std::vector<int> usable = usable_cores();
  const int cores[2] = {usable.front(), usable.back()};
  std::atomic<int> late{0};
  const auto wait_in_vain = [&](Turns& turns) {
    try {
      turns.await(7);
    } catch (const Turns::Overdue&) {
      ++late;
      throw;
    }
  };
  EXPECT_FALSE(on_cores(cores, std::chrono::steady_clock::now(), wait_in_vain, wait_in_vain));
  EXPECT_GE(late, 1) << "the other one may not even have begun";
}

TEST(HostProbe, SaysWhereTheKernelForbidsToReadProcesses) {
  alone([] {
    forbid_foreign_memory(EPERM);
    const HostRates rates = probe_host();
    return is_sound(rates) && !rates.kernel_copies();
  });
}

class HostCache : public ::testing::Test {
 protected:
  HostCache() { std::filesystem::create_directories(folder_); }
  ~HostCache() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& text) const { std::ofstream(file_) << text; }
  [[nodiscard]] HostRates kept() const { return host_rates_from_json(read_file(file_), file_); }

  std::string folder_ = fmt::format("{}chorus-host-cache-{}", ::testing::TempDir(), ::getpid());
  std::string file_ = folder_ + "/host.json";
  /// Of this machine, as nobody would measure it.
  HostRates known_ = [] {
    HostRates rates = drawn_rates(3);
    rates.machine = machine_identity();
    return rates;
  }();
};

TEST_F(HostCache, IsBelievedForThisMachine) {
  write(to_json(known_));
  alone([&] { return find_host_rates("auto", folder_, as_measured) == known_; });
}

// Virtual processors move within a boot: siblings become cores far apart, and the other way round.
TEST(HostRates, AreStaleWhenALineTakesAnotherTime) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const HostRates rates = drawn_rates(seed, 1 + static_cast<int>(seed % 4));
    const auto takes = [&](double times) {
      return [times](const HostRates::Pair& pair) { return times * pair.line_s; };
    };
    for (const double times : {0.1, 0.4, 2.5, 8.0}) EXPECT_TRUE(is_stale(rates, takes(times)));
    for (const double times : {0.6, 1.0, 1.9}) EXPECT_FALSE(is_stale(rates, takes(times)));
    EXPECT_FALSE(is_stale(rates, takes(0))) << "the cores are not to be had";
  }
}

TEST(HostRates, AreNotStaleForAMomentsOtherWork) {
  const HostRates rates = drawn_rates(4);
  int looks = 0;
  const auto disturbed_twice = [&](const HostRates::Pair& pair) {
    return (++looks < 3 ? 50 : 1) * pair.line_s;
  };
  EXPECT_FALSE(is_stale(rates, disturbed_twice));
  EXPECT_EQ(looks, 3);
}

TEST_F(HostCache, IsRenewedWhenItIsStale) {
  if (!probe_host().is_measured())
    GTEST_SKIP() << "one core, or other programs keep both: nothing can be measured";
  write(to_json(known_));
  alone([&] {
    return find_host_rates("auto", folder_,
                           [](const HostRates::Pair& pair) { return 5 * pair.line_s; }) != known_;
  });
  EXPECT_NE(kept(), known_);
  EXPECT_EQ(kept().machine, machine_identity());
}

TEST_F(HostCache, IsRenewedWhenAnEarlierVersionMeasuredLess) {
  if (!probe_host().is_measured())
    GTEST_SKIP() << "one core, or other programs keep both: nothing can be measured";
  for (HostRates::Sample& sample : known_.pairs[0].samples) sample.stream_s = 0;
  write(to_json(known_));
  alone([&] { return find_host_rates("auto", folder_, as_measured).streams(); });
  EXPECT_TRUE(kept().streams());
}

class DiscoveredCache : public HostCache {
 protected:
  DiscoveredCache() { file_ = folder_ + "/machine.json"; }
  [[nodiscard]] DiscoveredHost kept_host() const {
    return discovered_host_from_json(read_file(file_), file_);
  }
  /// This machine, as nobody would discover it.
  DiscoveredHost strange_ = [] {
    DiscoveredHost host{.machine = machine_identity(),
                        .units = {},
                        .topology = find_topology("ring:2"),
                        .gpus = {}};
    for (const int unit : usable_cores()) host.units[unit] = {.core = 77, .cache = unit};
    return host;
  }();
};

TEST_F(DiscoveredCache, IsBelievedForThisMachineAndItsUnits) {
  write(to_json(strange_));
  alone([&] { return find_discovered_host("auto", folder_, usable_cores()) == strange_; });
}

TEST_F(DiscoveredCache, OfAnotherMachineDamagedOrOfOtherUnitsIsMadeAnew) {
  DiscoveredHost other = strange_;
  other.machine = "another machine";
  DiscoveredHost smaller = strange_;
  smaller.units.erase(smaller.units.begin());
  for (const std::string& text :
       {to_json(other), to_json(smaller), to_json(strange_).substr(0, 100), std::string()}) {
    write(text);
    alone([&] {
      const DiscoveredHost found = find_discovered_host("auto", folder_, usable_cores());
      return found.machine == machine_identity() && found.units.contains(usable_cores().front()) &&
             found.topology.world_size() > 0;
    });
    EXPECT_EQ(kept_host().machine, machine_identity());
    EXPECT_NE(kept_host(), strange_);
  }
}

TEST_F(DiscoveredCache, ThatCannotBeWrittenIsDoneWithout) {
  alone([] {
    return find_discovered_host("auto", "/proc/no/such/folder", usable_cores()).machine ==
           machine_identity();
  });
}

TEST_F(DiscoveredCache, NothingIsDiscoveredWhereThatIsSwitchedOff) {
  write(to_json(strange_));
  EXPECT_EQ(find_discovered_host("off", folder_, usable_cores()), DiscoveredHost{});
}

TEST_F(HostCache, OfAnotherMachineOrDamagedIsMadeAnew) {
  if (!probe_host().is_measured())
    GTEST_SKIP() << "one core, or other programs keep both: nothing can be measured";
  HostRates other = known_;
  other.machine = "another machine";
  for (const std::string& text : {to_json(other), to_json(known_).substr(0, 200), std::string()}) {
    write(text);
    alone([&] {
      const HostRates found = find_host_rates("auto", folder_, as_measured);
      return found != other && found != known_ && found.machine == machine_identity();
    });
    EXPECT_EQ(kept().machine, machine_identity());
    EXPECT_NE(kept(), known_);
  }
}

TEST_F(HostCache, ThatCannotBeWrittenIsDoneWithout) {
  alone([] { return is_sound(find_host_rates("auto", "/proc/no/such/folder")); });
}

TEST_F(HostCache, IsSetAsideByWhatTheUserSays) {
  write(to_json(known_));
  EXPECT_EQ(find_host_rates("off", folder_), assumed_host_rates());
  EXPECT_EQ(find_host_rates(file_, ""), known_);
  try {
    static_cast<void>(find_host_rates(folder_ + "/absent.json", folder_));
    ADD_FAILURE() << "a file that is not there";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("absent.json"));
    EXPECT_THAT(error.what(), HasSubstr("CHORUS_HOST_PROBE"));
  }
}

}  // namespace
}  // namespace chorus::testing
