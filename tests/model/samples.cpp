#include "samples.hpp"

#include "model/json/json.hpp"
#include "schedules.hpp"

namespace chorus::test {

Topology sample_topology() {
  Topology topology;
  topology.name = "one host";
  topology.nodes = {{.name = "host0", .kind = NodeKind::host, .parent = -1, .detail = ""},
                    {.name = "host0/gpu0", .kind = NodeKind::gpu, .parent = 0, .detail = "A100"},
                    {.name = "host0/gpu1", .kind = NodeKind::gpu, .parent = 0, .detail = "A100"},
                    {.name = "host0/nic0", .kind = NodeKind::nic, .parent = 0, .detail = "mlx5_0"},
                    {.name = "host0/core0", .kind = NodeKind::core, .parent = 0, .detail = ""}};
  topology.links = {{.src = 1,
                     .dst = 2,
                     .alpha_s = 7e-7,
                     .beta_s_per_byte = 2e-11,
                     .type = "nvlink",
                     .provenance = Provenance::table},
                    {.src = 2,
                     .dst = 1,
                     .alpha_s = 7e-7,
                     .beta_s_per_byte = 2e-11,
                     .type = "nvlink",
                     .provenance = Provenance::measured}};
  topology.port_groups = {{.name = "host0/bus", .links = {0, 1}, .beta_s_per_byte = 1e-11}};
  topology.rank_nodes = {1, 2};
  return topology;
}

Plan sample_plan() {
  Plan plan;
  plan.topology = sample_topology();
  plan.topology_fingerprint = fingerprint(plan.topology);
  plan.world_size = 2;
  plan.entries = {{.min_bytes = 0,
                   .max_bytes = 65'535,
                   .schedule = recursive_doubling_all_reduce(2),
                   .min_bytes_time_s = 1.5e-6,
                   .per_byte_time_s = 2e-11},
                  {.min_bytes = 65'536,
                   .max_bytes = UINT64_MAX,
                   .schedule = ring_all_reduce(2),
                   .min_bytes_time_s = 3e-6,
                   .per_byte_time_s = 1e-11},
                  {.min_bytes = 0,
                   .max_bytes = UINT64_MAX,
                   .schedule = star(CollectiveKind::broadcast, 2, 0),
                   .min_bytes_time_s = 1e-6,
                   .per_byte_time_s = 1e-11}};
  return plan;
}

}  // namespace chorus::test
