// Sketches: what a person knows about a cluster, as limits on the search for schedules.
//
// After TACCL (Shah et al., NSDI 2023): the logical topology (which links may be used, who speaks
// for a host), how a switch is to be used, which symmetry to impose. Routes are found under them,
// then put in order, then timed exactly where that pays.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chorus/schedule.hpp"
#include "synth/effort.hpp"
#include "synth/network.hpp"
#include "synth/plan.hpp"

namespace chorus::synth {

/// How many of the links through a switch are to be used, where that costs no time.
enum class SwitchUse : std::uint8_t {
  any,
  fewest,  ///< "uc-min": few connections, for large data
  most,    ///< "uc-max": many, for small data
};

/// Which ranks exchange with other hosts.
enum class HostLinks : std::uint8_t {
  all,     ///< any rank with any: "fully-connected"
  direct,  ///< each with its likes, those of the same local rank: "direct-map"
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

/// The edges of `network` that the sketch leaves, resources kept. Throws InputError saying which
/// constraint does not fit the network or cuts some rank off from another, or which symmetry does
/// not map the logical topology onto itself.
[[nodiscard]] Network logical_network(const Network& network, const Sketch& sketch);

/// Why `schedule` does not keep to the logical network, as a sentence; nothing if it does.
[[nodiscard]] std::optional<std::string> strays(const Schedule& schedule, const Network& logical);

/// Sketches that suit the network: hosts by Levels; of the ranks that share a network card one
/// sends and another receives ("relay"), or each rank exchanges with its likes ("direct"), or any
/// with any ("all"); symmetric by hosts, and inside them, where the network is. Never empty; none
/// says the same as another.
[[nodiscard]] std::vector<Sketch> inferred_sketches(const Network& network);

/// Some jobs of a schedule, to be timed exactly. Times in seconds.
struct TimingWindow {
  struct Use {
    int resource = 0;
    double seconds = 0;
    double message_s = 0;  ///< of these, saved by what travels together with the one before
  };
  struct Job {
    int edge = 0;
    int chunk = 0;  ///< the last, if it carries several
    int chunks = 1;
    double ready_s = 0;      ///< not to begin before
    double length_s = 0;     ///< from begin to end
    double tail_s = 0;       ///< from its end to the end of all that waits for it, at the least
    std::vector<Use> uses;   ///< of resources: busy from the begin on
    std::vector<int> after;  ///< jobs of the window that must have ended
    double begin_s = 0;      ///< as known
  };
  std::vector<Job> jobs;
  std::map<int, double> behind_s;  ///< by resource: work that follows the window
  double end_s = 0;    ///< as known: the latest end with its tail, or resource with its work behind
  double bound_s = 0;  ///< no order ends earlier
};

/// What a window's jobs do instead.
struct Retimed {
  std::vector<double> begin_s;  ///< by job
  /// By job: the one before it on its edge that it travels with, or -1. Together they begin when
  /// the first of them does, for which all must be there.
  std::vector<int> with;
};

/// A window's jobs with an earlier end than the known one; nothing if there is none or none was
/// found.
using WindowSolver = std::function<std::optional<Retimed>(const TimingWindow&, const Effort&)>;

/// At most so many chunks travel together.
inline constexpr int kMostTogether = 6;
/// Jobs that a window has at most.
inline constexpr int kMostWindowJobs = 80;

/// A schedule "sketched" for `size_bytes` (PlanEntry's counting): ways under the sketch, one per
/// chunk and equal for what the symmetry maps onto each other, ordered by list scheduling, then
/// window by window by `exact`, if given; whatever simulates faster stays.
///
/// all_gather, broadcast, all_to_all; reduce_scatter and reduce as mirror images on the links
/// turned round; nothing for others, for one rank, or where the effort is spent at once.
/// Deterministic unless it is spent. Throws InputError as logical_network() does.
[[nodiscard]] std::optional<Schedule> sketched(const Network& network, const Sketch& sketch,
                                               Collective collective, double size_bytes,
                                               const Effort& effort,
                                               const WindowSolver& exact = nullptr);

/// For the planner: with the sketches inferred, cut into as many chunks as suits the size.
[[nodiscard]] Strategy sketched_strategy(WindowSolver exact = nullptr);
/// With this sketch alone, its links never used backwards.
[[nodiscard]] Strategy sketched_strategy(const Sketch& sketch, WindowSolver exact = nullptr);

}  // namespace chorus::synth
