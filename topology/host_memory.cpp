#include "topology/host_memory.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "topology/rates.hpp"

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
Copies of_messages(const HostRates& rates) {
  constexpr double kSlotBytes = 131'072;
  const auto each = [&](double Sample::*way) {
    const double all_s = seconds_together(rates, way, kSlotBytes);
    return all_s > 0 ? all_s / kSlotBytes : std::numeric_limits<double>::infinity();
  };
  return {each(&Sample::stage_s), each(&Sample::fetch_s), each(&Sample::kernel_s)};
}

Copies at_best(const HostRates& rates) {
  return {least_seconds_per_byte(rates, &Sample::stage_s),
          least_seconds_per_byte(rates, &Sample::fetch_s),
          least_seconds_per_byte(rates, &Sample::kernel_s)};
}

void add_shared(TopologyBuilder& builder, const std::string& name, int host,
                std::span<const int> ranks, const HostMemory& memory) {
  const HostRates& rates = memory.rates;
  const auto num_ranks = static_cast<int>(ranks.size());
  const double line_s = rates.pairs.back().line_s;
  // A message is there when its line is; where ranks outnumber cores, who receives has to be given
  // a core first. Half of that on each link.
  const double way_s = num_ranks > memory.cores ? std::max(rates.turn_s, line_s) : line_s;
  const auto known = rates.is_measured() ? Provenance::measured : Provenance::table;
  const Copies copies = memory.for_limits ? at_best(rates) : of_messages(rates);
  // What the kernel reads its owner does not copy; and what has left a rank once, all may read.
  const double leave = memory.for_limits
                           ? std::min(copies.stage, copies.kernel) / std::max(1, num_ranks - 1)
                           : std::min(copies.stage, copies.kernel);
  const double read = std::min(copies.fetch, copies.kernel);
  const double both = std::min(copies.stage + copies.fetch, copies.kernel);
  const Wire out{1e-9 / leave, way_s / 2 * 1e6, "shm", known};
  const Wire in{1e-9 / read, way_s / 2 * 1e6, "shm", known};
  std::vector<int> into_ranks;
  for (const int rank : ranks) {
    builder.one_way(rank, host, out);
    into_ranks.push_back(builder.one_way(host, rank, in));
  }
  // Ranks beyond the cores take turns. What a message costs whatever its size is core time, too: a
  // line that another core has written.
  builder.group(name + "/copying", std::move(into_ranks),
                std::min(memory.cores, num_ranks) * 1e-9 / (memory.for_limits ? read : both),
                line_s * 1e6 / memory.cores);
}

void add_loopback(TopologyBuilder& builder, const std::string& name, int host,
                  std::span<const int> ranks, int cores) {
  const Wire wire{kLoopbackGbS, kLoopbackHopUs, "loopback", Provenance::table};
  std::vector<int> links;
  for (const int rank : ranks) {
    const auto [out, in] = builder.both_ways(rank, host, wire);
    links.insert(links.end(), {out, in});
  }
  builder.group(name + "/copying", std::move(links), cores * kLoopbackGbS,
                kSocketMessageUs / cores);
}

}  // namespace

void add_memory(TopologyBuilder& builder, const std::string& name, int host,
                std::span<const int> ranks, const HostMemory& memory) {
  if (memory.is_shared) return add_shared(builder, name, host, ranks, memory);
  add_loopback(builder, name, host, ranks, memory.cores);
}

}  // namespace chorus
