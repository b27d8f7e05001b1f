#include "model/price/simulate_sharing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "topologies.hpp"

namespace chorus {
namespace {

using test::add_link;
using test::add_port_group;
using test::gpus;

using Paths = std::map<int, std::vector<int>>;  // by transfer: links, some more than once

/// Max-min fair rates by the definition: all grow together, what crosses something full stays.
std::map<int, double> fair_rates(const Topology& topology, const Paths& paths) {
  struct Limit {
    double left = 0;
    std::map<int, double> times;
  };
  std::vector<Limit> limits;
  for (std::size_t link = 0; link < topology.links.size(); ++link) {
    Limit& limit = limits.emplace_back(Limit{1 / topology.links[link].beta_s_per_byte, {}});
    for (const auto& [id, path] : paths) {
      const auto times = std::count(path.begin(), path.end(), static_cast<int>(link));
      if (times > 0) limit.times[id] = static_cast<double>(times);
    }
  }
  for (const Topology::PortGroup& group : topology.port_groups) {
    Limit& limit = limits.emplace_back(Limit{1 / group.beta_s_per_byte, {}});
    for (const int link : group.links) {
      for (const auto& [id, times] : limits[static_cast<std::size_t>(link)].times) {
        limit.times[id] += times;
      }
    }
  }
  std::map<int, double> rates;
  std::set<int> growing;
  for (const auto& [id, path] : paths) growing.insert(id);
  while (!growing.empty()) {
    double step = 1e300;
    const auto users = [&](const Limit& limit) {
      double sum = 0;
      for (const auto& [id, times] : limit.times) sum += growing.contains(id) ? times : 0;
      return sum;
    };
    for (const Limit& limit : limits) {
      if (users(limit) > 0) step = std::min(step, limit.left / users(limit));
    }
    for (const int id : growing) rates[id] += step;
    for (Limit& limit : limits) limit.left -= step * users(limit);
    std::set<int> full;
    for (const Limit& limit : limits) {
      if (limit.left > 1e-9) continue;
      for (const auto& [id, times] : limit.times) full.insert(id);
    }
    std::erase_if(growing, [&](int id) { return full.contains(id); });
  }
  return rates;
}

/// A wiring of 12 to 40 links and up to 10 port groups that share them, with few different rates,
/// so that many limits are full at once, or with many.
Topology drawn(std::mt19937_64& random) {
  Topology topology = gpus(8);
  const bool alike = random() % 2 == 0;
  const auto gb_s = [&] {
    return static_cast<double>(alike ? 1 + random() % 3 : 1000 + random() % 9000) * 1e-9;
  };
  for (std::uint64_t i = 12 + random() % 29; i > 0; --i) {
    const auto src = static_cast<int>(random() % 8);
    add_link(topology, src, (src + 1 + static_cast<int>(random() % 7)) % 8, gb_s(), 0);
  }
  for (std::uint64_t i = random() % 11; i > 0; --i) {
    std::set<int> links;
    for (std::uint64_t k = 2 + random() % 5; k > 0; --k) {
      links.insert(static_cast<int>(random() % topology.links.size()));
    }
    add_port_group(topology, "group", {links.begin(), links.end()}, gb_s());
  }
  return topology;
}

/// Every second wiring has pairs of links that are never crossed alone, so that one of them cannot
/// limit.
std::vector<std::vector<int>> drawn_paths(const Topology& topology, bool in_pairs, int count,
                                          std::mt19937_64& random) {
  std::vector<std::vector<int>> paths(static_cast<std::size_t>(count));
  for (std::vector<int>& path : paths) {
    for (std::uint64_t hops = 1 + random() % 4; hops > 0; --hops) {
      const auto link = static_cast<int>(random() % topology.links.size());
      path.push_back(link);
      const int partner = link ^ 1;
      if (in_pairs && partner < static_cast<int>(topology.links.size())) path.push_back(partner);
    }
  }
  return paths;
}

struct NoEvent {
  double time_s = 0;

  bool operator>(const NoEvent& other) const { return time_s > other.time_s; }
};
using NoEvents = std::priority_queue<NoEvent, std::vector<NoEvent>, std::greater<>>;

std::vector<std::span<const int>> spans(const std::vector<std::vector<int>>& paths) {
  return {paths.begin(), paths.end()};
}

TEST(FairSharing, RatesAreThoseOfTheDefinitionAfterEveryBeginAndEnd) {
  std::mt19937_64 random(7);
  for (int wiring = 0; wiring < 60; ++wiring) {
    const Topology topology = drawn(random);
    const auto all = drawn_paths(topology, wiring % 2 == 0, 360, random);
    FairSharing sharing(topology, spans(all));
    Paths paths;
    int next = 0;
    for (int event = 0; event < 120; ++event) {
      for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
        if (!paths.empty() && random() % 30 < paths.size()) {
          const auto ended = std::next(paths.begin(), static_cast<int>(random() % paths.size()));
          sharing.end(ended->first);
          paths.erase(ended);
        } else {
          paths[next] = all[static_cast<std::size_t>(next)];
          sharing.begin(next, next, 1e6, event);
          ++next;
        }
      }
      sharing.update(event);
      for (const auto& [id, rate] : fair_rates(topology, paths)) {
        ASSERT_NEAR(sharing.rate(id), rate, 1e-6 * rate)
            << "transfer " << id << " of wiring " << wiring << " after event " << event;
      }
    }
  }
}

TEST(FairSharing, VeryManyAreTakenTogetherAndHardlyLate) {
  Topology topology = gpus(2);
  const int link = add_link(topology, 0, 1, 1, 0);
  const std::vector<std::vector<int>> paths = {{link}};
  FairSharing sharing(topology, spans(paths));
  constexpr int kTransfers = 10'000;
  double bytes = 0;
  for (int id = 0; id < kTransfers; ++id) {
    sharing.begin(id, 0, 1000 + id, 0);
    bytes += 1000 + id;
  }
  sharing.update(0);
  int updates = 0;
  NoEvents none;
  const auto last_s = sharing.pass_time(
      none, [](const NoEvent&) {}, [](int, double) {}, [&] { return ++updates > 0; });
  ASSERT_TRUE(last_s);
  EXPECT_NEAR(*last_s, bytes * 1e-9, 0.002 * bytes * 1e-9);
  EXPECT_LT(updates, kTransfers / 3) << "the last thousand end one by one";
}

TEST(FairSharing, LanesLoseNothingByWhatIsTakenTogether) {
  // 2000 lanes share 1 GB/s, which is full until the first lane has nothing more to send.
  Topology topology = gpus(2);
  const int link = add_link(topology, 0, 1, 1, 0);
  const std::vector<std::vector<int>> paths = {{link}};
  FairSharing sharing(topology, spans(paths));
  constexpr int kLanes = 2000, kOfALane = 20;
  const auto bytes_of = [](int id) { return 1e6 + 1e3 * (id * 7919 % 1000); };
  double bytes = 0;
  for (int id = 0; id < kLanes; ++id) sharing.begin(id, 0, bytes_of(id), 0);
  for (int id = 0; id < kLanes * kOfALane; ++id) bytes += bytes_of(id);
  sharing.update(0);
  int updates = 0;
  NoEvents none;
  const auto follow = [&](int id, double end_s) {
    const int next = id + kLanes;
    if (next < kLanes * kOfALane) sharing.begin(next, 0, bytes_of(next), end_s);
  };
  const auto last_s = sharing.pass_time(
      none, [](const NoEvent&) {}, follow, [&] { return ++updates > 0; });
  ASSERT_TRUE(last_s);
  EXPECT_NEAR(*last_s, bytes * 1e-9, 0.001 * bytes * 1e-9);
  EXPECT_LT(updates, kLanes * kOfALane / 3) << "each changes the rates of all";
}

TEST(FairSharing, TransfersEndInTheOrderOfTheirEnds) {
  // 0 and 1 share 10 B/s, 2 has 10 alone: of 40, 100 and 60 bytes.
  Topology topology = gpus(4);
  const int shared = add_link(topology, 0, 1, 10e-9, 0);
  const int alone = add_link(topology, 2, 3, 10e-9, 0);
  const std::vector<std::vector<int>> paths = {{shared}, {alone}};
  FairSharing sharing(topology, spans(paths));
  sharing.begin(0, 0, 40, 0);
  sharing.begin(1, 0, 100, 0);
  sharing.begin(2, 1, 60, 0);
  sharing.update(0);
  std::vector<std::pair<double, int>> ends;
  NoEvents none;
  (void)sharing.pass_time(
      none, [](const NoEvent&) {}, [&](int id, double end_s) { ends.emplace_back(end_s, id); },
      [] { return true; });
  ASSERT_EQ(ends.size(), 3);
  const std::pair<double, int> expected[] = {{6, 2}, {8, 0}, {14, 1}};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    EXPECT_NEAR(ends[i].first, expected[i].first, 1e-9);
    EXPECT_EQ(ends[i].second, expected[i].second);
  }
}

TEST(FairSharing, WhatIsNeverFullFirstIsLeftOut) {
  // 10 B/s, then 20 B/s, which nobody crosses without the first; a third is crossed alone, too.
  Topology topology = gpus(4);
  const int narrow = add_link(topology, 0, 1, 10e-9, 0);
  const int wide = add_link(topology, 1, 2, 20e-9, 0);
  const int other = add_link(topology, 2, 3, 15e-9, 0);
  const std::vector<std::vector<int>> paths = {{narrow, wide, other}, {other}};
  const FairSharing sharing(topology, spans(paths));
  const auto resources = [&](int path) {
    std::vector<int> result;
    for (const FairSharing::Use& use : sharing.uses_of(path)) result.push_back(use.resource);
    return result;
  };
  EXPECT_EQ(resources(0), (std::vector<int>{narrow, other}));
  EXPECT_EQ(resources(1), (std::vector<int>{other}));
}

TEST(Simulation, EndsWhenItIsCertainToTakeTooLong) {
  // A chunk after the other over 1 GB/s, but the first has to come over a slow link.
  Topology topology = gpus(3);
  add_link(topology, 0, 1, 0.1, 0);
  add_link(topology, 1, 2, 1, 0);
  add_link(topology, 0, 2, 1, 0);
  Schedule schedule{"late", {CollectiveKind::broadcast, 0}, 3, 10, {{}, {}}};
  for (ChunkId chunk = 0; chunk < 10; ++chunk) {
    schedule.steps[0].push_back({0, 1, chunk, Action::copy});
    schedule.steps[1].push_back({1, 2, chunk, Action::copy});
  }
  const Routes routes(topology);
  const double seconds = simulate(schedule, topology, routes, 1e9).seconds;
  EXPECT_NEAR(seconds, 10.1, 1e-6);
  EXPECT_EQ(simulate(schedule, topology, routes, 1e9, 10.2).seconds, seconds);
  EXPECT_EQ(simulate(schedule, topology, routes, 1e9, 9).seconds,
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace chorus
