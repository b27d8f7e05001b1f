#include "runtime/host/probe_cache.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/files/draft.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/json/reader.hpp"

namespace chorus {
namespace {

constexpr int kVersion = 2;
constexpr std::size_t kMostHosts = 4096;
constexpr std::uint64_t kLatestTime = std::uint64_t{1} << 40;

std::string list(const std::vector<double>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

/// Bytes per second.
double rate(const json::Node& node) {
  const double value = node.figure();
  if (value < 1) node.fail("a rate is at least 1 byte per second");
  return value;
}

double latency(const json::Node& node) { return node.figure(kMostLinkSeconds); }

std::vector<double> figures(const json::Node& node, std::size_t count,
                            double (*read)(const json::Node&)) {
  if (node.size() != count) node.fail(fmt::format("must have {} figures", count));
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(read(node.item(i)));
  return values;
}

probing::HostTree::Group group_from(const json::Node& node, std::size_t hosts) {
  node.expect_members({"hosts", "out_bytes_per_s", "in_bytes_per_s"});
  probing::HostTree::Group group;
  const json::Node members = node.member("hosts");
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int host = members.item(i).integer(0, static_cast<int>(hosts) - 1);
    if (!group.hosts.empty() && host <= group.hosts.back()) members.fail("must be ascending");
    group.hosts.push_back(host);
  }
  if (group.hosts.empty() || 2 * group.hosts.size() > hosts) {
    members.fail("a group holds at least one host and at most half of all");
  }
  group.out = rate(node.member("out_bytes_per_s"));
  group.in = rate(node.member("in_bytes_per_s"));
  return group;
}

void expect_nested(const json::Node& node, const std::vector<probing::HostTree::Group>& groups) {
  for (const auto& a : groups) {
    for (const auto& b : groups) {
      std::vector<int> both;
      std::set_intersection(a.hosts.begin(), a.hosts.end(), b.hosts.begin(), b.hosts.end(),
                            std::back_inserter(both));
      if (&a != &b && !both.empty() && both.size() != std::min(a.hosts.size(), b.hosts.size())) {
        node.fail("two groups must be disjoint, or one within the other");
      }
      if (&a != &b && a.hosts == b.hosts) node.fail("two groups have the same hosts");
    }
  }
}

/// The members that every network has.
std::string figures_text(const probing::ProbedNetwork& network) {
  const probing::HostTree& tree = network.tree;
  std::string text = "  \"hosts\": [";
  for (std::size_t h = 0; h < network.hosts.size(); ++h) {
    text += (h == 0 ? "" : ", ") + json::quote(network.hosts[h]);
  }
  text += fmt::format("],\n  \"out_bytes_per_s\": {},\n  \"in_bytes_per_s\": {},\n", list(tree.out),
                      list(tree.in));
  text += fmt::format("  \"cable_alpha_s\": {},\n  \"groups\": [", list(network.cable_alpha_s));
  for (std::size_t g = 0; g < tree.groups.size(); ++g) {
    text +=
        fmt::format("{}\n    {{\"hosts\": [{}], \"out_bytes_per_s\": {}, \"in_bytes_per_s\": {}}}",
                    g == 0 ? "" : ",", fmt::join(tree.groups[g].hosts, ", "), tree.groups[g].out,
                    tree.groups[g].in);
  }
  text += fmt::format("{}],\n  \"trunk_alpha_s\": {},\n  \"core_bytes_per_s\": {}",
                      tree.groups.empty() ? "" : "\n  ", list(network.trunk_alpha_s), tree.core);
  return text;
}

probing::ProbedNetwork figures_from(const json::Node& root) {
  probing::ProbedNetwork network;
  const json::Node hosts = root.member("hosts");
  if (hosts.size() < 1 || hosts.size() > kMostHosts) hosts.fail("must name 1 to 4096 hosts");
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const std::string name = hosts.item(h).text();
    if (name.empty() ||
        std::find(network.hosts.begin(), network.hosts.end(), name) != network.hosts.end()) {
      hosts.item(h).fail("names of hosts are not empty and distinct");
    }
    network.hosts.push_back(name);
  }
  const std::size_t n = network.hosts.size();
  network.tree.out = figures(root.member("out_bytes_per_s"), n, rate);
  network.tree.in = figures(root.member("in_bytes_per_s"), n, rate);
  network.cable_alpha_s = figures(root.member("cable_alpha_s"), n, latency);
  const json::Node groups = root.member("groups");
  if (groups.size() > n) groups.fail("more groups than hosts");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    network.tree.groups.push_back(group_from(groups.item(g), n));
  }
  expect_nested(groups, network.tree.groups);
  network.trunk_alpha_s = figures(root.member("trunk_alpha_s"), groups.size(), latency);
  const json::Node core = root.member("core_bytes_per_s");
  network.tree.core = core.figure() == 0 ? 0 : rate(core);  // 0: no limit was found
  return network;
}

probing::ProbedNetwork further_from(const json::Node& node, const probing::ProbedNetwork& all) {
  node.expect_members({"network", "hosts", "out_bytes_per_s", "in_bytes_per_s", "cable_alpha_s",
                       "groups", "trunk_alpha_s", "core_bytes_per_s"});
  probing::ProbedNetwork network = figures_from(node);
  network.name = node.member("network").text();
  network.measured_at_s = all.measured_at_s;
  const bool known = std::ranges::all_of(network.hosts, [&](const std::string& host) {
    return std::ranges::find(all.hosts, host) != all.hosts.end();
  });
  if (!known || network.hosts.size() < 2) {
    node.member("hosts").fail("must name two or more of the hosts of all");
  }
  for (const probing::ProbedNetwork& other : all.further) {
    if (other.name == network.name) node.member("network").fail("names of networks are distinct");
  }
  if (network.name.empty()) node.member("network").fail("must name the network");
  return network;
}

}  // namespace

std::string to_json(const probing::ProbedNetwork& network) {
  std::string text = fmt::format(
      "{{\n  \"format\": \"chorus-probe\",\n  \"version\": {},\n  \"measured_at_s\": {},\n{},\n"
      "  \"further\": [",
      kVersion, network.measured_at_s, figures_text(network));
  for (std::size_t n = 0; n < network.further.size(); ++n) {
    text += fmt::format("{}\n  {{\n  \"network\": {},\n{}\n  }}", n == 0 ? "" : ",",
                        json::quote(network.further[n].name), figures_text(network.further[n]));
  }
  return text + "]\n}\n";
}

probing::ProbedNetwork probed_network_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const json::Node root(value, where);
  json::expect_format(root, "chorus-probe", kVersion);
  root.expect_members({"format", "version", "measured_at_s", "hosts", "out_bytes_per_s",
                       "in_bytes_per_s", "cable_alpha_s", "groups", "trunk_alpha_s",
                       "core_bytes_per_s", "further"});
  probing::ProbedNetwork network = figures_from(root);
  network.measured_at_s =
      static_cast<std::int64_t>(root.member("measured_at_s").whole(0, kLatestTime));
  const json::Node further = root.member("further");
  if (further.size() >= probing::kMostNetworks) further.fail("too many networks");
  for (std::size_t n = 0; n < further.size(); ++n) {
    network.further.push_back(further_from(further.item(n), network));
  }
  return network;
}

std::string probe_cache_file(const std::string& directory, const std::string& key) {
  return fmt::format("{}/probe-{}.json", directory, key);
}

std::optional<probing::ProbedNetwork> load_probe(const std::string& directory,
                                                 const std::string& key, std::int64_t max_age_s,
                                                 std::int64_t now_s) {
  if (directory.empty()) return std::nullopt;
  const std::string path = probe_cache_file(directory, key);
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  try {
    probing::ProbedNetwork network = probed_network_from_json(text.str(), path);
    const std::int64_t age_s = now_s - network.measured_at_s;
    if (age_s >= 0 && age_s <= max_age_s) return network;
    log(LogLevel::info, {}, fmt::format("{} is {} s old: probing again", path, age_s));
  } catch (const InputError& error) {
    log(LogLevel::info, {}, fmt::format("{}: probing again", error.what()));
  }
  return std::nullopt;
}

void keep_in_cache(const std::string& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  // Whoever reads sees the old file or the new one, whole.
  remove_stale_drafts(path);
  const std::filesystem::path draft = draft_of(path);
  std::ofstream file(draft, std::ios::binary);
  file << text;
  file.close();
  if (file) std::filesystem::rename(draft, path, error);
  if (!file || error) {
    log(LogLevel::info, {}, fmt::format("cannot keep what was probed in {}", path));
    std::filesystem::remove(draft, error);
  }
}

void save_probe(const std::string& directory, const std::string& key,
                const probing::ProbedNetwork& network) {
  if (directory.empty()) return;
  keep_in_cache(probe_cache_file(directory, key), to_json(network));
}

void forget_probe(const std::string& directory, const std::string& key) {
  if (directory.empty()) return;
  std::error_code error;
  std::filesystem::remove(probe_cache_file(directory, key), error);
}

std::string interface_identity(const std::string& address_or_name) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return address_or_name;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(all, ::freeifaddrs);
  std::string name = address_or_name;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST] = {};
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(each->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    if (address_or_name == text) name = each->ifa_name;
  }
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_PACKET) continue;
    if (name != each->ifa_name) continue;
    const auto* link = reinterpret_cast<const sockaddr_ll*>(each->ifa_addr);
    std::string hardware;
    for (int i = 0; i < link->sll_halen && i < 8; ++i) {
      hardware += fmt::format("{}{:02x}", i == 0 ? " " : ":", link->sll_addr[i]);
    }
    return name + hardware;
  }
  return name;
}

}  // namespace chorus
