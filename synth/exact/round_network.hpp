// A network in units of rounds: what a k-synchronous schedule may load how much in one round.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "synth/network.hpp"

namespace chorus::synth::exact {

/// A resource that several (or one) of the ways share.
struct Limit {
  std::string name;
  double per_round = 1;                      ///< chunks that may cross it in a round
  std::vector<std::pair<int, int>> crossed;  ///< (way, times that a chunk on it crosses), ascending

  /// Chunks that may cross it in a step of `rounds` rounds.
  [[nodiscard]] int capacity(int rounds) const;
  bool operator==(const Limit&) const = default;
};

struct Way {
  Rank src = 0;
  Rank dst = 0;

  auto operator<=>(const Way&) const = default;
};

/// A round is the time in which one chunk crosses the slowest resource of the network (or, if
/// `rounds_of_slowest` is r, 1/r of it: faster resources lose less to rounding then). A resource m
/// times as fast carries ⌊m·k⌋ chunks in k rounds: no integer multiple is needed.
struct RoundNetwork {
  int world_size = 0;
  std::vector<Way> ways;                  ///< sorted
  std::vector<Limit> limits;              ///< no duplicates, none that another implies
  std::vector<std::vector<int>> out, in;  ///< ways by rank
  double beta_s_per_byte = 0;             ///< seconds of a round per byte of a chunk
  double alpha_s = 0;                     ///< of the slowest way to start

  /// Steps from each rank to each other: [from][to]; kUnreachable if there is no path.
  [[nodiscard]] std::vector<std::vector<int>> distances() const;
};

inline constexpr int kUnreachable = 1 << 20;

/// Which edges of a network schedules may use; all if empty.
using EdgeFilter = std::function<bool(const Edge&)>;

[[nodiscard]] RoundNetwork in_rounds(const Network& network, int rounds_of_slowest = 1,
                                     const EdgeFilter& use = {});

/// A topology of ranks, ways and limits alone in which one byte crosses a limit of one chunk per
/// round in one second: lower_bound() of it is in rounds.
[[nodiscard]] Topology round_topology(const RoundNetwork& network);

}  // namespace chorus::synth::exact
