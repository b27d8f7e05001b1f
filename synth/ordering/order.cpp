// in_order(): list scheduling of the hops of a multicast routing.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/index.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/ordering/list_scheduler.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

/// Of the longest way: by so much chunks of an all_to_all go before or after others by chance.
/// Random wirings gain 5 to 10 % by 0.1 to 0.5, meshes and tori lose nothing by 0.3.
constexpr double kSpread = 0.25;

int edge_of(const Network& network, const Hop& hop) {
  const std::optional<int> edge = network.edge(hop.src, hop.dst);
  CHORUS_CHECK(edge.has_value(), "hops are edges of the network they are ordered on");
  return *edge;
}

/// For every hop the one that brings its chunk to its source, or -1.
std::vector<int> bringers(const Network& network, const std::vector<Hop>& hops) {
  const auto n = static_cast<std::size_t>(network.world_size());
  std::unordered_map<std::size_t, int> bringer;  // chunk · n + rank to the hop that brought it
  bringer.reserve(hops.size());
  std::vector<int> result(hops.size(), -1);
  for (std::size_t i = 0; i < hops.size(); ++i) {
    const Hop& hop = hops[i];
    const auto found = bringer.find(at(hop.chunk) * n + at(hop.src));
    if (found != bringer.end()) result[i] = found->second;
    const bool first =
        bringer.try_emplace(at(hop.chunk) * n + at(hop.dst), static_cast<int>(i)).second;
    CHORUS_CHECK(first, "no rank receives a chunk of a multicast twice");
  }
  return result;
}

/// In [0, 1), as if drawn by chance for each chunk (Steele's splitmix64).
double chance(ChunkId chunk) {
  std::uint64_t bits = (static_cast<std::uint64_t>(chunk) + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return unit(bits ^ (bits >> 31));
}

/// One job per hop, numbered alike. How urgent a hop is: its own time and that of the longest way
/// on from its end, then the ranks that get the chunk through it, then the lower chunk. First
/// pieces go before all others: where ways share a link fairly they arrive together.
JobGraph jobs_of(const Network& network, const MulticastRouting& multicast, double chunk_bytes) {
  const std::vector<int> bringer = bringers(network, multicast.hops);
  JobGraph graph;
  for (std::size_t i = 0; i < multicast.hops.size(); ++i) {
    const Hop& hop = multicast.hops[i];
    graph.add({edge_of(network, hop), {0, 1, -hop.chunk}});
    if (bringer[i] >= 0) graph.wait(static_cast<int>(i), bringer[i]);
  }
  std::vector<Job>& jobs = graph.jobs();
  double longest_s = 0, alphas_s = 0, bytes_s = 0;
  for (std::size_t i = jobs.size(); i-- > 0;) {
    const Edge& edge = network.edges()[at(jobs[i].edge)];
    auto& [way_s, reaches, chunk] = jobs[i].urgency;
    way_s += edge.alpha_s + chunk_bytes * edge.beta_s_per_byte;
    alphas_s += edge.alpha_s;
    bytes_s += chunk_bytes * edge.beta_s_per_byte;
    longest_s = std::max(longest_s, way_s);
    if (bringer[i] < 0) continue;
    auto& [way_before_s, reaches_before, chunk_before] = jobs[at(bringer[i])].urgency;
    way_before_s = std::max(way_before_s, way_s);
    reaches_before += reaches;
  }
  // Of an exchange what has as long a way to go would otherwise come at the same time, to a link
  // that stood idle before. Where latency counts more, neighbouring chunks rather stay together.
  const bool spreads =
      multicast.collective.kind == CollectiveKind::all_to_all && bytes_s > alphas_s;
  for (std::size_t i = 0; i < jobs.size() && spreads; ++i) {
    std::get<0>(jobs[i].urgency) += kSpread * longest_s * chance(multicast.hops[i].chunk);
  }
  for (std::size_t i = 0; i < jobs.size() && multicast.pieces > 1; ++i) {
    std::get<0>(jobs[i].urgency) -= multicast.hops[i].chunk % multicast.pieces * 2 * longest_s;
  }
  return graph;
}

/// Steps of hops that begin in the order in which they come.
class HopNumbering {
 public:
  HopNumbering(const Network& network, int pieces)
      : network_(network),
        pieces_(pieces),
        last_step_(at(network.cells().size()), 0),
        last_on_(network.edges().size()) {}

  /// After the hop that brought the chunk, and not before what its source, or any of its images,
  /// has sent. Within a step a lane goes by chunk: what has to go out of that order begins a new
  /// step; so does what is of another cell, as images are not ordered alike, and the next piece of
  /// one chunk: in one step they would be one message again.
  int step(const Hop& hop) {
    const Cells& cells = network_.cells();
    const auto n = static_cast<std::size_t>(network_.world_size());
    const auto brought = brought_.find(at(hop.chunk) * n + at(hop.src));
    int& last = last_step_[at(hop.src % cells.size())];
    int step = brought == brought_.end() ? last : std::max(last, brought->second + 1);
    const int cell = cells.cell_of(hop.src);
    Sent& before = last_on_[at(edge_of(network_, hop))];
    const bool piece = pieces_ > 1 && before.chunk / pieces_ == hop.chunk / pieces_;
    if (before.step == step && (before.cell != cell || before.chunk > hop.chunk || piece)) ++step;
    before = {step, cell, hop.chunk};
    last = step;
    brought_[at(hop.chunk) * n + at(hop.dst)] = step;
    return step;
  }

 private:
  struct Sent {
    int step = -1, cell = -1;
    ChunkId chunk = -1;
  };

  const Network& network_;
  int pieces_;
  std::vector<int> last_step_;                    // by source rank, that of cell 0
  std::vector<Sent> last_on_;                     // by edge
  std::unordered_map<std::size_t, int> brought_;  // chunk · n + rank: the step that brought it
};

}  // namespace

Schedule as_begun(std::string_view name, const Network& network,
                  const MulticastRouting& multicast) {
  Schedule schedule{std::string(name),
                    multicast.collective,
                    network.world_size(),
                    multicast.num_chunks,
                    {},
                    network.cells().radices()};
  HopNumbering numbering(network, multicast.pieces);
  for (const Hop& hop : multicast.hops) {
    const auto step = at(numbering.step(hop));
    if (step >= schedule.steps.size()) schedule.steps.resize(step + 1);
    schedule.steps[step].push_back({hop.src, hop.dst, hop.chunk, Action::copy});
  }
  for (Step& step : schedule.steps) {
    std::sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.src, a.dst, a.chunk) < std::tie(b.src, b.dst, b.chunk);
    });
  }
  return schedule;
}

std::optional<OrderedHops> ordered(std::string_view name, const Network& network,
                                   const MulticastRouting& multicast, double chunk_bytes,
                                   double give_up_s) {
  MulticastRouting begun{multicast.collective, multicast.num_chunks, {}, multicast.pieces};
  begun.hops.reserve(multicast.hops.size());
  ListScheduler scheduler(network, jobs_of(network, multicast, chunk_bytes), chunk_bytes);
  const std::vector<int> order = scheduler.run(give_up_s);
  if (scheduler.seconds() > give_up_s) return std::nullopt;
  for (const int job : order) begun.hops.push_back(multicast.hops[at(job)]);
  return OrderedHops{as_begun(name, network, begun), scheduler.seconds()};
}

Schedule in_order(std::string_view name, const Network& network, const MulticastRouting& multicast,
                  double chunk_bytes) {
  return ordered(name, network, multicast, chunk_bytes)->schedule;
}

double load_s(const Network& network, const MulticastRouting& multicast, double chunk_bytes) {
  std::vector<double> busy_s(network.resources().size(), 0);
  for (const Hop& hop : multicast.hops) {
    for (const int index : network.edges()[at(edge_of(network, hop))].resources) {
      const Resource& resource = network.resources()[at(index)];
      busy_s[at(index)] += resource.message_s + chunk_bytes * resource.beta_s_per_byte;
    }
  }
  return busy_s.empty() ? 0 : std::ranges::max(busy_s);
}

}  // namespace chorus::synth
