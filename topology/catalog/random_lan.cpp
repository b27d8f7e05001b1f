// Ethernet clusters drawn by a seed: racks of unequal hosts, several networks, slow trunks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "topology/catalog/draw.hpp"
#include "topology/catalog/spec.hpp"
#include "topology/discover/builder.hpp"
#include "topology/discover/rates.hpp"

namespace chorus {
namespace {

constexpr int kMostHosts = 250;
constexpr int kMostRanksOfHost = 64;

/// GB/s each way: from the host or the outer rack, and towards it.
struct Rates {
  double up = 0;
  double down = 0;
};

/// A network that joins some of the hosts: a tree of one switch per rack.
struct DrawnNetwork {
  std::vector<std::optional<Rates>> cables;  ///< by host: nothing where it has no cable
  std::vector<Rates> trunks;                 ///< by rack, to its parent; the first has none
  std::optional<Rates> closing;  ///< from the last rack to the first, if rings are asked
};

struct DrawnLan {
  std::vector<int> parent;  ///< by rack: the rack that its trunk leads to, always an earlier one
  std::vector<int> rack;    ///< by host
  std::vector<DrawnNetwork> networks;
};

class LanDraw {
 public:
  LanDraw(Spec& spec, std::uint64_t seed) : draw_(seed), most_gb_s_(spec.number("rate", 0.25)) {
    // What is not asked for is drawn. An option that is, is drawn all the same: so it changes
    // nothing else.
    const int hosts = draw_.from(2, 12), cables = draw_.from(1, 3);
    closed_ = spec.yes_no("ring", false);
    const int least = closed_ ? 3 : 1;
    hosts_ = spec.integer("hosts", std::max(hosts, least), std::max(2, least), kMostHosts);
    cables_ = spec.integer("cables", cables, 1, kMostCables);
    const int switches = draw_.from(least, std::min(hosts_, 5));
    switches_ = spec.integer("switches", switches, least, hosts_);
    least_gb_s_ = spec.number("least", std::min(0.01, most_gb_s_), most_gb_s_);
  }

  DrawnLan drawn() {
    DrawnLan lan;
    place(lan);
    for (int k = 0; k < cables_; ++k) lan.networks.push_back(network(lan, k));
    if (!closed_) return lan;
    for (DrawnNetwork& network : lan.networks) network.closing = both_ways(rate(most_gb_s_));
    return lan;
  }

 private:
  /// Racks hang at earlier ones, in a ring each at the one before, or all at the first, which has
  /// no hosts then. Every other rack has a host; their order is that of the racks or none.
  void place(DrawnLan& lan) {
    const bool core = switches_ > 2 && draw_.one_in(3);
    lan.parent.push_back(-1);
    for (int rack = 1; rack < switches_; ++rack) {
      const int drawn = core ? 0 : static_cast<int>(draw_.below(lan.parent.size()));
      lan.parent.push_back(closed_ ? rack - 1 : drawn);
    }
    const int first = core ? 1 : 0;
    for (int rack = first; rack < switches_; ++rack) lan.rack.push_back(rack);
    while (static_cast<int>(lan.rack.size()) < hosts_) {
      lan.rack.push_back(draw_.from(first, switches_ - 1));
    }
    if (draw_.one_in(2)) {
      draw_.shuffle(lan.rack);
    } else {
      std::ranges::sort(lan.rack);
    }
  }

  /// Every host is on the first network, on the others two at least.
  DrawnNetwork network(const DrawnLan& lan, int number) {
    DrawnNetwork network;
    const double usual = rate(most_gb_s_);
    std::vector<int> order(static_cast<std::size_t>(hosts_));
    std::iota(order.begin(), order.end(), 0);
    if (number > 0) draw_.shuffle(order);
    network.cables.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (number > 0 && i >= 2 && draw_.one_in(3)) continue;
      const double gb_s = draw_.one_in(3) ? rate(most_gb_s_) : usual;
      network.cables[static_cast<std::size_t>(order[i])] = both_ways(gb_s);
    }
    for (int rack = 0; rack < switches_; ++rack) {
      network.trunks.push_back(rack == 0 ? Rates{} : trunk(lan, network, rack));
    }
    return network;
  }

  /// Every second trunk carries less than the hosts behind it could send, the others as much as
  /// those behind one of their ends together.
  Rates trunk(const DrawnLan& lan, const DrawnNetwork& network, int rack) {
    double behind = 0, before = 0;
    for (std::size_t host = 0; host < lan.rack.size(); ++host) {
      if (!network.cables[host]) continue;
      const Rates& cable = *network.cables[host];
      (is_behind(lan, lan.rack[host], rack) ? behind : before) += std::max(cable.up, cable.down);
    }
    const double enough = std::max(std::min(behind, before), least_gb_s_);
    return both_ways(draw_.one_in(2) ? rate(std::min(enough, most_gb_s_)) : enough);
  }

  static bool is_behind(const DrawnLan& lan, int rack, int outer) {
    while (rack > outer) rack = lan.parent[static_cast<std::size_t>(rack)];
    return rack == outer;
  }

  double rate(double most_gb_s) { return rounded(draw_.magnitude(least_gb_s_, most_gb_s)); }

  /// One in eight is slower in one direction.
  Rates both_ways(double gb_s) {
    Rates rates{gb_s, gb_s};
    const int which = draw_.from(0, 15);
    const double share = 0.01 * draw_.from(25, 75);
    if (which == 0) rates.up = rounded(std::max(least_gb_s_, share * gb_s));
    if (which == 1) rates.down = rounded(std::max(least_gb_s_, share * gb_s));
    return rates;
  }

  /// To whole tenths of MB/s, which people can read and in which no library differs by a bit.
  [[nodiscard]] double rounded(double gb_s) const {
    return std::max(std::round(gb_s * 1e4) * 1e-4, least_gb_s_);
  }

  Draw draw_;
  double most_gb_s_, least_gb_s_ = 0;
  int hosts_ = 0, cables_ = 0, switches_ = 0;
  bool closed_ = false;
};

/// The ranks of a host, and what its cable into network `number` leaves from.
class Hosts {
 public:
  Hosts(TopologyBuilder& builder, int count, int ranks_of_each)
      : builder_(builder), ranks_(ranks_of_each) {
    for (int h = 0; h < count; ++h) add(fmt::format("host{}", h));
  }

  int end_of(std::size_t host, std::size_t number, const Rates& rates) {
    const int node = nodes_[host];
    if (ranks_ == 1) return node;
    // What crosses from one network into another passes through a rank, not from adapter to
    // adapter.
    const int nic = builder_.node(fmt::format("host{}/nic{}", host, number), NodeKind::nic, node);
    builder_.one_way(node, nic, {rates.up, kNicHopUs, "pcie", Provenance::declared});
    builder_.one_way(nic, node, {rates.down, kNicHopUs, "pcie", Provenance::declared});
    return nic;
  }

 private:
  void add(const std::string& name) {
    const int host = builder_.node(name, NodeKind::host);
    nodes_.push_back(host);
    if (ranks_ == 1) return builder_.rank(host);
    for (int c = 0; c < ranks_; ++c) {
      const int core = builder_.node(fmt::format("{}/core{}", name, c), NodeKind::core, host);
      builder_.rank(core);
      builder_.both_ways(core, host, {kCoreGbS, kCoreHopUs, "shm"});
    }
  }

  TopologyBuilder& builder_;
  const int ranks_;
  std::vector<int> nodes_;
};

}  // namespace

Topology make_random_lan(Spec& spec) {
  spec.expect_shape(1, 1, 1, "random-lan:7, a seed");
  LanDraw draw(spec, static_cast<std::uint64_t>(spec.shape[0]));
  const int ranks = spec.integer("ranks", 1, 1, kMostRanksOfHost);
  spec.expect_all_used();
  const DrawnLan lan = draw.drawn();

  TopologyBuilder builder(spec.text);
  Hosts hosts(builder, static_cast<int>(lan.rack.size()), ranks);
  const auto join = [&](int a, int b, const Rates& rates, double alpha_us) {
    builder.one_way(a, b, {rates.up, alpha_us, "ethernet", Provenance::declared});
    builder.one_way(b, a, {rates.down, alpha_us, "ethernet", Provenance::declared});
  };
  for (std::size_t k = 0; k < lan.networks.size(); ++k) {
    const DrawnNetwork& network = lan.networks[k];
    std::vector<int> switches;
    for (std::size_t rack = 0; rack < lan.parent.size(); ++rack) {
      switches.push_back(
          builder.node(k == 0 ? fmt::format("switch{}", rack) : fmt::format("switch{}n{}", rack, k),
                       NodeKind::network_switch));
      if (rack == 0) continue;
      join(switches[rack], switches[static_cast<std::size_t>(lan.parent[rack])],
           network.trunks[rack], kSwitchHopUs);
    }
    if (network.closing) join(switches.back(), switches.front(), *network.closing, kSwitchHopUs);
    for (std::size_t host = 0; host < lan.rack.size(); ++host) {
      if (!network.cables[host]) continue;
      const Rates& rates = *network.cables[host];
      join(hosts.end_of(host, k, rates), switches[static_cast<std::size_t>(lan.rack[host])], rates,
           kEthernetPathUs / 2);
    }
  }
  return builder.take();
}

}  // namespace chorus
