#include "model/price/simulate_sharing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "chorus/topology.hpp"
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

TEST(FairSharing, RatesAreThoseOfTheDefinitionAfterEveryBeginAndEnd) {
  std::mt19937_64 random(7);
  for (int wiring = 0; wiring < 60; ++wiring) {
    const Topology topology = drawn(random);
    FairSharing sharing(topology);
    Paths paths;
    int next = 0;
    for (int event = 0; event < 120; ++event) {
      for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
        if (!paths.empty() && random() % 30 < paths.size()) {
          const auto ended = std::next(paths.begin(), static_cast<int>(random() % paths.size()));
          sharing.end(ended->first);
          paths.erase(ended);
        } else {
          std::vector<int>& path = paths[next];
          for (std::uint64_t hops = 1 + random() % 4; hops > 0; --hops) {
            path.push_back(static_cast<int>(random() % topology.links.size()));
          }
          sharing.begin(next++, path, 1e6, event);
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
  FairSharing sharing(topology);
  constexpr int kTransfers = 10'000;
  double bytes = 0;
  for (int id = 0; id < kTransfers; ++id) {
    sharing.begin(id, {link}, 1000 + id, 0);
    bytes += 1000 + id;
  }
  sharing.update(0);
  int updates = 0;
  double now_s = 0;
  std::vector<int> ending;
  while (sharing.first_end_s() < std::numeric_limits<double>::infinity()) {
    const double until_s = sharing.taken_together_until(sharing.first_end_s());
    sharing.ending(until_s, ending);
    for (const int id : ending) {
      now_s = std::max(now_s, sharing.end_s(id));
      sharing.end(id);
    }
    sharing.update(now_s);
    ++updates;
  }
  EXPECT_NEAR(now_s, bytes * 1e-9, 0.001 * bytes * 1e-9);
  EXPECT_LT(updates, kTransfers / 3) << "the last thousand end one by one";
}

TEST(FairSharing, TransfersEndInTheOrderOfTheirEnds) {
  // 0 and 1 share 10 B/s, 2 has 10 alone: of 40, 100 and 60 bytes.
  Topology topology = gpus(4);
  const int shared = add_link(topology, 0, 1, 10e-9, 0);
  const int alone = add_link(topology, 2, 3, 10e-9, 0);
  FairSharing sharing(topology);
  sharing.begin(0, {shared}, 40, 0);
  sharing.begin(1, {shared}, 100, 0);
  sharing.begin(2, {alone}, 60, 0);
  sharing.update(0);
  std::vector<std::pair<double, std::vector<int>>> ends;
  while (sharing.first_end_s() < 1e9) {
    const double now_s = sharing.first_end_s();
    auto& [time_s, ids] = ends.emplace_back(now_s, std::vector<int>{});
    sharing.ending(now_s, ids);
    for (const int id : ids) sharing.end(id);
    sharing.update(now_s);
  }
  ASSERT_EQ(ends.size(), 3);
  const std::pair<double, int> expected[] = {{6, 2}, {8, 0}, {14, 1}};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    EXPECT_NEAR(ends[i].first, expected[i].first, 1e-9);
    EXPECT_EQ(ends[i].second, std::vector<int>{expected[i].second});
  }
}

}  // namespace
}  // namespace chorus
