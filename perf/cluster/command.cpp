#include "perf/cluster/command.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/files/files.hpp"
#include "model/json/json.hpp"
#include "perf/cluster/show.hpp"
#include "perf/cluster/start.hpp"
#include "perf/cluster/stream.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::perf {
namespace {

constexpr double kTolerance = 0.10;

int check(const Cluster& cluster) {
  fmt::print("{:<18} {:>14} {:>14} {:>8}\n", "stream", "payload limit", "measured", "share");
  const std::vector<CableCheck> checks = check_cables(cluster, 0.5);
  for (const CableCheck& c : checks) {
    std::string stream = fmt::format("host{} to host{}", c.from, c.to);
    if (cluster.fabric().num_networks > 1) stream += " " + host_interface(c.network);
    fmt::print("{:<18} {:>9.1f} MB/s {:>9.1f} MB/s {:>7.1f}%\n", stream,
               c.expected_bytes_per_s * 1e-6, c.measured_bytes_per_s * 1e-6,
               100 * c.measured_bytes_per_s / c.expected_bytes_per_s);
  }
  return worst_deviation(checks) <= kTolerance ? 0 : 1;
}

int run(const Cluster& cluster, const ClusterOptions& options) {
  std::vector<Command> commands;
  switch (options.launcher) {
    case ClusterOptions::Launcher::ranks:
      commands = rank_commands(cluster, options.program, {});
      break;
    case ClusterOptions::Launcher::openmpi:
      commands = {openmpi_command(cluster, {}, options.program, {})};
      break;
    case ClusterOptions::Launcher::mpich:
      commands = {mpich_command(cluster, {}, options.program, {})};
      break;
  }
  std::vector<std::string> names = {options.program.front()};
  if (commands.size() > 1) names.clear();
  while (names.size() < commands.size()) names.push_back(fmt::format("rank {}", names.size()));
  return run_to_end(std::move(commands), names);
}

int show(const ClusterOptions& options) {
  const Topology topology = cluster_topology(options.topology, options.order);
  if (!options.json.empty()) {
    write_output(options.json, to_json(topology));
    if (one_is_standard_output({options.json})) return 0;
  }
  fmt::print("{}", described(topology, cluster_fabric(options.topology, options.order)));
  return 0;
}

int hold(const Cluster& cluster) {
  fmt::print(
      "The cluster stands until this program ends (Ctrl-C). To run a command on a host:\n\n");
  fmt::print("  export {}={}\n  {} host0 COMMAND...\n\n", kHostsVariable, cluster.hosts_file(),
             enter_program());
  for (std::size_t h = 0; h < cluster.fabric().hosts.size(); ++h) {
    const Fabric::Host& host = cluster.fabric().hosts[h];
    fmt::print("  host{:<4} {:<14} {} in the topology, ranks {}\n", h, host.address, host.name,
               fmt::join(cluster.fabric().ranks_on(static_cast<int>(h)), ", "));
  }
  std::fflush(stdout);
  for (;;) {
    throw_if_stopped();
    ::poll(nullptr, 0, 1000);
  }
}

}  // namespace

std::string cluster_name(const std::string& name) {
  constexpr std::string_view kRandom = "random:";
  if (!name.starts_with(kRandom) || std::filesystem::is_regular_file(name)) return name;
  return "random-lan:" + name.substr(kRandom.size());
}

std::vector<std::string> cluster_names(const std::string& name) {
  constexpr int kMostSeeds = 1000;
  const std::size_t colon = name.find(':'), dots = name.find("..");
  const std::string kind = name.substr(0, colon);
  if ((kind != "random" && kind != "random-lan") || dots == name.npos ||
      std::filesystem::is_regular_file(name)) {
    return {name};
  }
  const std::size_t comma = std::min(name.find(','), name.size());
  const auto number = [&](std::size_t begin, std::size_t end) {
    int value = 0;
    const auto [rest, error] = std::from_chars(name.data() + begin, name.data() + end, value);
    if (error == std::errc() && rest == name.data() + end && value > 0) return value;
    throw InputError(
        fmt::format("cluster \"{}\", column {}: expected a seed from 1 on, as in random:1..30",
                    name, begin + 1));
  };
  if (dots > comma || dots < colon) return {name};
  const int first = number(colon + 1, dots), last = number(dots + 2, comma);
  if (last < first || last - first >= kMostSeeds) {
    throw InputError(
        fmt::format("cluster \"{}\", column {}: the last seed must be from {} to {}, not {}", name,
                    dots + 3, first, first + kMostSeeds - 1, last));
  }
  std::vector<std::string> names;
  for (int seed = first; seed <= last; ++seed) {
    names.push_back(fmt::format("{}:{}{}", kind, seed, name.substr(comma)));
  }
  return names;
}

Topology cluster_topology(const std::string& name, const std::vector<int>& order) {
  if (!std::filesystem::is_regular_file(name)) {
    return reordered(spanned(topology_from_name(cluster_name(name))), order);
  }
  std::ifstream file(name, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw InputError(fmt::format("{}: cannot be read", name));
  return reordered(spanned(topology_from_json(text, name)), order);
}

Fabric cluster_fabric(const std::string& name, const std::vector<int>& order) {
  const bool is_file = std::filesystem::is_regular_file(name);
  return fabric_of(cluster_topology(name, order),
                   is_file ? std::vector<double>{1} : cable_shares(cluster_name(name)));
}

int cluster_command(const ClusterOptions& options) {
  if (options.action == ClusterOptions::Action::show) return show(options);
  const Cluster cluster(cluster_fabric(options.topology, options.order), options.cables);
  switch (options.action) {
    case ClusterOptions::Action::check:
      return check(cluster);
    case ClusterOptions::Action::run:
      return run(cluster, options);
    case ClusterOptions::Action::hold:
      return hold(cluster);
    case ClusterOptions::Action::show:
      break;  // needs no cluster
  }
  return 0;
}

}  // namespace chorus::perf
