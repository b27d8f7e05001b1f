// Small Ethernet clusters: hosts of one rank around switches in a row, with slow trunks or hosts.
#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "topology/catalog/spec.hpp"
#include "topology/discover/builder.hpp"
#include "topology/discover/rates.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

/// The clusters that published comparisons and chorus-perf use: 2 Gb/s cables, 200 Mb/s where slow.
constexpr double kLanGbS = 0.25;
constexpr double kSlowGbS = 0.025;

struct Lan {
  std::vector<int> hosts;  ///< at each switch
  double rate_gb_s = kLanGbS;
  double trunk_gb_s = kLanGbS;  ///< between neighbouring switches, each direction
  double last_gb_s = kLanGbS;   ///< of the last host's cable
  /// Of all that, what each network has where hosts have a cable to each of several.
  std::vector<double> shares = {1};
};

std::optional<Lan> known_lan(std::string_view name) {
  if (name == "homo") return Lan{{4}};
  if (name == "pairs") return Lan{.hosts = {2, 2}, .trunk_gb_s = kSlowGbS};
  if (name == "slow") return Lan{.hosts = {4}, .last_gb_s = kSlowGbS};
  if (name == "islands") return Lan{.hosts = {4, 2, 2}, .trunk_gb_s = kSlowGbS};
  return std::nullopt;
}

Lan lan_of(Spec& spec) {
  if (auto known = known_lan(spec.name)) {
    spec.expect_shape(0, 0, 0, spec.name);
    return *std::move(known);
  }
  spec.expect_shape(1, 64, 1, "lan:4x2x2, three switches in a row with four, two and two hosts");
  Lan lan{.hosts = spec.shape};
  const double first_gb_s = spec.number("rate", kLanGbS);
  const int cables = spec.integer("cables", 1);
  if (cables < 1 || cables > kMostCables) {
    spec.fail(spec.begin_at, fmt::format("cables: a host has 1 to {}", kMostCables));
  }
  std::vector<double> rates = {first_gb_s};
  for (int i = 2; i <= cables; ++i) {
    rates.push_back(spec.number(fmt::format("rate{}", i), first_gb_s));
  }
  lan.rate_gb_s = std::accumulate(rates.begin(), rates.end(), 0.0);
  lan.shares.clear();
  for (const double rate : rates) lan.shares.push_back(rate / lan.rate_gb_s);
  lan.trunk_gb_s = spec.number("trunk", lan.rate_gb_s);
  lan.last_gb_s = spec.number("slow", lan.rate_gb_s);
  return lan;
}

}  // namespace

std::vector<double> cable_shares(std::string_view name) {
  std::vector<Spec> terms = Spec::parse(name);
  if (terms.size() != 1 || terms.front().name != "lan") return {1};
  return lan_of(terms.front()).shares;
}

Topology make_lan(Spec& spec) {
  const Lan lan = lan_of(spec);
  long count = 0;
  for (const int hosts : lan.hosts) count += hosts;
  if (count > kMostRanks) spec.fail(spec.shape_at, fmt::format("larger than {} ranks", kMostRanks));
  const double hop_us = spec.number("alpha", kEthernetPathUs / 2);
  spec.expect_all_used();

  TopologyBuilder builder(spec.text);
  int rank = 0;
  int before = -1;
  for (std::size_t s = 0; s < lan.hosts.size(); ++s) {
    const int here = builder.node(fmt::format("switch{}", s), NodeKind::network_switch);
    if (before >= 0) builder.both_ways(before, here, {lan.trunk_gb_s, kSwitchHopUs, "ethernet"});
    before = here;
    for (int i = 0; i < lan.hosts[s]; ++i, ++rank) {
      const int host = builder.node(fmt::format("host{}", rank), NodeKind::host);
      builder.rank(host);
      const double gb_s = rank + 1 == count ? lan.last_gb_s : lan.rate_gb_s;
      builder.both_ways(host, here, {gb_s, hop_us, "ethernet"});
    }
  }
  return builder.take();
}

}  // namespace chorus
