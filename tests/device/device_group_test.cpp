// Groups on GPU memory, cut into launches: whatever each rank asks for and wherever it cuts, no two
// wait for each other for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <tuple>

#include "device/layout.hpp"
#include "runtime/gpu/group.hpp"

namespace chorus {
namespace {

using Kind = Call::Kind;

DeviceCall message(Kind kind, Rank peer, std::size_t count) {
  DeviceCall call;
  call.call = {.kind = kind, .count = count, .peer = peer};
  return call;
}

/// By source, destination and number among those.
using Message = std::tuple<Rank, Rank, int>;

/// The launches of one rank, each the messages in it.
std::vector<std::vector<Message>> launches_of(std::span<const DeviceCall> group, Rank rank, int n,
                                              std::uint32_t works) {
  const std::vector<DeviceCall> order = launch_order(group, rank, n);
  std::vector<std::vector<Message>> launches;
  std::map<std::pair<Rank, Kind>, int> before;
  for (std::size_t done = 0; done < order.size();) {
    const std::size_t taken = first_launch(std::span(order).subspan(done), rank, works, 2);
    EXPECT_GE(taken, 1U);
    EXPECT_LE(taken, device::kManyCalls);
    std::vector<Message> launch;
    for (const std::size_t end = done + taken; done < end; ++done) {
      const Call& call = order[done].call;
      const int number = before[{call.peer, call.kind}]++;
      EXPECT_EQ(call.count, static_cast<std::size_t>(number)) << "those of a pair change places";
      launch.push_back(call.kind == Kind::send ? Message(rank, call.peer, number)
                                               : Message(call.peer, rank, number));
    }
    launches.push_back(std::move(launch));
  }
  return launches;
}

/// Runs the launches of all ranks: a message is done when both its ends are in launches that run.
bool all_end(std::vector<std::vector<std::vector<Message>>> launches) {
  std::vector<std::size_t> current(launches.size());
  const auto ends_of = [&](const Message& message, Rank rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (current[r] == launches[r].size()) return std::ptrdiff_t{0};
    const auto& launch = launches[r][current[r]];
    return std::count(launch.begin(), launch.end(), message);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < launches.size(); ++r) {
      if (current[r] == launches[r].size()) continue;
      for (const Message& message : std::vector(launches[r][current[r]])) {
        const auto [from, to, number] = message;
        const std::ptrdiff_t ends =
            from == to ? ends_of(message, from) : ends_of(message, from) + ends_of(message, to);
        if (ends != 2) continue;
        for (const Rank rank : {from, to}) {
          auto& launch =
              launches[static_cast<std::size_t>(rank)][current[static_cast<std::size_t>(rank)]];
          launch.erase(std::remove(launch.begin(), launch.end(), message), launch.end());
        }
        moved = true;
      }
      if (launches[r][current[r]].empty()) {
        ++current[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < launches.size(); ++r) {
    if (current[r] != launches[r].size()) return false;
  }
  return true;
}

/// Messages between random pairs, in a random order on every rank but for those of a pair and way.
std::vector<std::vector<DeviceCall>> random_groups(int n, int messages, std::mt19937& random) {
  std::map<std::tuple<Rank, Rank>, int> counts;
  std::vector<std::vector<std::pair<Kind, Rank>>> ways(static_cast<std::size_t>(n));
  for (int i = 0; i < messages; ++i) {
    const auto from = static_cast<Rank>(random() % static_cast<unsigned>(n));
    const auto to = static_cast<Rank>(random() % static_cast<unsigned>(n));
    ways[static_cast<std::size_t>(from)].emplace_back(Kind::send, to);
    ways[static_cast<std::size_t>(to)].emplace_back(Kind::recv, from);
  }
  std::vector<std::vector<DeviceCall>> groups;
  for (auto& way : ways) {
    std::shuffle(way.begin(), way.end(), random);
    std::map<std::pair<Kind, Rank>, std::size_t> numbers;
    std::vector<DeviceCall> group;
    for (const auto& each : way) group.push_back(message(each.first, each.second, numbers[each]++));
    groups.push_back(std::move(group));
  }
  return groups;
}

TEST(DeviceGroup, LaunchesOfAllRanksEndWhereverTheyAreCut) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int n = 1 + round % 9;
    const auto groups = random_groups(n, 10 + 7 * (round % 40), random);
    std::vector<std::vector<std::vector<Message>>> launches;
    for (Rank rank = 0; rank < n; ++rank) {
      // GPUs differ, so each rank has room for another number of messages: four works at least.
      const std::uint32_t works = 4 + 2 * static_cast<std::uint32_t>(random() % 12);
      launches.push_back(launches_of(groups[static_cast<std::size_t>(rank)], rank, n, works));
    }
    EXPECT_TRUE(all_end(launches)) << "round " << round << ", " << n << " ranks";
  }
}

TEST(DeviceGroup, CollectivesKeepTheirOrderAndComeFirst) {
  std::vector<DeviceCall> group;
  for (std::size_t i = 0; i < 450; ++i) {
    DeviceCall call;
    call.call = {.kind = Kind::all_reduce, .count = i};  // that of nothing does nothing
    group.push_back(call);
    if (i % 100 == 0) group.push_back(message(Kind::send, 1, i));
  }
  const std::vector<DeviceCall> order = launch_order(group, 0, 2);
  ASSERT_EQ(order.size(), 449U + 5U);
  for (std::size_t i = 0; i < 449; ++i) EXPECT_EQ(order[i].call.count, i + 1);
  EXPECT_EQ(first_launch(order, 0, 64, 2), device::kManyCalls);
  EXPECT_EQ(first_launch(std::span(order).subspan(400), 0, 64, 2), 54U);
}

}  // namespace
}  // namespace chorus
