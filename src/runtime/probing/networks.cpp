#include "runtime/probing/networks.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/blob.hpp"
#include "chorus/error.hpp"
#include "topology/probing/probed_network.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus {

using probing::HostNetwork;

std::vector<Rail> tcp_interfaces(const Control& control, const Options& options) {
  const bool named = !options.interface_name.empty();
  return resolve_rails(named ? options.interface_name : control.local_address(), !named);
}

std::vector<std::byte> interfaces_told(std::span<const Rail> rails) {
  BlobWriter blob;
  blob.u32(static_cast<std::uint32_t>(rails.size()));
  for (const Rail& rail : rails) {
    blob.text(rail.interface);
    blob.text(rail.network());
    blob.text(rail.address.ip_text());
  }
  return {blob.view().begin(), blob.view().end()};
}

std::vector<HostNetwork> networks_of(std::span<const std::span<const std::byte>> told) {
  std::vector<HostNetwork> networks(1);  // the one of the first addresses
  std::map<std::string, std::set<std::string>> addresses;
  std::set<std::string> first;
  bool clear = true;
  for (std::size_t host = 0; host < told.size(); ++host) {
    BlobReader blob(told[host]);
    const std::uint32_t count = blob.u32();
    if (count > static_cast<std::uint32_t>(kMaxTcpRails)) {
      throw BootstrapError("a host tells of more interfaces than are used");
    }
    for (std::uint32_t i = 0; i < count && blob.ok(); ++i) {
      const std::string interface = blob.text();
      const std::string name = blob.text();
      const std::string address = blob.text();
      if (i == 0) first.insert(name);
      auto network = i == 0 ? networks.begin()
                            : std::find_if(networks.begin() + 1, networks.end(),
                                           [&](const auto& known) { return known.name == name; });
      if (network == networks.end()) {
        network = networks.emplace(network);
        network->name = name;
      }
      if (i > 0) {
        clear = clear &&
                (network->hosts.empty() || network->hosts.back() != static_cast<int>(host)) &&
                addresses[name].insert(address).second;
      }
      network->hosts.push_back(static_cast<int>(host));
      network->interfaces.push_back(interface);
    }
    if (!blob.ok() || !blob.at_end()) {
      throw BootstrapError("a host tells of its interfaces what makes no sense");
    }
  }
  // Leads to none of the others.
  std::erase_if(networks, [](const HostNetwork& network) { return network.hosts.size() < 2; });
  clear = clear && !networks.empty() && networks.front().hosts.size() == told.size() &&
          std::ranges::none_of(networks,
                               [&](const auto& network) { return first.contains(network.name); });
  if (!clear || networks.size() < 2 || networks.size() > probing::kMostNetworks) return {};
  return networks;
}

}  // namespace chorus
