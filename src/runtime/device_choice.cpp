#include "runtime/device_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "device/image.hpp"
#include "model/contract.hpp"
#include "model/cost.hpp"
#include "model/direct.hpp"
#include "model/program.hpp"
#include "topology/rates.hpp"

namespace chorus {
namespace {

constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();
// Of what this cannot see. That a way within a host is many times one between hosts is what counts.
constexpr int kLinksOfGpu = 18;  // into the switch of a DGX-H100
constexpr int kArchitecture = 90;
constexpr double kBlocksGbS = 32 * 50;  // of a launch (docs/gpu-estimate.md)

class DeviceWiring {
 public:
  explicit DeviceWiring(std::string name) { topology_.name = std::move(name); }
  int node(std::string name, NodeKind kind, int parent = -1) {
    topology_.nodes.push_back(
        {.name = std::move(name), .kind = kind, .parent = parent, .detail = {}});
    return static_cast<int>(topology_.nodes.size()) - 1;
  }
  /// Both directions.
  void cable(int a, int b, double alpha_s, double beta_s_per_byte, const char* type) {
    for (const auto& [src, dst] : {std::pair(a, b), std::pair(b, a)}) {
      topology_.links.push_back({.src = src,
                                 .dst = dst,
                                 .alpha_s = alpha_s,
                                 .beta_s_per_byte = beta_s_per_byte,
                                 .type = type,
                                 .provenance = Provenance::table});
    }
  }
  void place(int node) { topology_.rank_nodes.push_back(node); }
  Topology take() { return std::move(topology_); }

 private:
  Topology topology_;
};

/// What joins two hosts: the slowest link between the first two ranks that are apart.
struct Between {
  double alpha_s = kEthernetPathUs * 1e-6;
  double beta_s_per_byte = 1 / (kInterfaceUnknownGbS * 1e9);
};
Between between_hosts(const GpuPlaces& places, const Topology& communicator) {
  const auto far =
      std::find_if(places.host.begin(), places.host.end(), [](int host) { return host != 0; });
  const auto rank = static_cast<std::size_t>(far - places.host.begin());
  const std::vector<Route> routes = RouteFinder(communicator).from(0);
  Between between;
  if (far == places.host.end() || !routes[rank].connected || routes[rank].path.empty()) {
    return between;
  }
  between = {.alpha_s = routes[rank].alpha_s, .beta_s_per_byte = 0};
  for (const int link : routes[rank].path) {
    between.beta_s_per_byte =
        std::max(between.beta_s_per_byte,
                 communicator.links[static_cast<std::size_t>(link)].beta_s_per_byte);
  }
  return between;
}

// Kernels fold straight from all inputs into all outputs, if the schedule lets them. What the wires
// carry is priced already; this adds what the busiest GPU moves, and its copy in place.
void amend_direct(const Schedule& made, const Options& options, Candidate& candidate) {
  const auto forms = direct(made);
  if (!forms) {
    if (candidate.name != options.algorithm) {
      candidate.why_not = "relays, but all GPUs reach each other's memory";
    }
    return;
  }
  double most = 0;
  for (const DirectProgram& form : *forms) {
    double moved = form.copy_in_place ? 2.0 * form.num_chunks : 0;
    for (const Move& move : form.moves) {
      moved += move.count * static_cast<double>(move.sources.size() + move.destinations.size());
    }
    most = std::max(most, moved);
  }
  candidate.price += {.beta_s_per_byte = most * chunk_bytes(made, 1) / (kBlocksGbS * 1e9)};
}

/// Of schedules for more ranks than a fold has operands.
void amend_many(const Schedule& made, Candidate& candidate) {
  if (device::has_room_for_operands(lower(made))) return;
  candidate.why_not = fmt::format("some rank folds or sends to more than the {} that kernels take",
                                  device::kMostOperands);
}

}  // namespace

int GpuPlaces::num_hosts() const {
  return host.empty() ? 0 : *std::max_element(host.begin(), host.end()) + 1;
}

bool GpuPlaces::all_reach() const {
  return std::all_of(reaches.begin(), reaches.end(), [](bool each) { return each; });
}

Topology gpu_topology(const GpuPlaces& places, const Topology& communicator) {
  const std::size_t n = places.host.size();
  const auto on_gpu = [&](int node) {
    return communicator.nodes[static_cast<std::size_t>(node)].kind == NodeKind::gpu;
  };
  if (std::all_of(communicator.rank_nodes.begin(), communicator.rank_nodes.end(), on_gpu)) {
    return communicator;
  }
  const int hosts = places.num_hosts();
  DeviceWiring wiring(fmt::format("{} on {}", counted(n, "GPU"), counted(hosts, "host")));
  const Between between = between_hosts(places, communicator);
  const int network = hosts > 1 ? wiring.node("network", NodeKind::network_switch) : -1;
  std::vector<int> host_nodes;
  std::vector<int> switches;
  for (int h = 0; h < hosts; ++h) {
    host_nodes.push_back(wiring.node(fmt::format("host{}", h), NodeKind::host));
    bool together = true;
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < n; ++b) {
        together =
            together && (places.host[a] != h || places.host[b] != h || places.reaches[a * n + b]);
      }
    }
    switches.push_back(together ? wiring.node(fmt::format("host{}/gpu switch", h),
                                              NodeKind::gpu_switch, host_nodes.back())
                                : -1);
    if (network >= 0) {
      wiring.cable(host_nodes.back(), network, between.alpha_s / 2, between.beta_s_per_byte,
                   "network");
    }
  }
  for (std::size_t r = 0; r < n; ++r) {
    const auto h = static_cast<std::size_t>(places.host[r]);
    const int gpu =
        wiring.node(fmt::format("host{}/gpu of rank {}", h, r), NodeKind::gpu, host_nodes[h]);
    wiring.cable(gpu, host_nodes[h], kPcieHopUs * 1e-6, 1 / (kPcieUnknownGbS * 1e9), "pcie");
    if (switches[h] >= 0) {
      wiring.cable(gpu, switches[h], kGpuLinkUs / 2 * 1e-6,
                   1 / (kLinksOfGpu * nvlink_gb_s(kArchitecture) * 1e9), "nvlink");
    }
    wiring.place(gpu);
  }
  return wiring.take();
}

std::vector<int> gpu_levels(const GpuPlaces& places) {
  const auto n = static_cast<int>(places.host.size());
  const int hosts = places.num_hosts();
  if (hosts == 0 || n % hosts != 0) return {};
  const int each = n / hosts;
  for (int r = 0; r < n; ++r) {
    if (places.host[static_cast<std::size_t>(r)] != r / each) return {};
  }
  return {each, hosts};
}

DeviceChoice::DeviceChoice(Plan plan, const GpuPlaces& places, const Topology& communicator,
                           const Options& options, std::optional<std::uint64_t> one_shot_bytes)
    : plan_(std::move(plan)),
      topology_(gpu_topology(places, communicator)),
      levels_(gpu_levels(places)),
      all_reach_(places.all_reach()),
      options_(options),
      one_shot_bytes_(one_shot_bytes) {}

Schedule DeviceChoice::by_name(CollectiveKind kind, std::string_view name) const {
  for (const PlanEntry& entry : plan_.entries) {
    if (entry.schedule.collective.kind == kind && entry.schedule.name == name) {
      return entry.schedule;
    }
  }
  const AlgorithmInput input{.kind = kind, .world_size = topology_.world_size(), .levels = levels_};
  const Algorithm& chosen = algorithm(name);
  if (const auto reason = chosen.why_not(input)) {
    throw InputError(fmt::format("{} cannot serve {} on GPUs of {} ranks: {}", name, name_of(kind),
                                 input.world_size, *reason));
  }
  return chosen.make(input);
}

Considered DeviceChoice::by_threshold(CollectiveKind kind) const {
  const AlgorithmInput input{.kind = kind, .world_size = topology_.world_size(), .levels = {}};
  const bool combines_for_all =
      kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce;
  Considered result;
  const bool two = combines_for_all && input.world_size > 1;
  const std::uint64_t last =
      two ? *one_shot_bytes_ * static_cast<std::uint64_t>(input.world_size) : kAnySize;
  result.entries.push_back(
      {.min_bytes = 0, .max_bytes = last, .schedule = algorithm("one_shot").make(input)});
  if (two) {
    result.entries.push_back({.min_bytes = last + 1,
                              .max_bytes = kAnySize,
                              .schedule = algorithm("two_shot").make(input)});
  }
  return result;
}

const Considered& DeviceChoice::considered(CollectiveKind kind) {
  const auto found = considered_.find(kind);
  if (found != considered_.end()) return found->second;
  Considered result;
  for (const PlanEntry& entry : plan_.entries) {
    if (entry.schedule.collective.kind == kind) result.entries.push_back(entry);
  }
  Considered rest;
  if (one_shot_bytes_) {
    rest = by_threshold(kind);
  } else {
    if (!routes_) routes_.emplace(topology_);
    rest = consider(kind, topology_, *routes_, levels_, options_, nullptr,
                    [this](const Schedule& made, Candidate& candidate) {
                      if (made.world_size > static_cast<int>(device::kMostOperands)) {
                        amend_many(made, candidate);
                      } else if (all_reach_) {
                        amend_direct(made, options_, candidate);
                      }
                    });
  }
  if (rest.entries.empty()) {
    throw SynthesisError(fmt::format("no schedule serves {} on {} GPUs:\n{}", name_of(kind),
                                     topology_.world_size(), chorus::explain(rest, kind, 0)));
  }
  result.candidates = std::move(rest.candidates);
  std::move(rest.entries.begin(), rest.entries.end(), std::back_inserter(result.entries));
  return considered_.emplace(kind, std::move(result)).first->second;
}

DeviceChoice::Chosen DeviceChoice::choose(CollectiveKind kind, std::uint64_t size_bytes) {
  // Entries of a plan come first; the others cover every size.
  const auto& entries = considered(kind).entries;
  std::size_t i = 0;
  while (size_bytes < entries[i].min_bytes || size_bytes > entries[i].max_bytes) ++i;
  return {&entries[i].schedule, static_cast<int>(i)};
}

std::string DeviceChoice::explain(CollectiveKind kind, std::uint64_t size_bytes) {
  return chorus::explain(considered(kind), kind, static_cast<double>(size_bytes));
}

}  // namespace chorus
