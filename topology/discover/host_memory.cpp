#include "topology/discover/host_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace chorus {
namespace {

using Sample = HostRates::Sample;

/// Seconds per byte between two ranks.
struct Copies {
  double stage = 0;   ///< into slots
  double fetch = 0;   ///< out of slots
  double kernel = 0;  ///< by the kernel; infinite if it is forbidden
};

// Messages travel slot by slot, while other ranks copy, too.
Copies of_messages(const HostRates& rates, Distance distance) {
  constexpr double kSlotBytes = 131'072;
  const auto each = [&](double Sample::*way) {
    const double all_s = seconds_together(rates, way, kSlotBytes, distance);
    return all_s > 0 ? all_s / kSlotBytes : std::numeric_limits<double>::infinity();
  };
  return {each(&Sample::stage_s), each(&Sample::fetch_s), each(&Sample::kernel_s)};
}

Copies at_best(const HostRates& rates, Distance distance) {
  return {least_seconds_per_byte(rates, &Sample::stage_s, distance),
          least_seconds_per_byte(rates, &Sample::fetch_s, distance),
          least_seconds_per_byte(rates, &Sample::kernel_s, distance)};
}

/// What some ranks of a host have in common.
struct Domain {
  int node = -1;
  Distance distance = Distance::packages;  ///< of ranks that have no nearer one in common
  std::vector<std::size_t> ranks = {};
  /// The NUMA node that it is, or lies in.
  int numa = -1;
};

/// What makes a domain.
struct DomainKind {
  int CpuPlace::*number;
  const char* name;
  NodeKind kind;
  Distance distance;
};
constexpr DomainKind kDomainKinds[] = {
    {&CpuPlace::package, "cpu", NodeKind::package, Distance::package},
    {&CpuPlace::numa, "numa", NodeKind::numa, Distance::package},
    {&CpuPlace::cache, "cache", NodeKind::numa, Distance::cache},
    {&CpuPlace::core, "core", NodeKind::core, Distance::siblings}};

/// The host's first, each after those that it lies in. Of several that hold the same ranks the
/// outermost stands for all. `innermost`: of each rank.
std::vector<Domain> add_domains(TopologyBuilder& builder, const std::string& name, int host,
                                std::span<const CpuPlace> places,
                                std::vector<std::size_t>& innermost) {
  std::vector<Domain> domains = {{.node = host}};
  for (std::size_t i = 0; i < places.size(); ++i) domains[0].ranks.push_back(i);
  innermost.assign(places.size(), 0);
  for (const DomainKind& kind : kDomainKinds) {
    // By the domain around them, and their number there.
    std::map<std::pair<std::size_t, int>, std::vector<std::size_t>> parts;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const int number = places[i].*kind.number;
      if (number >= 0) parts[{innermost[i], number}].push_back(i);
    }
    for (auto& [key, ranks] : parts) {
      const auto [around, number] = key;
      const int numa = kind.number == &CpuPlace::numa ? number : domains[around].numa;
      if (ranks.size() == domains[around].ranks.size()) {
        domains[around].distance = kind.distance;
        domains[around].numa = numa;
        continue;
      }
      // One rank has nothing in common with others, but perhaps an adapter beside it.
      if (ranks.size() < 2 && kind.number != &CpuPlace::numa) continue;
      for (const std::size_t rank : ranks) innermost[rank] = domains.size();
      domains.push_back({.node = builder.node(fmt::format("{}/{}{}", name, kind.name, number),
                                              kind.kind, domains[around].node),
                         .distance = kind.distance,
                         .ranks = std::move(ranks),
                         .numa = numa});
    }
  }
  return domains;
}

/// The links of ranks to what they have in common, per domain.
class SharedMemory {
 public:
  SharedMemory(TopologyBuilder& builder, const HostMemory& memory, std::span<const int> ranks,
               std::span<const Domain> domains)
      : builder_(builder), memory_(memory), ranks_(ranks), domains_(domains) {}

  void add(const std::string& name) {
    std::vector<std::vector<int>> into(ranks_.size());
    std::vector<std::vector<int>> out(ranks_.size());
    for (const Domain& domain : domains_) {
      const auto [wire_out, wire_in] = wires_of(domain);
      for (const std::size_t rank : domain.ranks) {
        out[rank].push_back(builder_.one_way(ranks_[rank], domain.node, wire_out));
        into[rank].push_back(builder_.one_way(domain.node, ranks_[rank], wire_in));
      }
    }
    std::vector<int> all;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      all.insert(all.end(), into[rank].begin(), into[rank].end());
      if (into[rank].size() < 2) continue;  // the link itself limits it
      const std::string& core = builder_.peek().nodes[static_cast<std::size_t>(ranks_[rank])].name;
      builder_.group(core + "/out", std::move(out[rank]), 1e-9 / leave_);
      builder_.group(core + "/in", std::move(into[rank]), 1e-9 / read_);
    }
    // Ranks beyond the cores take turns. What a message costs whatever its size is core time, too:
    // a line that another core has written, or a turn.
    const auto num_ranks = static_cast<int>(ranks_.size());
    if (num_ranks > memory_.cores) line_s_ = std::max(line_s_, memory_.rates.turn_s);
    builder_.group(name + "/copying", std::move(all),
                   std::min(memory_.cores, num_ranks) * 1e-9 / (memory_.for_limits ? read_ : both_),
                   line_s_ * 1e6 / memory_.cores);
  }

 private:
  /// From a rank of the domain, and to it.
  std::pair<Wire, Wire> wires_of(const Domain& domain) {
    const HostRates& rates = memory_.rates;
    const auto num_ranks = static_cast<int>(ranks_.size());
    const double line_s = pair_at(rates, domain.distance).line_s;
    // A message is there when its line is; where ranks outnumber cores, who receives has to be
    // given a core first. Half of that on each link.
    const double way_s = num_ranks > memory_.cores ? std::max(rates.turn_s, line_s) : line_s;
    const auto known = rates.is_measured() ? Provenance::measured : Provenance::table;
    Copies copies = of_messages(rates, domain.distance);
    if (memory_.for_limits) copies = best_of_all();
    // What the kernel reads its owner does not copy; and what has left a rank once, all may read.
    double leave = std::min(copies.stage, copies.kernel);
    if (memory_.for_limits) leave /= std::max(1, num_ranks - 1);
    const double read = std::min(copies.fetch, copies.kernel);
    leave_ = std::min(leave_, leave);
    read_ = std::min(read_, read);
    both_ = std::min({both_, copies.stage + copies.fetch, copies.kernel});
    line_s_ = std::min(line_s_, line_s);
    return {{1e-9 / leave, way_s / 2 * 1e6, "shm", known},
            {1e-9 / read, way_s / 2 * 1e6, "shm", known}};
  }

  /// No copy between any two of the ranks takes less.
  [[nodiscard]] Copies best_of_all() const {
    Copies best = at_best(memory_.rates, domains_.front().distance);
    for (const Domain& domain : domains_) {
      const Copies here = at_best(memory_.rates, domain.distance);
      best = {std::min(best.stage, here.stage), std::min(best.fetch, here.fetch),
              std::min(best.kernel, here.kernel)};
    }
    return best;
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  TopologyBuilder& builder_;
  const HostMemory& memory_;
  std::span<const int> ranks_;
  std::span<const Domain> domains_;
  // The least of all domains: what a core takes for a byte, and for a line.
  double leave_ = kNone, read_ = kNone, both_ = kNone, line_s_ = kNone;
};

void add_loopback(TopologyBuilder& builder, const std::string& name, int host,
                  std::span<const int> ranks, const HostMemory& memory) {
  const HostRates::Loopback& loopback = loopback_of(memory.rates);
  const double gb_s = 1e-9 / loopback.byte_s;
  const Wire wire{gb_s, loopback.latency_s / 2 * 1e6, "loopback",
                  memory.rates.loopback ? Provenance::measured : Provenance::table};
  std::vector<int> links;
  for (const int rank : ranks) {
    const auto [out, in] = builder.both_ways(rank, host, wire);
    links.insert(links.end(), {out, in});
  }
  builder.group(name + "/copying", std::move(links), memory.cores * gb_s,
                loopback.message_s * 1e6 / memory.cores);
}

}  // namespace

HostNodes add_memory(TopologyBuilder& builder, const std::string& name, int host,
                     std::span<const std::string> rank_names, const HostMemory& memory) {
  HostNodes nodes{.host = host, .ranks = {}, .beside_adapter = host};
  std::vector<CpuPlace> places = memory.places;
  places.resize(rank_names.size());
  std::vector<std::size_t> innermost;
  std::vector<Domain> domains = {{.node = host}};
  if (memory.is_shared) {
    domains = add_domains(builder, name, host, places, innermost);
  } else {
    innermost.assign(places.size(), 0);
  }
  for (std::size_t i = 0; i < rank_names.size(); ++i) {
    nodes.ranks.push_back(builder.node(rank_names[i], NodeKind::core, domains[innermost[i]].node));
  }
  if (!memory.is_shared) {
    add_loopback(builder, name, host, nodes.ranks, memory);
    return nodes;
  }
  SharedMemory(builder, memory, nodes.ranks, domains).add(name);
  for (const Domain& domain : domains) {  // the outermost that is, or lies in, its NUMA node
    if (memory.adapter_numa < 0 || domain.numa != memory.adapter_numa) continue;
    nodes.beside_adapter = domain.node;
    break;
  }
  return nodes;
}

Adapter add_adapter(TopologyBuilder& builder, const std::string& name, const HostNodes& nodes,
                    const HostMemory& memory, const Wire& out, const Wire& in) {
  const int above = nodes.beside_adapter;
  if (above != nodes.host) {
    // Half a line more than from the host to a rank: messages between ranks do not come this way.
    const double hop_us = memory.rates.pairs.back().line_s / 2 * 1e6;
    const auto known = memory.rates.is_measured() ? Provenance::measured : Provenance::table;
    builder.one_way(nodes.host, above, {out.gb_s, hop_us, "socket", known});
    builder.one_way(above, nodes.host, {in.gb_s, hop_us, "socket", known});
  }
  Adapter adapter{.node = builder.node(name + "/nic", NodeKind::nic, above)};
  adapter.to = builder.one_way(above, adapter.node, out);
  adapter.from = builder.one_way(adapter.node, above, in);
  return adapter;
}

}  // namespace chorus
