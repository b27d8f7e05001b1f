#include "runtime/probing/networks.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/blob.hpp"
#include "chorus/error.hpp"
#include "topology/probing/probed_network.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus {

std::vector<std::byte> interfaces_told(std::span<const Rail> rails) {
  BlobWriter blob;
  blob.u32(static_cast<std::uint32_t>(rails.size()));
  for (const Rail& rail : rails) {
    blob.text(rail.network());
    blob.text(rail.address.ip_text());
  }
  return {blob.view().begin(), blob.view().end()};
}

std::vector<HostNetwork> networks_of(std::span<const std::span<const std::byte>> told) {
  std::map<std::string, std::vector<int>> further;
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
      const std::string network = blob.text();
      const std::string address = blob.text();
      if (i == 0) {
        first.insert(network);
        continue;
      }
      std::vector<int>& hosts = further[network];
      clear = clear && (hosts.empty() || hosts.back() != static_cast<int>(host)) &&
              addresses[network].insert(address).second;
      hosts.push_back(static_cast<int>(host));
    }
    if (!blob.ok() || !blob.at_end()) {
      throw BootstrapError("a host tells of its interfaces what makes no sense");
    }
  }
  HostNetwork all{.name = {}, .hosts = std::vector<int>(told.size())};
  std::iota(all.hosts.begin(), all.hosts.end(), 0);
  std::vector<HostNetwork> networks = {std::move(all)};
  for (auto& [name, hosts] : further) {
    if (hosts.size() < 2) continue;  // leads to none of the others
    clear = clear && !first.contains(name);
    networks.push_back({name, std::move(hosts)});
  }
  if (!clear || networks.size() < 2 || networks.size() > probing::kMostNetworks) return {};
  return networks;
}

}  // namespace chorus
