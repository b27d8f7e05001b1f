// chorus probe: measure the network between the hosts of a job, and write down how it is wired.
#include "runtime/probing/probe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/counted.hpp"
#include "base/files/files.hpp"
#include "base/text/log.hpp"
#include "base/text/printable.hpp"
#include "base/text/progress.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/draw/draw.hpp"
#include "model/json/json.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/host/assumed_topology.hpp"
#include "runtime/host/host_probe.hpp"
#include "runtime/host/probe_cache.hpp"
#include "topology/probing/fit.hpp"

namespace chorus {
namespace {

using probing::HostTree;

struct ProbeArguments {
  std::string output;
  std::string svg;
  std::string compare;
  int budget_ms = 20'000;
  bool json = false;
  bool cached = false;
  bool keep = true;
  bool host = false;
};

/// What a probe of one host is: nothing was measured, and what is written is what a job assumes.
Probed unprobed(Communicator::Impl& impl) {
  const HostList hosts = hosts_of(*impl.connections);
  Probed result;
  result.network.hosts = hosts.names;
  result.parts = hosts.parts;
  result.topology =
      assumed_topology(impl.connections->members(), impl.connections->hosts_share_memory());
  return result;
}

bool was_measured(const Probed& probed) { return probed.parts.size() > 1; }

// What crossed a limit in all, bytes.
struct Traffic {
  std::vector<std::uint64_t> out, in;  // by host
  std::vector<std::uint64_t> group_out, group_in;
};

Traffic traffic_of(const Probed& probed) {
  const HostTree& tree = probed.network.tree;
  Traffic traffic;
  traffic.out.resize(probed.network.hosts.size());
  traffic.in.resize(probed.network.hosts.size());
  traffic.group_out.resize(tree.groups.size());
  traffic.group_in.resize(tree.groups.size());
  for (std::size_t e = 0; e < probed.measured.size(); ++e) {
    for (const probing::Limit& limit : limits_of(tree, probed.measured[e].flows)) {
      std::uint64_t sum = 0;
      for (const int f : limit.flows) sum += probed.measured_bytes[e][static_cast<std::size_t>(f)];
      const auto i = static_cast<std::size_t>(limit.index);
      if (limit.kind == probing::Limit::Kind::host_out) traffic.out[i] += sum;
      if (limit.kind == probing::Limit::Kind::host_in) traffic.in[i] += sum;
      if (limit.kind == probing::Limit::Kind::group_out) traffic.group_out[i] += sum;
      if (limit.kind == probing::Limit::Kind::group_in) traffic.group_in[i] += sum;
    }
  }
  return traffic;
}

std::string report_json(const Probed& probed, const std::string& complaint) {
  const probing::ProbedNetwork& network = probed.network;
  const Traffic traffic = traffic_of(probed);
  nlohmann::ordered_json json;
  json["format"] = "chorus-probe-report";
  json["version"] = 1;
  json["seconds"] = probed.seconds;
  json["cached"] = probed.cached;
  json["measured_at_s"] = network.measured_at_s;
  json["experiments"] = probed.experiments;
  json["bytes"] = probed.bytes;
  json["misfit"] = probing::misfit(network.tree, probed.measured);
  for (std::size_t h = 0; h < network.hosts.size(); ++h) {
    nlohmann::ordered_json host = {{"name", network.hosts[h]}, {"ranks", probed.parts[h].ranks}};
    if (was_measured(probed)) {
      host.update({{"out_bytes_per_s", network.tree.out[h]},
                   {"in_bytes_per_s", network.tree.in[h]},
                   {"alpha_s", network.cable_alpha_s[h]},
                   {"bytes_out", traffic.out[h]},
                   {"bytes_in", traffic.in[h]}});
    }
    json["hosts"].push_back(std::move(host));
  }
  json["trunks"] = nlohmann::ordered_json::array();
  for (std::size_t g = 0; g < network.tree.groups.size(); ++g) {
    const HostTree::Group& group = network.tree.groups[g];
    std::vector<std::string> names;
    for (const int host : group.hosts)
      names.push_back(network.hosts[static_cast<std::size_t>(host)]);
    json["trunks"].push_back({{"hosts", names},
                              {"out_bytes_per_s", group.out},
                              {"in_bytes_per_s", group.in},
                              {"alpha_s", network.trunk_alpha_s[g]},
                              {"bytes_out", traffic.group_out[g]},
                              {"bytes_in", traffic.group_in[g]}});
  }
  json["core_bytes_per_s"] = network.tree.core;
  json["networks"] = nlohmann::ordered_json::array();
  for (const probing::ProbedNetwork& further : network.further) {
    nlohmann::ordered_json one = {{"name", further.name}};
    for (std::size_t h = 0; h < further.hosts.size(); ++h) {
      one["hosts"].push_back({{"name", further.hosts[h]},
                              {"out_bytes_per_s", further.tree.out[h]},
                              {"in_bytes_per_s", further.tree.in[h]}});
    }
    one["trunks"] = nlohmann::ordered_json::array();
    for (const HostTree::Group& group : further.tree.groups) {
      std::vector<std::string> names;
      for (const int host : group.hosts) {
        names.push_back(further.hosts[static_cast<std::size_t>(host)]);
      }
      one["trunks"].push_back(
          {{"hosts", names}, {"out_bytes_per_s", group.out}, {"in_bytes_per_s", group.in}});
    }
    json["networks"].push_back(std::move(one));
  }
  json["measured"] = nlohmann::ordered_json::array();
  for (std::size_t e = 0; e < probed.measured.size(); ++e) {
    nlohmann::ordered_json flows;
    for (std::size_t f = 0; f < probed.measured[e].flows.size(); ++f) {
      flows.push_back({probed.measured[e].flows[f].src, probed.measured[e].flows[f].dst,
                       probed.measured[e].bytes_per_s[f]});
    }
    json["measured"].push_back(flows);
  }
  json["disagreement"] = complaint;
  return json.dump(1) + "\n";
}

std::string report_text(const Probed& probed) {
  const Traffic traffic = traffic_of(probed);
  std::uint64_t most = 0;
  for (const auto* list : {&traffic.group_out, &traffic.group_in}) {
    for (const std::uint64_t bytes : *list) most = std::max(most, bytes);
  }
  std::string text = fmt::format("{}, {}", counted(std::ssize(probed.network.hosts), "host"),
                                 counted(probed.topology.world_size(), "rank"));
  if (!was_measured(probed)) {
    return text +
           ": there is no network between hosts to probe, and nothing was measured\n"
           "(all figures of the topology are from tables; start ranks on several hosts)\n";
  }
  if (probed.cached) {
    const auto now = static_cast<std::int64_t>(std::time(nullptr));
    text += fmt::format(", probed {} s ago\n", now - probed.network.measured_at_s);
  } else {
    text += fmt::format(", probed in {:.2f} s by {} with {:.1f} MB in all", probed.seconds,
                        counted(probed.experiments, "experiment"),
                        static_cast<double>(probed.bytes) * 1e-6);
    if (most > 0)
      text += fmt::format(", at most {:.1f} MB over one trunk", static_cast<double>(most) * 1e-6);
    text += "\n";
  }
  return text + probing::describe(probed.network);
}

Probed probe_several(Communicator::Impl& impl, const ProbeArguments& arguments) {
  std::optional<Progress> bar;
  if (impl.place.rank == 0) bar.emplace(stderr, "chorus probe", Progress::Eta::none);
  const HostList hosts = hosts_of(*impl.connections);
  Probed known = recall_network(*impl.control, impl.place, impl.options, hosts, arguments.cached);
  if (known.cached) return known;
  return measure_network(*impl.control, impl.place, impl.options, impl.layout, hosts,
                         {.budget_ms = arguments.budget_ms,
                          .write_cache = arguments.keep,
                          .progress =
                              [&](int done, int total, const std::string& phase) {
                                if (bar) bar->show(done, total, phase);
                              }},
                         std::move(known));
}

/// What an earlier probe of this machine kept, as it was kept: jobs ask whether it still holds,
/// whoever wants to see it does not.
HostRates recall_host(const Options& options) {
  return find_host_rates(options.host_probe, options.probe_cache,
                         [](const HostRates::Pair& kept) { return kept.line_s; });
}

/// The cores of this machine, and nothing of a job.
void run_host_probe(const ProbeArguments& arguments, const Options& options) {
  if (!arguments.output.empty()) require_writable(arguments.output);
  const HostRates rates = arguments.cached ? recall_host(options) : probe_host();
  if (!rates.is_measured()) {
    throw TopologyError(
        "nothing of this machine could be measured: it takes two cores that this process may run "
        "on (taskset, cpuset), and 40 MiB of memory");
  }
  if (arguments.keep && !arguments.cached) save_host_rates(options.probe_cache, rates);
  if (arguments.output != "-") print(arguments.json ? to_json(rates) : describe(rates));
  if (!arguments.output.empty()) write_output(arguments.output, to_json(rates));
}

void run_probe(const ProbeArguments& arguments, int& exit_code) {
  Options options = Options::from_env();
  if (arguments.host) return run_host_probe(arguments, options);
  options.probe_ms = 0;  // below, and with questions of its own
  options.synthesis_ms = 0;
  options.topology_file.clear();
  options.plan_file.clear();
  std::optional<Topology> declared;
  // What cannot be used is said before the others know this rank: what they would report of its end
  // is not the cause.
  const Rank rank = Launch::from_env().rank;
  if (rank == 0) {
    if (!arguments.compare.empty()) declared = topology_from_argument(arguments.compare);
    for (const std::string& path : {arguments.output, arguments.svg}) {
      if (!path.empty()) require_writable(path);
    }
  }
  const auto joined = Communicator::Impl::join(options);
  Communicator::Impl& impl = *joined;
  const bool several = hosts_of(*impl.connections).parts.size() > 1;
  if (declared && !several) {
    throw InputError("--compare: the job has one host, so nothing is measured to compare with");
  }
  const Probed probed = several ? probe_several(impl, arguments) : unprobed(impl);
  if (rank != 0) return;
  std::string complaint;
  if (declared) {
    complaint = disagreement(*declared, probed.topology, probed.parts, probed.network.hosts);
  }
  const std::string report = arguments.json ? report_json(probed, complaint) : report_text(probed);
  if (one_is_standard_output({arguments.output, arguments.svg})) {
    fmt::print(stderr, "{}", printable(report));
  } else {
    print(report);
  }
  if (!arguments.output.empty()) write_output(arguments.output, to_json(probed.topology));
  if (!arguments.svg.empty()) draw_svg(probed.topology, arguments.svg);
  if (complaint.empty()) return;
  log(LogLevel::error, {},
      fmt::format("{} is not what was measured: {}", arguments.compare, complaint));
  exit_code = exit_fault_found;
}

}  // namespace

void add_probe(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ProbeArguments>();
  CLI::App* command = app.add_subcommand(
      "probe", "Measure the network between the hosts of a job: islands, trunks, slow hosts");
  command->add_option(
      "-o,--output", arguments->output,
      "Write the topology here (- for standard output), for CHORUS_TOPOLOGY and chorus synth");
  command->add_option("--svg", arguments->svg, "Draw it to this file (- for standard output)");
  command
      ->add_option("--compare", arguments->compare,
                   "Compare with this declared topology: exit with 1 if it is wrong, and say where")
      ->type_name("SOURCE");
  command->add_option("--budget-ms", arguments->budget_ms, "Stop measuring after this long")
      ->check(CLI::Range(1, 3'600'000))
      ->capture_default_str();
  CLI::Option* const host =
      command->add_flag("--host", arguments->host,
                        "Measure the cores of this machine instead: how fast they signal each "
                        "other and copy; -o writes it for CHORUS_HOST_PROBE");
  for (const char* other : {"--svg", "--compare", "--budget-ms"}) {
    host->excludes(command->get_option(other));
  }
  command->add_flag("--cached", arguments->cached,
                    "Use what an earlier probe found, if there is one");
  command->add_flag("!--no-cache", arguments->keep, "Do not cache the result");
  command->add_flag("--json", arguments->json, "Print figures, traffic and every measurement");
  command->footer(
      "Started as the ranks of a job; rank 0 writes. Examples:\n"
      "  mpirun --host a,b,c,d chorus probe -o cluster.json --svg cluster.svg\n"
      "  srun chorus probe --compare cluster.json\n"
      "  chorus-perf cluster run pairs -- chorus probe\n"
      "  chorus probe --host");
  command->callback([arguments, &exit_code] { run_probe(*arguments, exit_code); });
}

}  // namespace chorus
