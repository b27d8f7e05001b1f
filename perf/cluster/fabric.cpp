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
            {t_.nodes[static_cast<std::size_t>(machine)].name, fmt::format("10.231.7.{}", i + 1)});
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

Batches batches_for(const Fabric& fabric, const std::vector<int>& keepers,
                    const CableOptions& options) {
  const int hosts = static_cast<int>(fabric.hosts.size());
  const auto switch_name = [&](int machine) { return fmt::format("sw{}", machine - hosts); };
  Batches batches;
  batches.host_rates.resize(fabric.hosts.size());
  for (const Fabric::Host& host : fabric.hosts) {
    batches.addresses.push_back(
        fmt::format("link set lo up\naddr add {}/24 dev {}\nlink set {} up\n", host.address,
                    kHostInterface, kHostInterface));
  }
  for (int s = 0; s < fabric.num_switches; ++s) {
    const std::string name = switch_name(hosts + s);
    batches.links +=
        fmt::format("link add {} mtu {} type bridge mcast_snooping 0\nlink set {} up\n", name,
                    options.mtu, name);
  }
  for (std::size_t i = 0; i < fabric.cables.size(); ++i) {
    const Fabric::Cable& cable = fabric.cables[i];
    const std::string near = fmt::format("cable{}", i);
    const bool to_host = cable.a < hosts;
    const std::string far = to_host ? kHostInterface : near + "b";
    batches.links += fmt::format("link add {} mtu {} type veth peer name {} mtu {}", near,
                                 options.mtu, far, options.mtu);
    if (to_host) {
      batches.links += fmt::format(" netns {}", keepers[static_cast<std::size_t>(cable.a)]);
      batches.host_rates[static_cast<std::size_t>(cable.a)] +=
          shape(far, cable.there_bytes_per_s, options);
      // The switch's end sends to the host: the way back.
      batches.switch_rates += shape(near, cable.back_bytes_per_s, options);
    } else {
      batches.links += fmt::format("\nlink set {} master {} up", far, switch_name(cable.b));
      batches.switch_rates += shape(near, cable.there_bytes_per_s, options);
      batches.switch_rates += shape(far, cable.back_bytes_per_s, options);
    }
    batches.links +=
        fmt::format("\nlink set {} master {} up\n", near, switch_name(to_host ? cable.b : cable.a));
  }
  return batches;
}

double payload_share(int mtu) {
  constexpr int kIpAndTcp = 20 + 32;  // TCP with time stamps
  constexpr int kEthernet = 14;
  return static_cast<double>(mtu - kIpAndTcp) / (mtu + kEthernet);
}

}  // namespace chorus::perf
