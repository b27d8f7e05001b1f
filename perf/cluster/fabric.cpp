#include "perf/cluster/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "chorus/error.hpp"

namespace chorus::perf {
namespace {

constexpr std::size_t kMostHosts = 250;
constexpr double kSmallestBurst = 128 * 1024;  // GSO hands over 64 KiB at once
constexpr double kBurstSeconds = 0.5e-3;

std::string address_in(int network, std::size_t host) {
  return fmt::format("10.231.{}.{}", 7 + network, host + 1);
}

bool is_switch(const Topology& t, int node) {
  return t.nodes[static_cast<std::size_t>(node)].kind == NodeKind::network_switch;
}

/// The outermost node that contains `node`.
int machine_of(const Topology& t, int node) {
  for (int above = node; above >= 0; above = t.nodes[static_cast<std::size_t>(above)].parent) {
    if (is_switch(t, above)) return above;
    node = above;
  }
  return node;
}

class Builder {
 public:
  explicit Builder(const Topology& topology) : t_(topology) {}

  Fabric build() {
    number_machines();
    for (std::size_t i = 0; i < t_.links.size(); ++i) add_link(static_cast<int>(i));
    check_groups();
    for (auto& [ends, rates] : rates_) add_cable(ends.first, ends.second, rates);
    fabric_.num_switches = next_switch_ - static_cast<int>(fabric_.hosts.size());
    check_tree();
    return std::move(fabric_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw InputError(fmt::format("topology '{}' cannot be emulated: {}", t_.name, why));
  }

  /// Hosts in the order of their first ranks.
  void number_machines() {
    if (t_.rank_nodes.empty()) refuse("it has no ranks");
    for (const int node : t_.rank_nodes) {
      const int machine = machine_of(t_, node);
      if (is_switch(t_, machine)) refuse("a rank sits on a switch");
      const auto [it, is_new] = index_.try_emplace(machine, static_cast<int>(index_.size()));
      if (is_new) {
        const std::size_t i = fabric_.hosts.size();
        fabric_.hosts.push_back(
            {t_.nodes[static_cast<std::size_t>(machine)].name, address_in(0, i)});
      }
      fabric_.host_of_rank.push_back(it->second);
    }
    if (fabric_.hosts.size() > kMostHosts) refuse(fmt::format("more than {} hosts", kMostHosts));
    next_switch_ = static_cast<int>(fabric_.hosts.size());
    for (std::size_t i = 0; i < t_.nodes.size(); ++i) {
      const int node = static_cast<int>(i);
      if (is_switch(t_, node)) {
        index_.emplace(node, next_switch_++);
      } else if (!index_.contains(machine_of(t_, node))) {
        refuse(fmt::format("no rank sits on {}", t_.nodes[i].name));
      }
    }
  }

  [[nodiscard]] std::pair<int, int> ends(int link) const {
    const Topology::Link& l = t_.links[static_cast<std::size_t>(link)];
    return {index_.at(machine_of(t_, l.src)), index_.at(machine_of(t_, l.dst))};
  }

  void add_link(int link) {
    const auto [src, dst] = ends(link);
    if (src == dst) return;
    auto& both = rates_[{std::min(src, dst), std::max(src, dst)}];
    (src < dst ? both.first : both.second) +=
        1 / t_.links[static_cast<std::size_t>(link)].beta_s_per_byte;
  }

  void check_groups() {
    for (const Topology::PortGroup& group : t_.port_groups) {
      std::vector<std::pair<int, int>> crossed;
      for (const int link : group.links) {
        if (const auto e = ends(link); e.first != e.second) crossed.push_back(e);
      }
      if (crossed.empty()) continue;
      for (const auto& e : crossed) {
        if (e != crossed.front()) {
          refuse(
              fmt::format("port group '{}' is shared by several cables; put a switch and a "
                          "cable of its rate between them",
                          group.name));
        }
      }
      const auto [src, dst] = crossed.front();
      auto& both = rates_.at({std::min(src, dst), std::max(src, dst)});
      double& rate = src < dst ? both.first : both.second;
      rate = std::min(rate, 1 / group.beta_s_per_byte);
    }
  }

  void add_cable(int a, int b, std::pair<double, double> rates) {
    if (rates.first <= 0 || rates.second <= 0) {
      refuse(fmt::format("{} and {} are joined one way only", name(a), name(b)));
    }
    const int hosts = static_cast<int>(fabric_.hosts.size());
    if (b < hosts) {  // two hosts back to back: a switch between them changes nothing
      fabric_.cables.push_back({a, next_switch_, rates.first, rates.second});
      fabric_.cables.push_back({b, next_switch_++, rates.second, rates.first});
      return;
    }
    fabric_.cables.push_back({a, b, rates.first, rates.second});
  }

  [[nodiscard]] std::string name(int machine) const {
    const auto i = static_cast<std::size_t>(machine);
    return i < fabric_.hosts.size() ? fabric_.hosts[i].name
                                    : fmt::format("switch {}", i - fabric_.hosts.size());
  }

  void check_tree() const {
    const std::size_t hosts = fabric_.hosts.size();
    const std::size_t machines = hosts + static_cast<std::size_t>(fabric_.num_switches);
    std::vector<int> root(machines), degree(machines, 0);
    std::iota(root.begin(), root.end(), 0);
    const auto top = [&](int m) {
      while (root[static_cast<std::size_t>(m)] != m) m = root[static_cast<std::size_t>(m)];
      return m;
    };
    for (const Fabric::Cable& cable : fabric_.cables) {
      for (const int end : {cable.a, cable.b}) {
        if (++degree[static_cast<std::size_t>(end)] > 1 && static_cast<std::size_t>(end) < hosts) {
          refuse(fmt::format("{} has more than one cable", name(end)));
        }
      }
      const int a = top(cable.a), b = top(cable.b);
      if (a == b) refuse(fmt::format("there is a cycle through {}", name(cable.a)));
      root[static_cast<std::size_t>(a)] = b;
    }
    for (std::size_t m = 0; m < machines; ++m) {
      if (top(static_cast<int>(m)) != top(0)) {
        refuse(fmt::format("nothing connects {} with {}", name(0), name(static_cast<int>(m))));
      }
    }
  }

  const Topology& t_;
  Fabric fabric_;
  std::map<int, int> index_;  // machine by node
  int next_switch_ = 0;
  std::map<std::pair<int, int>, std::pair<double, double>> rates_;  // by ends, the smaller first
};

/// A token bucket on the sending end of one direction. (netem, which could delay, is not in every
/// kernel.)
std::string shape(const std::string& device, double bytes_per_s, const CableOptions& options) {
  const double burst = std::max(kSmallestBurst, bytes_per_s * kBurstSeconds);
  return fmt::format("qdisc replace dev {} root tbf rate {:.0f}bit burst {:.0f} limit {}\n", device,
                     bytes_per_s * 8, burst, options.queue_bytes);
}

}  // namespace

std::string Fabric::address(int host, int network) const {
  return address_in(network, static_cast<std::size_t>(host));
}

double Fabric::rate(int from_host, int to_host) const {
  // Flood from `from_host`, carrying the slowest rate so far; the tree has one way to each machine.
  const std::size_t machines = hosts.size() + static_cast<std::size_t>(num_switches);
  std::vector<double> slowest(machines, 0);
  slowest[static_cast<std::size_t>(from_host)] = std::numeric_limits<double>::infinity();
  for (std::size_t round = 0; round < machines; ++round) {
    for (const Cable& c : cables) {
      const auto a = static_cast<std::size_t>(c.a), b = static_cast<std::size_t>(c.b);
      if (slowest[a] > 0 && slowest[b] == 0) {
        slowest[b] = std::min(slowest[a], c.there_bytes_per_s);
      } else if (slowest[b] > 0 && slowest[a] == 0) {
        slowest[a] = std::min(slowest[b], c.back_bytes_per_s);
      }
    }
  }
  return slowest[static_cast<std::size_t>(to_host)];
}

std::vector<int> Fabric::ranks_on(int host) const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
    if (host_of_rank[r] == host) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

Fabric fabric_of(const Topology& topology) { return Builder(topology).build(); }

std::string host_interface(int network) { return fmt::format("net{}", network); }

Topology reordered(Topology topology, const std::vector<int>& order) {
  if (order.empty()) return topology;
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> all(topology.rank_nodes.size());
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) {
    throw InputError(fmt::format("order {} is no permutation of the {} ranks of '{}'",
                                 fmt::join(order, ","), all.size(), topology.name));
  }
  const std::vector<int> nodes = topology.rank_nodes;
  for (std::size_t r = 0; r < order.size(); ++r) {
    topology.rank_nodes[r] = nodes[static_cast<std::size_t>(order[r])];
  }
  return topology;
}

namespace {

/// Switches, cables and addresses of one of the networks that join the hosts.
class NetworkBatches {
 public:
  NetworkBatches(const Fabric& fabric, int network, const std::vector<int>& keepers,
                 const CableOptions& options)
      : fabric_(fabric),
        network_(network),
        share_(options.shares[static_cast<std::size_t>(network)]),
        suffix_(network == 0 ? std::string() : fmt::format("n{}", network)),
        host_end_(host_interface(network)),
        keepers_(keepers),
        options_(options) {}

  void add_to(Batches& batches) const {
    for (std::size_t h = 0; h < fabric_.hosts.size(); ++h) {
      batches.addresses[h] +=
          fmt::format("addr add {}/24 dev {}\nlink set {} up\n",
                      fabric_.address(static_cast<int>(h), network_), host_end_, host_end_);
    }
    for (int s = 0; s < fabric_.num_switches; ++s) {
      const std::string name = switch_name(num_hosts() + s);
      batches.links +=
          fmt::format("link add {} mtu {} type bridge mcast_snooping 0\nlink set {} up\n", name,
                      options_.mtu, name);
    }
    for (std::size_t i = 0; i < fabric_.cables.size(); ++i) add_cable(batches, i);
  }

 private:
  [[nodiscard]] int num_hosts() const { return static_cast<int>(fabric_.hosts.size()); }
  [[nodiscard]] std::string switch_name(int machine) const {
    return fmt::format("sw{}{}", machine - num_hosts(), suffix_);
  }

  void add_cable(Batches& batches, std::size_t index) const {
    const Fabric::Cable& cable = fabric_.cables[index];
    const double there = share_ * cable.there_bytes_per_s;
    const double back = share_ * cable.back_bytes_per_s;
    const std::string near = fmt::format("cable{}{}", index, suffix_);
    const bool to_host = cable.a < num_hosts();
    const std::string far = to_host ? host_end_ : near + "b";
    batches.links += fmt::format("link add {} mtu {} type veth peer name {} mtu {}", near,
                                 options_.mtu, far, options_.mtu);
    if (to_host) {
      const auto host = static_cast<std::size_t>(cable.a);
      batches.links += fmt::format(" netns {}", keepers_[host]);
      batches.host_rates[host] += shape(far, there, options_);
      // The switch's end sends to the host: the way back.
      batches.switch_rates += shape(near, back, options_);
    } else {
      batches.links += fmt::format("\nlink set {} master {} up", far, switch_name(cable.b));
      batches.switch_rates += shape(near, there, options_);
      batches.switch_rates += shape(far, back, options_);
    }
    batches.links +=
        fmt::format("\nlink set {} master {} up\n", near, switch_name(to_host ? cable.b : cable.a));
  }

  const Fabric& fabric_;
  const int network_;
  const double share_;
  const std::string suffix_;
  const std::string host_end_;
  const std::vector<int>& keepers_;
  const CableOptions& options_;
};

}  // namespace

Batches batches_for(const Fabric& fabric, const std::vector<int>& keepers,
                    const CableOptions& options) {
  Batches batches;
  batches.addresses.assign(fabric.hosts.size(), "link set lo up\n");
  batches.host_rates.resize(fabric.hosts.size());
  for (std::size_t network = 0; network < options.shares.size(); ++network) {
    NetworkBatches(fabric, static_cast<int>(network), keepers, options).add_to(batches);
  }
  return batches;
}

double payload_share(int mtu) {
  constexpr int kIpAndTcp = 20 + 32;  // TCP with time stamps
  constexpr int kEthernet = 14;
  return static_cast<double>(mtu - kIpAndTcp) / (mtu + kEthernet);
}

}  // namespace chorus::perf
