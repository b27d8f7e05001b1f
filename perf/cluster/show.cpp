#include "perf/cluster/show.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/bounds/bounds.hpp"
#include "model/schedule/contract.hpp"
#include "perf/report/table.hpp"

namespace chorus::perf {
namespace {

constexpr std::uint64_t kShownBytes = 16 << 20;

/// "120.4", or where one direction is slower "120.4 up, 60 down".
std::string rates(const Fabric::Cable& cable) {
  const double up = cable.there_bytes_per_s * 1e-6, down = cable.back_bytes_per_s * 1e-6;
  return up == down ? fmt::format("{:.6g}", up) : fmt::format("{:.6g} up, {:.6g} down", up, down);
}

std::string host_table(const Fabric& fabric) {
  Table table{.header = {"host", "ranks"}, .rows = {}, .left_columns = 2};
  for (int k = 0; k < fabric.num_networks; ++k) {
    table.header.push_back(host_interface(k) + " MB/s");
  }
  const int hosts = static_cast<int>(fabric.hosts.size());
  for (int h = 0; h < hosts; ++h) {
    std::vector<std::string> cells = {fmt::format("host{}", h),
                                      fmt::format("{}", fmt::join(fabric.ranks_on(h), ","))};
    cells.resize(table.header.size(), "-");
    for (const Fabric::Cable& cable : fabric.cables) {
      if (cable.a != h) continue;
      cells[2 + static_cast<std::size_t>(cable.network)] =
          fmt::format("{} at sw{}", rates(cable), cable.b - hosts);
    }
    table.rows.push_back(std::move(cells));
  }
  return render(table, Style::text);
}

std::string trunk_table(const Fabric& fabric) {
  Table table{.header = {"trunk", "of", "MB/s"}, .rows = {}, .left_columns = 2};
  const int hosts = static_cast<int>(fabric.hosts.size());
  for (const Fabric::Cable& cable : fabric.cables) {
    if (cable.a < hosts) continue;
    table.rows.push_back({fmt::format("sw{} to sw{}", cable.a - hosts, cable.b - hosts),
                          host_interface(cable.network), rates(cable)});
  }
  return table.rows.empty() ? std::string() : "\n" + render(table, Style::text);
}

std::string bound_rows(const Topology& topology) {
  using enum CollectiveKind;
  Table table{.header = {human_bytes(kShownBytes), "bound ms", "limited by"},
              .rows = {},
              .left_columns = 1};
  for (const CollectiveKind kind : {all_reduce, all_gather, reduce_scatter, all_to_all}) {
    const Bound bound = lower_bound(topology, {.kind = kind});
    table.rows.push_back(
        {std::string(name_of(kind)),
         fmt::format("{:.4g}", 1e3 * bound.seconds_per_byte * static_cast<double>(kShownBytes)),
         bound.cut.empty() ? bound.method : bound.cut});
  }
  return "\n" + render(table, Style::text);
}

}  // namespace

std::string described(const Topology& topology, const Fabric& fabric) {
  return fmt::format("# {}: hosts {}, ranks {}, networks {}, switches {}\n", topology.name,
                     fabric.hosts.size(), topology.world_size(), fabric.num_networks,
                     fabric.num_switches) +
         host_table(fabric) + trunk_table(fabric) + bound_rows(topology);
}

}  // namespace chorus::perf
