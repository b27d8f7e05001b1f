// Joining of more ranks than a machine holds: the coordinator and the relays as they are, on
// connections, processors and time that are simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace chorus::perf {

/// What a message costs. The processor figures are those of one core of the machine on which
/// docs/bootstrap.md was measured.
struct SimulatedCosts {
  double latency_s = 10e-6;        ///< between hosts, one way
  double local_latency_s = 5e-6;   ///< within one
  double bytes_per_s = 1.25e9;     ///< of a host's network, each way: 10 Gb/s
  double local_bytes_per_s = 4e9;  ///< within a host
  double receive_s = 6e-6;         ///< of a process, for each frame that it reads
  double send_s = 6e-6;            ///< and for each that it writes
  double prove_s = 20e-6;          ///< for each secret that it checks
};

struct SimulatedJob {
  int ranks = 0;
  int ranks_per_host = 8;
  std::size_t blob_bytes = 600;  ///< what each gives to the first exchange
  bool by_relay = true;
  SimulatedCosts costs = {};
};

struct SimulatedJoin {
  int ranks = 0, hosts = 0;
  double joined_s = 0;     ///< until the last rank has joined
  double exchanged_s = 0;  ///< until the last rank has the first table
  std::size_t coordinator_connections = 0, most_connections = 0;
  std::uint64_t coordinator_frames = 0;  ///< that it read and wrote
  double coordinator_bytes_in = 0, coordinator_bytes_out = 0;
  double most_bytes_out = 0;  ///< of any process
  int depth = 0;              ///< relays between the coordinator and a rank, at most
  std::size_t wrong = 0;      ///< ranks whose table is not that of all
};

/// The same for the same job. Throws chorus::Error if a rank is refused, or never joins.
[[nodiscard]] SimulatedJoin simulate_join(const SimulatedJob& job);

/// What docs/bootstrap.md says of it, from `ranks`, `hosts` and the costs alone.
struct JoinFormula {
  double exchanged_s = 0;
  std::uint64_t coordinator_frames = 0;
  double coordinator_bytes_in = 0, coordinator_bytes_out = 0;
  std::size_t coordinator_connections = 0;
};
[[nodiscard]] JoinFormula join_formula(const SimulatedJob& job);

[[nodiscard]] std::string simulation_header();
[[nodiscard]] std::string simulation_line(const SimulatedJoin& join);
[[nodiscard]] std::string simulation_json(const std::vector<SimulatedJoin>& joins,
                                          const SimulatedCosts& costs, const std::string& commit,
                                          const std::string& command);
/// The commands of gnuplot that write `svg`.
[[nodiscard]] std::string simulation_script(const std::vector<SimulatedJoin>& joins,
                                            const std::string& svg);

}  // namespace chorus::perf
