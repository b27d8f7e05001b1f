// `chorus explain`: what would run, at what predicted cost, how far from the limit, and why not the
// others.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/counted.hpp"
#include "base/text/printable.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/synth/synth_report.hpp"
#include "cli/this_host.hpp"
#include "model/bounds/bounds.hpp"
#include "model/json/json.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/gpu/wiring.hpp"
#include "runtime/selection/selection.hpp"
#include "topology/discover/sources.hpp"
#include "topology/probing/declared_networks.hpp"

namespace chorus {
namespace {

struct ExplainArguments {
  std::string collective = "all_reduce";
  std::vector<std::uint64_t> sizes;
  std::string topology;
  JobShape shape{.hosts = 1, .ranks_per_host = 2, .cores_per_host = 0};
  bool json = false;
};

constexpr double kFar = 1e15;  // bytes: of the line on which prices end

std::string memory_text(const SharedMachine& machine) {
  const bool placed = std::ranges::any_of(
      machine.places, [](const CpuPlace& place) { return place != CpuPlace{}; });
  return fmt::format("memory of the host {}: chorus probe --host --cached\nranks {}",
                     machine.rates.is_measured() ? "as measured" : "assumed, not measured",
                     placed
                         ? fmt::format("by cache, package and host: {}",
                                       fmt::join(levels_inside(machine.places), " x "))
                         : "run anywhere, or where is not known: taken as far apart as cores are");
}

/// Which kinds of links have figures that nobody measured or declared.
std::string assumed_text(const Topology& topology) {
  std::set<std::string> types;
  for (const Topology::Link& link : topology.links) {
    if (link.provenance == Provenance::table) types.insert(link.type);
  }
  if (types.empty()) return {};
  return fmt::format("assumed, not measured: links of {}\n", fmt::join(types, ", "));
}

/// Then kernels reach the memory of all.
bool are_gpus_of_a_host(const Topology& topology) {
  const auto host_of = [&](int node) {
    while (topology.nodes[static_cast<std::size_t>(node)].parent >= 0) {
      node = topology.nodes[static_cast<std::size_t>(node)].parent;
    }
    return node;
  };
  return std::ranges::all_of(topology.rank_nodes, [&](int node) {
    return topology.nodes[static_cast<std::size_t>(node)].kind == NodeKind::gpu &&
           host_of(node) == host_of(topology.rank_nodes.front());
  });
}

/// With Options::on_loss "finish": what each call takes besides.
struct FinishPrice {
  bool is_asked = false;
  double barrier_s = 0;
  double copy_s_per_byte = 0;
  std::size_t copied_part = 0;  ///< of how many blocks of the size one is copied in place; 0: none

  [[nodiscard]] std::string text(std::uint64_t size) const {
    if (!is_asked) return "";
    std::string text =
        fmt::format("  {:<27} {:>12.2f} us\n", "(finish: a barrier behind)", barrier_s * 1e6);
    if (copied_part == 0) return text;
    const double bytes = static_cast<double>(size) / static_cast<double>(copied_part);
    return text + fmt::format("  {:<27} {:>12.2f} us for {:.0f} bytes of input\n",
                              "(finish: in place, a copy)", bytes * copy_s_per_byte * 1e6, bytes);
  }
};

FinishPrice finish_price(CollectiveKind kind, const Topology& topology, const Options& options,
                         const std::vector<int>& levels, const Pricing& pricing) {
  // Communicators on GPU memory refuse it.
  FinishPrice price{.is_asked = options.on_loss == "finish" && !are_gpus_of_a_host(topology)};
  if (!price.is_asked) return price;
  const Considered barrier =
      consider(CollectiveKind::barrier, topology, Routes(topology), levels, options, pricing);
  if (!barrier.entries.empty()) {
    price.barrier_s = predicted_s(barrier, barrier.entries.front(), 0);
  }
  const HostRates rates = pricing.shared != nullptr ? pricing.shared->rates : assumed_host_rates();
  const HostRates::Sample& most = rates.pairs.front().samples.back();
  price.copy_s_per_byte = most.stage_s / static_cast<double>(most.bytes);
  const bool whole = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce ||
                     kind == CollectiveKind::all_to_all;
  if (whole) price.copied_part = 1;
  if (kind == CollectiveKind::reduce_scatter) {
    price.copied_part = static_cast<std::size_t>(topology.world_size());
  }
  return price;
}

// For people: the fastest schedule by size, then each asked size in full.
void print_text(const Considered& considered, const Topology& topology, const Bound& bound,
                CollectiveKind kind, const ExplainArguments& arguments, const SharedMachine* shared,
                const FinishPrice& finish) {
  std::string text = fmt::format("{}: {}\n", printable_name(topology.name),
                                 counted(topology.world_size(), "rank"));
  text += assumed_text(topology);
  if (shared != nullptr) text += memory_text(*shared) + "\n";
  text += fmt::format("limit of {}: {:.2f} us + bytes / {:.3f} GB/s by {}{}{}\n", name_of(kind),
                      bound.latency_s * 1e6, bound.algbw_gb_s(), bound.method,
                      bound.cut.empty() ? "" : ": " + bound.cut, switches_text(bound));
  for (const std::uint64_t size : arguments.sizes) {
    text += "\n" + explain(considered, kind, static_cast<double>(size));
    const double limit = bound.seconds(static_cast<double>(size));
    text += fmt::format("  {:<27} {:>12.2f} us\n", "(limit)", limit * 1e6);
    text += finish.text(size);
  }
  chorus::print(text);
}

void print_json(const Considered& considered, const Topology& topology, const Bound& bound,
                CollectiveKind kind, const ExplainArguments& arguments) {
  nlohmann::ordered_json json;
  json["format"] = "chorus-explain";
  json["version"] = 1;
  json["topology"] = topology.name;
  json["ranks"] = topology.world_size();
  json["collective"] = name_of(kind);
  json["limit"] = {{"latency_s", bound.latency_s},
                   {"seconds_per_byte", bound.seconds_per_byte},
                   {"method", bound.method},
                   {"cut", bound.cut}};
  for (const PlanEntry& entry : considered.entries) {
    json["chosen"].push_back({{"min_bytes", entry.min_bytes},
                              {"max_bytes", entry.max_bytes},
                              {"schedule", entry.schedule.name}});
  }
  for (const Candidate& candidate : considered.candidates) {
    nlohmann::ordered_json entry{{"schedule", candidate.name}};
    if (candidate.why_not.empty()) {
      entry["steps"] = candidate.steps;
      entry["alpha_s"] = candidate.price.seconds(0);
      entry["seconds_per_byte"] = candidate.price.line_at(kFar).beta_s_per_byte;
      for (const std::uint64_t size : arguments.sizes) {
        entry["seconds"].push_back(candidate.price.seconds(static_cast<double>(size)));
      }
    } else {
      entry["why_not"] = candidate.why_not;
    }
    json["candidates"].push_back(std::move(entry));
  }
  json["sizes"] = arguments.sizes;
  chorus::print(json.dump(1) + "\n");
}

/// What a plan would run, and how near that is to the limits of the topology it was made for.
void explain_plan(const ExplainArguments& arguments) {
  const Plan plan = schedules_from_argument(arguments.collective);
  Topology topology = plan.topology;
  if (!arguments.topology.empty()) {
    topology = topology_from_argument(arguments.topology);
    if (!plan.topology_fingerprint.empty() && fingerprint(topology) != plan.topology_fingerprint) {
      throw InputError(fmt::format("{} is a plan for another topology than {}: {}",
                                   arguments.collective, arguments.topology,
                                   difference(plan.topology, topology)));
    }
  }
  std::vector<CollectiveKind> kinds;
  std::vector<std::uint64_t> sizes = arguments.sizes;
  for (const PlanEntry& entry : plan.entries) {
    const CollectiveKind kind = entry.schedule.collective.kind;
    if (kinds.empty() || kinds.back() != kind) kinds.push_back(kind);
    if (!arguments.json) {
      const std::string until = entry.max_bytes == std::numeric_limits<std::uint64_t>::max()
                                    ? "on"
                                    : fmt::format("to {}", entry.max_bytes);
      chorus::print(fmt::format("{:<15} from {:>11} {:<14} '{}', {}, {}\n", name_of(kind),
                                entry.min_bytes, until, printable_name(entry.schedule.name),
                                counted(std::ssize(entry.schedule.steps), "step"),
                                counted(entry.schedule.num_chunks, "chunk")));
    }
  }
  if (topology.nodes.empty()) {
    chorus::print("it did not keep its topology: give one with -t to see times and limits\n");
    return;
  }
  const SynthReport report(probing::with_joined_networks(topology), plan, kinds, sizes,
                           Limits(topology, kinds));
  chorus::print(arguments.json ? report.json() : "\n" + report.text());
}

void run_explain(const ExplainArguments& arguments) {
  std::error_code error;
  if (arguments.collective == "-" || std::filesystem::exists(arguments.collective, error)) {
    explain_plan(arguments);
    return;
  }
  const CollectiveKind kind = parse_collective_kind(arguments.collective);
  const Options options = Options::from_env();
  JobShape shape = arguments.shape;
  if (arguments.topology.empty()) shape = on_this_host(shape, options);
  const Topology topology =
      arguments.topology.empty() ? job_topology(shape) : topology_from_argument(arguments.topology);
  std::vector<int> levels;
  if (arguments.topology.empty()) {
    levels = levels_inside(shape.places[0]);
    levels.push_back(shape.hosts);
  }
  // What one host's ranks do: they reach each other's memory.
  const bool shared = arguments.topology.empty() && shape.hosts == 1 && shape.ranks_per_host > 1;
  SharedMachine machine{.cores = shape.cores_per_host,
                        .slot_bytes = static_cast<double>(options.slot_bytes)};
  if (shared) {
    machine.rates = shape.rates[0];
    machine.places = shape.places[0];
  }
  Pricing pricing;
  if (shared) pricing.shared = &machine;
  if (are_gpus_of_a_host(topology)) pricing = gpu_pricing(true, options);
  const Topology priced = probing::with_joined_networks(topology);
  const Considered considered = consider(kind, priced, Routes(priced), levels, options, pricing);
  JobShape at_best = shape;
  at_best.for_limits = true;
  const Bound bound = lower_bound(shared ? job_topology(at_best) : topology, {.kind = kind});
  if (arguments.json) {
    print_json(considered, topology, bound, kind, arguments);
  } else {
    print_text(considered, topology, bound, kind, arguments, shared ? &machine : nullptr,
               finish_price(kind, topology, options, levels, pricing));
  }
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* command = app.add_subcommand(
      "explain", "What would run for a collective, at what predicted cost, and why not the others");
  command
      ->add_option("collective", arguments->collective,
                   "all_reduce, all_gather, …; or a plan file, to explain that")
      ->capture_default_str();
  command->add_option("bytes", arguments->sizes, "sizes, such as 4 64K 16M")
      ->delimiter(',')
      ->transform(byte_size());
  command
      ->add_option("-n,--ranks-per-host", arguments->shape.ranks_per_host,
                   "ranks on each host, hosts being like this one")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--hosts", arguments->shape.hosts, "how many of them")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  CLI::Option* const network =
      command->add_option("--network", arguments->shape.network_gb_s, "GB/s per host and direction")
          ->check(number_within(kLeastGbS, kMostGbS))
          ->capture_default_str();
  command
      ->add_option("-t,--topology", arguments->topology,
                   "file, catalog name or generator string instead of hosts like this one")
      ->excludes("--ranks-per-host", "--hosts", "--network");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer("Example: chorus explain all_reduce 4 64K 16M -n 8");
  command->callback([arguments, network, &exit_code] {
    if (network->count() > 0) arguments->shape.network = Provenance::declared;
    if (arguments->sizes.empty()) arguments->sizes = {4, 64 << 10, 16 << 20};
    run_explain(*arguments);
    exit_code = 0;
  });
}

}  // namespace chorus
