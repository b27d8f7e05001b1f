#include "perf/cluster/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "chorus/error.hpp"

namespace chorus::perf {
namespace {

constexpr std::size_t kMostHosts = 250;
constexpr int kMostNetworks = 64;
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
    fabric_.num_switches = next_switch_ - num_hosts();
    number_networks();
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

  [[nodiscard]] int num_hosts() const { return static_cast<int>(fabric_.hosts.size()); }

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
    if (b < num_hosts()) {  // two hosts back to back: a switch between them changes nothing
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

  /// Switches that trunks join are one network; those that all hosts are on come first, then in the
  /// order of their switches.
  void number_networks() {
    std::vector<int> root(static_cast<std::size_t>(num_hosts() + fabric_.num_switches));
    std::iota(root.begin(), root.end(), 0);
    const auto top = [&](int m) {
      while (root[static_cast<std::size_t>(m)] != m) m = root[static_cast<std::size_t>(m)];
      return m;
    };
    for (const Fabric::Cable& cable : fabric_.cables) {
      if (cable.a < num_hosts()) continue;
      const int a = top(cable.a), b = top(cable.b);
      if (a == b) refuse(fmt::format("there is a cycle through {}", name(cable.a)));
      root[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);
    }
    std::map<int, std::vector<int>> hosts_at;  // by the first switch of each network
    for (const Fabric::Cable& cable : fabric_.cables) {
      if (cable.a < num_hosts()) hosts_at[top(cable.b)].push_back(cable.a);
    }
    const std::map<int, int> numbers = network_numbers(hosts_at);
    for (Fabric::Cable& cable : fabric_.cables) {
      const auto found = numbers.find(top(cable.b));
      if (found == numbers.end()) refuse(fmt::format("nothing connects {}", name(cable.b)));
      cable.network = found->second;
    }
    fabric_.num_networks = static_cast<int>(numbers.size());
  }

  /// `hosts_at`: the hosts whose cables end in each network, by its first switch, ascending.
  [[nodiscard]] std::map<int, int> network_numbers(
      const std::map<int, std::vector<int>>& hosts_at) const {
    std::vector<int> order, partial;
    for (const auto& [first, hosts] : hosts_at) {
      const auto twice = std::ranges::adjacent_find(hosts);
      if (twice != hosts.end()) {
        refuse(fmt::format("{} has more than one cable into one network", name(*twice)));
      }
      const bool has_all = static_cast<int>(hosts.size()) == num_hosts();
      (has_all ? order : partial).push_back(first);
    }
    if (order.empty()) refuse(why_no_common_network(hosts_at));
    order.insert(order.end(), partial.begin(), partial.end());
    if (static_cast<int>(order.size()) > kMostNetworks) {
      refuse(fmt::format("more than {} networks", kMostNetworks));
    }
    std::map<int, int> numbers;
    for (const int first : order) numbers.emplace(first, static_cast<int>(numbers.size()));
    return numbers;
  }

  [[nodiscard]] std::string why_no_common_network(
      const std::map<int, std::vector<int>>& hosts_at) const {
    const auto with_first = std::ranges::find_if(hosts_at, [](const auto& network) {
      return std::ranges::find(network.second, 0) != network.second.end();
    });
    std::vector<int> joined;
    if (with_first != hosts_at.end()) joined = with_first->second;
    for (int host = 0; host < num_hosts(); ++host) {
      if (std::ranges::find(joined, host) != joined.end()) continue;
      if (!has_several_cables()) {
        return fmt::format("nothing connects {} with {}", name(0), name(host));
      }
      return fmt::format(
          "hosts have more than one cable, and no network has all hosts: {} meets {} only through "
          "other hosts",
          name(0), name(host));
    }
    return "it has no cable";
  }

  [[nodiscard]] bool has_several_cables() const {
    std::vector<int> count(fabric_.hosts.size(), 0);
    for (const Fabric::Cable& cable : fabric_.cables) {
      if (cable.a < num_hosts()) ++count[static_cast<std::size_t>(cable.a)];
    }
    return std::ranges::any_of(count, [](int n) { return n > 1; });
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

/// Takes the links that `unwanted` names out of the topology and of its port groups.
template <class Unwanted>
void remove_links(Topology& topology, const Unwanted& unwanted) {
  std::vector<int> number(topology.links.size(), -1);
  std::vector<Topology::Link> kept;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    if (unwanted(topology.links[i])) continue;
    number[i] = static_cast<int>(kept.size());
    kept.push_back(topology.links[i]);
  }
  topology.links = std::move(kept);
  for (Topology::PortGroup& group : topology.port_groups) {
    std::erase_if(group.links,
                  [&](int link) { return number[static_cast<std::size_t>(link)] < 0; });
    for (int& link : group.links) link = number[static_cast<std::size_t>(link)];
  }
  std::erase_if(topology.port_groups,
                [](const Topology::PortGroup& group) { return group.links.empty(); });
}

}  // namespace

std::string Fabric::address(int host, int network) const {
  return address_in(network, static_cast<std::size_t>(host));
}

bool Fabric::has_cable(int host, int network) const {
  return std::ranges::any_of(
      cables, [&](const Cable& cable) { return cable.a == host && cable.network == network; });
}

bool Fabric::is_even() const {
  const auto to_hosts = std::ranges::count_if(
      cables, [&](const Cable& cable) { return cable.a < static_cast<int>(hosts.size()); });
  return to_hosts == static_cast<std::ptrdiff_t>(hosts.size()) * num_networks;
}

double Fabric::rate(int from_host, int to_host) const {
  double sum = 0;
  for (int k = 0; k < num_networks; ++k) sum += rate(from_host, to_host, k);
  return sum;
}

double Fabric::rate(int from_host, int to_host, int network) const {
  // Flood from `from_host`, carrying the slowest rate so far; the tree has one way to each machine.
  const std::size_t machines = hosts.size() + static_cast<std::size_t>(num_switches);
  std::vector<double> slowest(machines, 0);
  slowest[static_cast<std::size_t>(from_host)] = std::numeric_limits<double>::infinity();
  for (std::size_t round = 0; round < machines; ++round) {
    for (const Cable& c : cables) {
      if (c.network != network) continue;
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

Fabric fabric_of(const Topology& topology, const std::vector<double>& shares) {
  Fabric fabric = Builder(topology).build();
  if (shares.size() == 1) return fabric;
  if (fabric.num_networks > 1) {
    throw InputError(
        fmt::format("topology '{}' has {} networks already", topology.name, fabric.num_networks));
  }
  const std::vector<Fabric::Cable> whole = std::exchange(fabric.cables, {});
  const int hosts = static_cast<int>(fabric.hosts.size()), switches = fabric.num_switches;
  for (std::size_t k = 0; k < shares.size(); ++k) {
    const int moved = static_cast<int>(k) * switches;
    for (Fabric::Cable cable : whole) {
      if (cable.a >= hosts) cable.a += moved;
      cable.b += moved;
      cable.there_bytes_per_s *= shares[k];
      cable.back_bytes_per_s *= shares[k];
      cable.network = static_cast<int>(k);
      fabric.cables.push_back(cable);
    }
  }
  fabric.num_networks = static_cast<int>(shares.size());
  fabric.num_switches = switches * fabric.num_networks;
  return fabric;
}

std::string host_interface(int network) { return fmt::format("net{}", network); }

std::string cable_name(int host, int network) {
  return network == 0 ? fmt::format("cable{}", host) : fmt::format("cable{}n{}", host, network);
}

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

Topology spanned(Topology topology) {
  // The trunks by their ends, and what they carry each way.
  std::map<std::pair<int, int>, std::pair<double, double>> trunks;
  const auto ends = [&](const Topology::Link& link) { return std::minmax(link.src, link.dst); };
  const auto is_trunk = [&](const Topology::Link& link) {
    return is_switch(topology, link.src) && is_switch(topology, link.dst);
  };
  for (const Topology::Link& link : topology.links) {
    if (!is_trunk(link)) continue;
    auto& [there, back] = trunks[ends(link)];
    (link.src < link.dst ? there : back) += 1 / link.beta_s_per_byte;
  }
  std::vector<std::pair<double, std::pair<int, int>>> order;
  for (const auto& [pair, rates] : trunks) {
    order.emplace_back(std::min(rates.first, rates.second), pair);
  }
  std::ranges::stable_sort(order, std::greater<>(), [](const auto& trunk) { return trunk.first; });
  std::vector<int> root(topology.nodes.size());
  std::iota(root.begin(), root.end(), 0);
  const auto top = [&](int node) {
    while (root[static_cast<std::size_t>(node)] != node)
      node = root[static_cast<std::size_t>(node)];
    return node;
  };
  std::set<std::pair<int, int>> blocked;
  for (const auto& [rate, pair] : order) {
    const int a = top(pair.first), b = top(pair.second);
    if (a == b) blocked.insert(pair);
    root[static_cast<std::size_t>(a)] = b;
  }
  if (blocked.empty()) return topology;
  remove_links(topology, [&](const Topology::Link& link) {
    return is_trunk(link) && blocked.contains(ends(link));
  });
  return topology;
}

namespace {

/// What is said of one machine or cable after the other.
class BatchWriter {
 public:
  BatchWriter(const Fabric& fabric, const std::vector<int>& keepers, const CableOptions& options)
      : fabric_(fabric), keepers_(keepers), options_(options) {
    batches_.addresses.assign(fabric.hosts.size(), "link set lo up\n");
    batches_.host_rates.resize(fabric.hosts.size());
  }

  Batches write() {
    for (int s = 0; s < fabric_.num_switches; ++s) {
      batches_.links +=
          fmt::format("link add sw{} mtu {} type bridge mcast_snooping 0\nlink set sw{} up\n", s,
                      options_.mtu, s);
    }
    int trunks = 0;
    for (const Fabric::Cable& cable : fabric_.cables) {
      if (cable.a < num_hosts()) {
        add_cable(cable);
      } else {
        add_trunk(cable, trunks++);
      }
    }
    return std::move(batches_);
  }

 private:
  [[nodiscard]] int num_hosts() const { return static_cast<int>(fabric_.hosts.size()); }

  void plug(const std::string& device, int machine) {
    batches_.links += fmt::format("link set {} master sw{} up\n", device, machine - num_hosts());
  }

  void limit(std::string& batch, const std::string& device, double bytes_per_s) const {
    batch += shape(device, options_.speed * bytes_per_s, options_);
  }

  void add_cable(const Fabric::Cable& cable) {
    const auto host = static_cast<std::size_t>(cable.a);
    const std::string near = cable_name(cable.a, cable.network);
    const std::string far = host_interface(cable.network);
    batches_.links += fmt::format("link add {} mtu {} type veth peer name {} mtu {} netns {}\n",
                                  near, options_.mtu, far, options_.mtu, keepers_[host]);
    plug(near, cable.b);
    batches_.addresses[host] += fmt::format("addr add {}/24 dev {}\nlink set {} up\n",
                                            fabric_.address(cable.a, cable.network), far, far);
    limit(batches_.host_rates[host], far, cable.there_bytes_per_s);
    // The switch's end sends to the host: the way back.
    limit(batches_.switch_rates, near, cable.back_bytes_per_s);
  }

  void add_trunk(const Fabric::Cable& cable, int number) {
    const std::string near = fmt::format("trunk{}", number), far = near + "b";
    batches_.links += fmt::format("link add {} mtu {} type veth peer name {} mtu {}\n", near,
                                  options_.mtu, far, options_.mtu);
    plug(near, cable.a);
    plug(far, cable.b);
    limit(batches_.switch_rates, near, cable.there_bytes_per_s);
    limit(batches_.switch_rates, far, cable.back_bytes_per_s);
  }

  const Fabric& fabric_;
  const std::vector<int>& keepers_;
  const CableOptions& options_;
  Batches batches_;
};

}  // namespace

Batches batches_for(const Fabric& fabric, const std::vector<int>& keepers,
                    const CableOptions& options) {
  return BatchWriter(fabric, keepers, options).write();
}

double payload_share(int mtu) {
  constexpr int kIpAndTcp = 20 + 32;  // TCP with time stamps
  constexpr int kEthernet = 14;
  return static_cast<double>(mtu - kIpAndTcp) / (mtu + kEthernet);
}

}  // namespace chorus::perf
