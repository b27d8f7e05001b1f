#include "model/draw/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/draw/timeline_rows.hpp"
#include "model/price/critical_path.hpp"
#include "model/price/slow_links.hpp"
#include "schedules.hpp"
#include "topologies.hpp"

namespace chorus {
namespace {

using test::add_link;
using test::add_node;
using test::add_port_group;
using test::gpus;
using test::join;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kMegabyte = 1e6;
constexpr double kLargestPx = 1400;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

/// What stands between `before` and the next quotation mark, everywhere.
std::vector<std::string> values(const std::string& svg, const std::string& before) {
  std::vector<std::string> all;
  for (std::size_t at = svg.find(before); at != std::string::npos; at = svg.find(before, at + 1)) {
    const std::size_t begin = at + before.size();
    all.push_back(svg.substr(begin, svg.find('"', begin) - begin));
  }
  return all;
}

/// Resources that have a row or a share of one.
int resources_in(const std::string& svg) {
  int sum = 0;
  for (const std::string& members : values(svg, "data-members=\""))
    sum += std::atoi(members.c_str());
  return sum;
}

void expect_fits_a_page(const std::string& svg) {
  EXPECT_LE(std::atof(values(svg, "width=\"").front().c_str()), kLargestPx);
  EXPECT_LE(std::atof(values(svg, "height=\"").at(1).c_str()), kLargestPx);
  for (const std::string& y : values(svg, " y=\"")) EXPECT_LE(std::atof(y.c_str()), kLargestPx);
}

/// Of a colour "#rrggbb" against white paper, as WCAG 2 defines it.
double contrast_with_paper(const std::string& colour) {
  const auto channel = [&](std::size_t at) {
    const double value = std::stoi(colour.substr(at, 2), nullptr, 16) / 255.0;
    return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  };
  const double luminance = 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
  return 1.05 / (luminance + 0.05);
}

struct Drawn {
  Simulation simulation;
  std::string svg;
};

Drawn drawn(const Schedule& schedule, const Topology& topology, double size_bytes = kMegabyte) {
  const Routes routes(topology);
  Drawn result{simulate(schedule, topology, routes, size_bytes), {}};
  result.svg = timeline_svg(result.simulation, schedule, topology, routes, size_bytes);
  return result;
}

/// `n` transfers among the ranks of `topology`, each somewhere within a millisecond.
Simulation random_simulation(const Topology& topology, std::size_t n) {
  std::mt19937 random(7);
  const auto ranks = static_cast<unsigned>(topology.world_size());
  Simulation simulation;
  simulation.seconds = 1e-3;
  for (std::size_t i = 0; i < n; ++i) {
    TimelineEntry entry;
    const auto src = static_cast<Rank>(random() % ranks);
    entry.transfer = {
        src, static_cast<Rank>((static_cast<unsigned>(src) + 1 + random() % (ranks - 1)) % ranks),
        static_cast<ChunkId>(i % 1000), random() % 2 == 0 ? Action::reduce : Action::copy};
    entry.begin_s = 0.9e-3 * static_cast<double>(i) / static_cast<double>(n);
    entry.end_s = entry.begin_s + 1e-7 * static_cast<double>(random() % 1000);
    entry.step = static_cast<int>(i * 50 / n);
    simulation.timeline.push_back(entry);
  }
  return simulation;
}

/// Hosts of one adapter each behind one switch; the last host's cable has `last_gb_s`.
Topology hosts(int n, double gb_s, double last_gb_s) {
  Topology topology;
  topology.name = "hosts";
  const int fabric = add_node(topology, "switch0", NodeKind::network_switch);
  for (int h = 0; h < n; ++h) {
    const std::string name = "host" + std::to_string(h);
    const int host = add_node(topology, name, NodeKind::host);
    const int nic = add_node(topology, name + "/nic0", NodeKind::nic);
    topology.nodes[static_cast<std::size_t>(nic)].parent = host;
    topology.rank_nodes.push_back(host);
    join(topology, host, nic, 10 * gb_s, 0, "pcie");
    join(topology, nic, fabric, h + 1 == n ? last_gb_s : gb_s, 0, "ethernet");
  }
  return topology;
}

TEST(CriticalPath, IsWithoutGapsFromTheBeginningToTheEnd) {
  const Topology topology = test::star(5, 10);
  const Routes routes(topology);
  for (const Schedule& schedule : {test::ring_all_reduce(5), test::ring_all_gather(5),
                                   test::all_pairs(CollectiveKind::all_to_all, 5)}) {
    const Simulation run = simulate(schedule, topology, routes, kMegabyte);
    const auto path = critical_path(run, routes);
    ASSERT_FALSE(path.empty());
    EXPECT_EQ(path.front().begin_s, 0);
    EXPECT_EQ(path.back().end_s, run.seconds);
    for (std::size_t i = 1; i < path.size(); ++i) {
      EXPECT_NEAR(path[i].begin_s, path[i - 1].end_s, 1e-12) << schedule.name << " at " << i;
    }
  }
}

TEST(CriticalPath, GoesThroughTheSlowLinkOfARing) {
  Topology topology = test::ring(4, 10);
  topology.links[0].beta_s_per_byte *= 10;
  const Routes routes(topology);
  const Simulation run = simulate(test::ring_all_gather(4), topology, routes, kMegabyte);
  int over_slow = 0;
  for (const CriticalTransfer& step : critical_path(run, routes)) {
    const Transfer& transfer = run.timeline[step.entry].transfer;
    if (routes.path(transfer.src, transfer.dst) == std::vector<int>{0}) ++over_slow;
  }
  EXPECT_EQ(over_slow, 3) << "each of the three chunks that cross it waits for the one before";
}

TEST(CriticalPath, OfNothingIsEmpty) { EXPECT_TRUE(critical_path({}, Routes(gpus(2))).empty()); }

TEST(SlowLinks, AreThoseFarBelowTheirPeersAndFewOfThem) {
  const Topology one = hosts(4, 10, 1);
  const std::vector<bool> slow = slow_links(one);
  for (std::size_t i = 0; i < slow.size(); ++i) {
    const bool of_last = one.links[i].type == "ethernet" && one.links[i].beta_s_per_byte > 5e-10;
    EXPECT_EQ(slow[i], of_last) << i;
  }
  const std::vector<bool> equal = slow_links(hosts(4, 10, 6));
  EXPECT_EQ(std::count(equal.begin(), equal.end(), true), 0) << "six tenths are not far below";
  const std::vector<bool> halves = slow_links(hosts(2, 10, 1));
  EXPECT_EQ(std::count(halves.begin(), halves.end(), true), 0) << "one of two is no exception";
}

TEST(Course, SpreadsAmountsEvenlyAndLosesNothing) {
  std::mt19937 random(3);
  Course course(2.0);
  double sum = 0;
  for (int i = 0; i < 1000; ++i) {
    const double a = 2e-3 * static_cast<double>(random() % 1001);
    const double b = 2e-3 * static_cast<double>(random() % 1001);
    course.add(std::min(a, b), std::max(a, b), i);
    sum += i;
  }
  const std::vector<double> rates = course.rates();
  EXPECT_NEAR(std::accumulate(rates.begin(), rates.end(), 0.0) * 2.0 / Course::kCells, sum,
              1e-6 * sum);
  Course half(1.0);
  half.add(0, 0.5, 1);
  EXPECT_NEAR(half.rates().front(), 2, 1e-9);
  EXPECT_NEAR(half.rates().back(), 0, 1e-9);
}

TEST(Timeline, HasARowForEachUsedAdapterSwitchPortGroupAndLink) {
  Topology topology = hosts(3, 1, 1);
  std::vector<int> uplinks;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    if (topology.links[i].dst == 0) uplinks.push_back(static_cast<int>(i));
  }
  add_port_group(topology, "trunk", uplinks, 3);
  const std::string svg = drawn(test::ring_all_gather(3), topology).svg;
  for (const char* row : {"host0/nic0 sends", "host2/nic0 receives", "switch0", "trunk",
                          "host1 → host1/nic0", "host1/nic0 → host1"}) {
    EXPECT_THAT(svg, HasSubstr(std::string(">") + row + "</text>")) << row;
  }
  EXPECT_THAT(svg, Not(HasSubstr("host1/nic0 → switch0"))) << "that is the adapter's row";
  EXPECT_EQ(resources_in(svg), 3 * 2 + 1 + 1 + 3 * 2);
  EXPECT_EQ(count(svg, "class=\"row\""), 14U);
}

TEST(Timeline, SaysHowMuchOfTheTimeEachIsUsed) {
  Topology topology = gpus(3);
  add_link(topology, 0, 1, 10, 0);
  add_link(topology, 1, 2, 20, 0);
  const Schedule relay{.name = "relay",
                       .collective = {CollectiveKind::broadcast},
                       .world_size = 3,
                       .num_chunks = 1,
                       .steps = {{{0, 1, 0, Action::copy}}, {{1, 2, 0, Action::copy}}}};
  const std::string svg = drawn(relay, topology, 20 * kMegabyte).svg;
  EXPECT_THAT(svg, HasSubstr(">67 %</text>"));
  EXPECT_THAT(svg, HasSubstr(">33 %</text>"));
  EXPECT_THAT(svg, HasSubstr("critical path: 2 transfers, 0 % of its time latency, 67 % bytes over "
                             "gpu0 → gpu1, 33 % bytes over gpu1 → gpu2"));
}

TEST(Timeline, FitsAPageHoweverManyTransfersAndResources) {
  for (const auto& [ranks, transfers] : {std::pair(8, 10'000), std::pair(64, 100'000),
                                         std::pair(64, 1'000'000), std::pair(300, 30'000)}) {
    const Topology topology = hosts(ranks, 10, 10);
    const Routes routes(topology);
    const Simulation run = random_simulation(topology, static_cast<std::size_t>(transfers));
    const Schedule schedule{.name = "random",
                            .collective = {CollectiveKind::all_gather},
                            .world_size = ranks,
                            .num_chunks = 1000};
    const std::string svg = timeline_svg(run, schedule, topology, routes, 1e5);
    expect_fits_a_page(svg);
    EXPECT_LT(svg.size(), 2U << 20);
    EXPECT_EQ(resources_in(svg), 4 * ranks + 1) << ranks;
    EXPECT_THAT(svg, HasSubstr(">reduce over ethernet</text>"));
  }
}

TEST(Timeline, FitsAPageWithBarsToo) {
  for (const int ranks : {2, 3, 5, 8, 12}) {
    for (const Schedule& schedule :
         {test::ring_all_reduce(ranks), test::all_pairs(CollectiveKind::all_to_all, ranks)}) {
      expect_fits_a_page(drawn(schedule, test::star(ranks, 10)).svg);
      expect_fits_a_page(drawn(schedule, hosts(ranks, 10, 10)).svg);
    }
  }
}

TEST(Timeline, PrintsNothingPaler) {
  const Topology topology = hosts(8, 10, 10);
  const Routes routes(topology);
  const Simulation run = random_simulation(topology, 10'000);
  const Schedule schedule{.name = "random",
                          .collective = {CollectiveKind::all_gather},
                          .world_size = 8,
                          .num_chunks = 1000};
  const std::string heat = timeline_svg(run, schedule, topology, routes, 1e5);
  const std::string bars = drawn(test::ring_all_reduce(4), test::star(4, 10)).svg;
  for (const std::string& svg : {heat, bars}) {
    EXPECT_THAT(svg, Not(HasSubstr("opacity")));
    for (const std::string& colour : values(svg, " fill=\"")) {
      if (!colour.starts_with("#") || colour == "#fff") continue;
      const std::string full = colour.size() == 7
                                   ? colour
                                   : std::string("#") + colour[1] + colour[1] + colour[2] +
                                         colour[2] + colour[3] + colour[3];
      EXPECT_GT(contrast_with_paper(full), 1.5) << colour;
    }
  }
}

TEST(Timeline, MarksTheSlowHost) {
  const std::string svg = drawn(test::ring_all_gather(4), hosts(4, 10, 1)).svg;
  EXPECT_THAT(svg, HasSubstr("host3/nic0 sends (slow)"));
  EXPECT_THAT(svg, HasSubstr("host3/nic0 receives (slow)"));
  EXPECT_EQ(count(svg, "(slow)</text>"), 2U);
}

TEST(Timeline, HasABarForEveryTransferOfASmallScheduleAndEscapesNames) {
  Topology topology = test::star(4, 10);
  topology.name = "<four> & \"more\"";
  const Drawn result = drawn(test::ring_all_gather(4), topology);
  EXPECT_THAT(result.svg, HasSubstr("&lt;four&gt; &amp; &quot;more&quot;"));
  EXPECT_THAT(result.svg, HasSubstr(">gpu3 → switch0</text>"));
  // Up, down, and through the switch; the critical path's transfers once more.
  EXPECT_EQ(count(result.svg, "<title>chunk "), 3 * 12U + 3U);
  EXPECT_EQ(result.svg, drawn(test::ring_all_gather(4), topology).svg);
}

TEST(Timeline, OfNothingIsStillAPicture) {
  const Topology topology = gpus(1);
  const Schedule nothing{.name = "nothing", .world_size = 1, .num_chunks = 1};
  const Routes routes(topology);
  const Simulation run = simulate(nothing, topology, routes, kMegabyte);
  EXPECT_EQ(run.seconds, 0);
  EXPECT_THAT(timeline_svg(run, nothing, topology, routes, kMegabyte), HasSubstr("</svg>"));
  EXPECT_THAT(timeline_trace(run, nothing, topology), HasSubstr("traceEvents"));
}

TEST(Timeline, TraceHasAnEventForEveryTransfer) {
  const Topology topology = test::star(3, 10);
  const Schedule schedule = test::ring_all_reduce(3);
  const Routes routes(topology);
  const Simulation run = simulate(schedule, topology, routes, kMegabyte);
  const std::string trace = timeline_trace(run, schedule, topology);
  EXPECT_EQ(count(trace, "\"ph\":\"X\""), run.timeline.size());
  EXPECT_EQ(count(trace, "\"cat\":\"reduce\""), 6U);
  EXPECT_THAT(trace, HasSubstr("\"rank 2 on gpu2\""));
}

}  // namespace
}  // namespace chorus
