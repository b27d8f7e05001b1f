// Hosts and what limits the traffic between them, as probing sees it.
#pragma once

#include <span>
#include <vector>

namespace chorus::probing {

/// Bytes going from one host to another as fast as they can.
struct Flow {
  int src = 0;
  int dst = 0;

  bool operator==(const Flow&) const = default;
};

/// Flows that ran at the same time, and the rate of each.
struct Experiment {
  std::vector<Flow> flows;
  std::vector<double> bytes_per_s;  ///< [flows]
};

/// Hosts at the leaves of a tree of switches. All rates are payload bytes per second; of one
/// direction, since cables are full duplex.
struct HostTree {
  /// Hosts behind one trunk: whatever leaves (enters) the group crosses it.
  struct Group {
    std::vector<int> hosts;  ///< ascending; at most half of all
    double out = 0;
    double in = 0;

    bool operator==(const Group&) const = default;
  };

  std::vector<double> out = {};    ///< by host: its own cable, towards the network
  std::vector<double> in = {};     ///< and from it
  std::vector<Group> groups = {};  ///< any two are disjoint or one holds the other
  /// What the top of the tree carries in all, of flows between its children; 0: no such limit.
  double core = 0;

  [[nodiscard]] int hosts() const { return static_cast<int>(out.size()); }
  /// By host: the index of the smallest group it is in, or -1.
  [[nodiscard]] std::vector<int> group_of_hosts() const;
  /// By group: the smallest other group that holds it, or -1.
  [[nodiscard]] std::vector<int> parents() const;

  bool operator==(const HostTree&) const = default;
};

/// One figure of a HostTree and the flows of an experiment that it limits together.
struct Limit {
  enum class Kind { host_out, host_in, group_out, group_in, core };
  Kind kind = Kind::host_out;
  int index = 0;  ///< of the host or group
  double bytes_per_s = 0;
  std::vector<int> flows;  ///< indices
};

/// Every limit that at least one of `flows` meets.
[[nodiscard]] std::vector<Limit> limits_of(const HostTree& tree, std::span<const Flow> flows);

/// What flows of these rates put on the limit. [flows of the experiment]
[[nodiscard]] double load_of(const Limit& limit, std::span<const double> rates);

/// What they put on the limit, as a part of what it carries; 1 if that is nothing.
[[nodiscard]] double fullness_of(const Limit& limit, std::span<const double> rates);

/// By flow: of the limits that it meets, the one that these rates fill most.
[[nodiscard]] std::vector<const Limit*> fullest_limits(std::span<const Limit> limits,
                                                       std::span<const double> rates);

/// Progressive filling: rates grow, each at its own speed (0: not at all), until a limit is full,
/// whose flows stop there, and so on until none grows. Every flow that grows has to meet a limit.
[[nodiscard]] std::vector<double> grown_rates(std::span<const Limit> limits,
                                              std::vector<double> rates,
                                              std::vector<double> speeds);

/// Rates when all flows run at once and share every limit fairly (max-min). [flows]
[[nodiscard]] std::vector<double> fair_rates(std::span<const Limit> limits, std::size_t flows);
[[nodiscard]] std::vector<double> fair_rates(const HostTree& tree, std::span<const Flow> flows);

/// Whether a group of hosts, ascending, has this one.
[[nodiscard]] bool holds(const std::vector<int>& sorted, int host);

}  // namespace chorus::probing
