#include "runtime/host/host_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "base/blob.hpp"
#include "chorus/error.hpp"
#include "runtime/host/host_probe.hpp"
#include "runtime/host/probe_cache.hpp"
#include "topology/discover/discovered_host.hpp"

namespace chorus {
namespace {

bool is_first_of_host(const std::vector<Member>& members, std::size_t rank) {
  return std::ranges::find(members, members[rank].host, &Member::host) ==
         members.begin() + static_cast<std::ptrdiff_t>(rank);
}

int adapter_numa(const DiscoveredHost& host, const std::string& local_address) {
  const std::string identity = interface_identity(local_address);  // "eth0 52:54:…"
  return numa_of_interface(host, identity.substr(0, identity.find(' ')));
}

void read_places(BlobReader& blob, std::vector<Member>& members, std::size_t first) {
  const auto adapter = static_cast<int>(blob.u32()) - 1;
  const auto bytes = blob.bytes();
  std::size_t at = 0;
  for (std::size_t r = first; r < members.size(); ++r) {
    if (members[r].host != members[first].host) continue;
    members[r].adapter_numa = adapter;
    if (at + sizeof(CpuPlace) > bytes.size()) continue;
    std::memcpy(&members[r].place, bytes.data() + at, sizeof(CpuPlace));
    at += sizeof(CpuPlace);
  }
  const std::size_t ranks =
      static_cast<std::size_t>(std::ranges::count(members, members[first].host, &Member::host));
  if (!blob.ok() || !blob.at_end() || bytes.size() != ranks * sizeof(CpuPlace)) {
    throw BootstrapError(fmt::format("rank {} sent a malformed list of places", first));
  }
}

}  // namespace

std::vector<std::byte> machine_facts(const std::vector<Member>& members, Rank rank,
                                     const std::string& local_address, const Options& options) {
  const auto own = static_cast<std::size_t>(rank);
  const bool of_machine = members[own].neighbor == rank;
  if (!of_machine && !is_first_of_host(members, own)) return {};
  BlobWriter blob;
  std::string rates;
  if (of_machine) {
    const HostRates found = find_host_rates(options.host_probe, options.probe_cache);
    if (found.is_measured()) rates = to_json(found);
  }
  blob.text(rates);
  std::vector<int> units;
  for (const Member& member : members) {
    if (member.host == members[own].host) {
      units.insert(units.end(), member.units.begin(), member.units.end());
    }
  }
  const DiscoveredHost host = find_discovered_host(options.host_probe, options.probe_cache, units);
  blob.u32(static_cast<std::uint32_t>(adapter_numa(host, local_address) + 1));
  std::vector<CpuPlace> places;
  for (const Member& member : members) {
    if (member.host == members[own].host) places.push_back(place_of(host, member.units));
  }
  blob.bytes(std::as_bytes(std::span(places)));
  const auto view = blob.view();
  return {view.begin(), view.end()};
}

void learn(std::vector<Member>& members, std::span<const std::span<const std::byte>> said) {
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (said[r].empty()) continue;
    BlobReader blob(said[r]);
    const std::string rates = blob.text();
    if (!rates.empty() && members[r].neighbor == static_cast<Rank>(r)) {
      try {
        const auto known = std::make_shared<const HostRates>(
            host_rates_from_json(rates, fmt::format("rank {}'s machine", r)));
        for (Member& member : members) {
          if (member.neighbor == static_cast<Rank>(r)) member.rates = known;
        }
      } catch (const InputError& error) {
        throw BootstrapError(error.what());
      }
    }
    if (is_first_of_host(members, r)) read_places(blob, members, r);
  }
}

}  // namespace chorus
