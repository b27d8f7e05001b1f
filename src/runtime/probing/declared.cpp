#include "runtime/probing/declared.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/counted.hpp"
#include "base/index.hpp"
#include "base/text/log.hpp"
#include "runtime/probing/networks.hpp"
#include "topology/probing/declared_networks.hpp"

namespace chorus {
namespace {

using probing::DeclaredNetworks;
using probing::HostNetwork;

// By declared host: the one that has its ranks. Nothing where they are placed otherwise.
std::optional<std::vector<int>> same_hosts(const DeclaredNetworks& declared,
                                           const HostList& hosts) {
  std::vector<int> numbers;
  for (const std::vector<Rank>& ranks : declared.ranks) {
    const auto part = std::ranges::find(hosts.parts, ranks, &probing::HostPart::ranks);
    if (part == hosts.parts.end()) return std::nullopt;
    numbers.push_back(part->host);
  }
  if (numbers.size() != hosts.parts.size()) return std::nullopt;
  return numbers;
}

bool all_by_tcp(const Connections& connections, Rank rank) {
  const auto& members = connections.members();
  for (std::size_t peer = 0; peer < members.size(); ++peer) {
    if (members[peer].host == members[at(rank)].host) continue;
    if (connections.transport_of(static_cast<Rank>(peer)) != "tcp") return false;
  }
  return true;
}

std::string_view printable(const std::string& network) {
  return network.empty() ? "that of the first interfaces" : std::string_view(network);
}

void tell(const DeclaredNetworks& declared, const std::optional<probing::ProbedNetwork>& named,
          const std::vector<HostNetwork>& networks, const HostList& hosts) {
  const std::string described =
      fmt::format("the topology describes {} between hosts",
                  counted(1 + std::ssize(declared.network.further), "network"));
  if (named) {
    std::string text = fmt::format("{} is {}", declared.network.name, printable(named->name));
    for (std::size_t n = 0; n < named->further.size(); ++n) {
      text += fmt::format(", {} {}", declared.network.further[n].name, named->further[n].name);
    }
    return log(LogLevel::info, "[rank 0]", fmt::format("{}: {}", described, text));
  }
  std::string text;
  for (const HostNetwork& network : networks) {
    std::vector<std::string> names;
    for (const int host : network.hosts) names.push_back(hosts.names[at(host)]);
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", printable(network.name),
                        fmt::join(names, " "));
  }
  log(LogLevel::warn, "[rank 0]",
      fmt::format("{}, but addresses make others ({}): links divide what they send as they see "
                  "fit, which may be slow. Describe what there is, or leave it to be probed",
                  described, text.empty() ? "one of all hosts" : text));
}

}  // namespace

std::optional<probing::ProbedNetwork> declared_network(Control& control, const GroupPlace& place,
                                                       const Options& options,
                                                       const Connections& connections,
                                                       const HostList& hosts,
                                                       const Topology& declared) {
  const std::optional<DeclaredNetworks> several = probing::declared_networks(declared);
  if (!several) return std::nullopt;
  std::vector<std::byte> mine;
  if (all_by_tcp(connections, place.rank)) mine = interfaces_told(tcp_interfaces(control, options));
  const Table said = control.exchange(place.key + "/interfaces", place.members, mine,
                                      options.join_timeout_ms, place.key);
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) return std::nullopt;  // another transport joins it with some host
  }
  std::vector<std::span<const std::byte>> by_host;
  for (const probing::HostPart& part : hosts.parts) by_host.emplace_back(said[at(part.ranks[0])]);
  const std::vector<HostNetwork> networks = networks_of(by_host);
  std::optional<probing::ProbedNetwork> named;
  if (const auto numbers = same_hosts(*several, hosts)) {
    named = probing::with_addresses(*several, *numbers, hosts.names, networks);
  }
  if (place.rank == 0) tell(*several, named, networks, hosts);
  return named;
}

}  // namespace chorus
