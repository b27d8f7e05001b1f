// What the cables of an emulated cluster really carry.
#pragma once

#include <utility>
#include <vector>

#include "base/files/fd.hpp"
#include "perf/cluster/cluster.hpp"

namespace chorus::perf {

/// One stream from host to host.
struct CableCheck {
  int from = 0;
  int to = 0;
  double expected_bytes_per_s = 0;  ///< payload that the slowest cable on the way can carry
  double measured_bytes_per_s = 0;
  int network = 0;
};

/// A connection from host to host by their cables to `network`: the sending end, the receiving
/// end, both with a deadline of 5 s for each call. Throws Error.
[[nodiscard]] std::pair<Fd, Fd> connect_hosts(const Cluster& cluster, int from, int to,
                                              int network);

/// Sends from every host to the next (the last to the first), one after the other and by each of
/// the networks between them, which crosses
/// every cable and trunk both ways where hosts are numbered switch by switch. Each takes `seconds`
/// and as much again until the stream is steady. Throws Error.
[[nodiscard]] std::vector<CableCheck> check_cables(const Cluster& cluster, double seconds);

/// Relative difference of the worst.
[[nodiscard]] double worst_deviation(const std::vector<CableCheck>& checks);

}  // namespace chorus::perf
