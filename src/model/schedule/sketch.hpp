// Sketches: what a person knows about a cluster, as limits on the search for schedules.
//
// After TACCL (Shah et al., NSDI 2023): the logical topology (which links may be used, who speaks
// for a host), how a switch is to be used, which symmetry to impose.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace chorus {

/// How many of the links through a switch are to be used, where that costs no time.
enum class SwitchUse : std::uint8_t {
  any,
  fewest,  ///< "uc-min": few connections, for large data
  most,    ///< "uc-max": many, for small data
};

/// Which ranks exchange with other hosts.
enum class HostLinks : std::uint8_t {
  all,     ///< any rank with any: "fully-connected"
  direct,  ///< each with its counterparts, those of the same local rank: "direct-map"
  listed,  ///< those of Sketch::senders
};

/// Hosts are equal and their ranks follow one another: local rank l of host h is rank
/// h · (ranks per host) + l. All ranks below but those of offsets are local: what is said of one
/// host is said of all. A plain value (JSON: docs/sketches.md).
struct Sketch {
  struct Link {
    int src = 0;
    int dst = 0;

    bool operator==(const Link&) const = default;
  };
  struct Switch {
    std::vector<int> ranks = {};
    SwitchUse use = SwitchUse::any;

    bool operator==(const Switch&) const = default;
  };
  /// Every `group` ranks in a row are turned round by `offset`: data of rank r goes the ways of
  /// data of rank 0 moved by r's turn.
  struct Offset {
    int offset = 0;
    int group = 0;

    bool operator==(const Offset&) const = default;
  };

  std::string name = {};
  int hosts = 0;                     ///< 0: as many as the topology shows
  std::vector<Link> allowed = {};    ///< inside hosts: these alone; none: all
  std::vector<Link> forbidden = {};  ///< inside hosts
  std::vector<Switch> switches = {};
  HostLinks between = HostLinks::all;
  std::map<int, std::vector<int>> senders = {};  ///< by sender, to whom in every other host
  /// By sender, whose data leaves its host through it. Who is not named is not bound; combining
  /// collectives (reduce_scatter, reduce) are not, either.
  std::map<int, std::vector<int>> sends_for = {};
  /// Who may pass on what is not its own; not given: everybody.
  std::optional<std::vector<int>> relays = {};
  std::vector<Offset> symmetry = {};
  int chunks_per_block = 1;
  std::optional<std::uint64_t> size_bytes = {};  ///< what it was written for
  /// Members of the file that have no effect here, each with the reason.
  std::vector<std::string> ignored = {};

  bool operator==(const Sketch&) const = default;
};

}  // namespace chorus
