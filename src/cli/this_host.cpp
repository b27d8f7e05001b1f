#include "cli/this_host.hpp"

#include <span>
#include <vector>

#include "base/cores.hpp"
#include "runtime/host/host_probe.hpp"

namespace chorus {

JobShape on_this_host(JobShape shape, const Options& options) {
  const std::vector<int> cores = usable_cores();
  if (shape.cores_per_host == 0) shape.cores_per_host = static_cast<int>(cores.size());
  shape.rates = {find_host_rates(options.host_probe, options.probe_cache)};
  const DiscoveredHost host = find_discovered_host(options.host_probe, options.probe_cache, cores);
  const auto ranks = static_cast<std::size_t>(shape.ranks_per_host);
  std::vector<CpuPlace> places;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::span<const int> all = cores;
    places.push_back(
        place_of(host, ranks <= all.size() ? all.subspan(rank * all.size() / ranks, 1) : all));
  }
  shape.places = {std::move(places)};
  return shape;
}

}  // namespace chorus
