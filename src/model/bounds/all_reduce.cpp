// All-reduce: what must cross a cut, and how much must move at all.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/bounds/carry.hpp"
#include "model/bounds/flow.hpp"
#include "model/bounds/network.hpp"
#include "model/bounds/partitions.hpp"

namespace chorus::bounds {
namespace {

// Terminals times arcs: of larger networks only the natural partitions are looked at.
constexpr std::size_t kMostCutArcs = 1'000'000;

/// Calls visit(from, to) for enough pairs that every cut between two terminals separates one; for
/// few, which shows fewer cuts, where the wiring is large and repeats itself.
template <class Visit>
void each_separating_pair(const Network& network, Visit visit) {
  const int first = network.terminals.front();
  if (network.repetition) {  // some of them: a move of each kind, and within the cell
    std::vector<int> others = network.representatives;
    for (const Automorphism& generator : network.repetition->generators) {
      others.push_back(generator.nodes[static_cast<std::size_t>(first)]);
    }
    for (const int node : others) {
      if (node == first) continue;
      visit(first, node);
      visit(node, first);
    }
    return;
  }
  for (const int node : network.terminals) {
    if (node == first) continue;
    visit(first, node);
    visit(node, first);
  }
}

std::string words_of(const Partition& partition, const Network& network, bool leaving) {
  const bool single = partition.parts == static_cast<int>(network.terminals.size());
  return fmt::format("{} all {} {} together", leaving ? "out of" : "into", partition.parts,
                     single ? "ranks' nodes" : "parts");
}

/// What must leave, or enter, the parts of a partition.
struct Volume {
  Volume(const Network& network, Partition parts, bool leaves)
      : partition(std::move(parts)), leaving(leaves), arcs(partition.arcs(network, leaving)) {}

  Partition partition;
  bool leaving;
  std::vector<int> arcs;
};

std::vector<Volume> natural_volumes(const Network& network) {
  std::vector<Volume> volumes;
  for (const Partition& partition : natural_partitions(network)) {
    for (const bool leaving : {true, false}) volumes.emplace_back(network, partition, leaving);
  }
  return volumes;
}

/// Volumes that are wanting if the arcs carry `carried` and the rate is to be `rate`.
std::vector<Volume> wanting_volumes(const Network& network, const std::vector<double>& carried,
                                    double rate) {
  std::vector<Volume> volumes;
  if (network.terminals.size() * network.arcs.size() > kMostCutArcs) return volumes;
  for (const bool leaving : {true, false}) {
    if (auto found = wanting_partition(network, carried, rate, leaving)) {
      volumes.emplace_back(network, *std::move(found), leaving);
    }
  }
  return volumes;
}

Rate least_cut(const Network& network) {
  Rate rate{.gb_s = kNoLimit, .method = "min cut"};
  PairFlow flow(network);
  each_separating_pair(network, [&](int from, int to) {
    if (flow.between(from, to) >= rate.gb_s * (1 - 1e-10)) return;
    rate.side = flow.side();
    rate.gb_s = network.crossing(rate.side);
  });
  rate.arcs = network.arcs_across(rate.side);
  return rate;
}

Rate by_cuts_and_volumes(const Network& network) {
  const Rate cut = least_cut(network);
  Rate least{.gb_s = kNoLimit, .method = "volume"};
  const auto consider = [&](const Volume& volume) {
    const double gb_s = network.crossing(volume.arcs) / volume.partition.messages();
    if (gb_s >= least.gb_s * (1 - 1e-10)) return;
    least.gb_s = gb_s;
    least.arcs = volume.arcs;
    least.words = words_of(volume.partition, network, volume.leaving);
  };
  std::ranges::for_each(natural_volumes(network), consider);
  std::vector<double> capacities;
  for (const Network::Arc& arc : network.arcs) capacities.push_back(arc.capacity);
  for (int round = 0; round < kMaxRounds; ++round) {  // Newton's method: a few
    const double before = std::min(least.gb_s, cut.gb_s);
    std::ranges::for_each(wanting_volumes(network, capacities, before), consider);
    if (least.gb_s >= before) break;
  }
  return least.gb_s < cut.gb_s * (1 - 1e-9) ? least : cut;
}

class CuttingPlanes {
 public:
  explicit CuttingPlanes(const Network& network)
      : network_(network), program_(network), flow_(network) {
    for (Volume& volume : natural_volumes(network)) require(std::move(volume));
    const Partition& alone = volumes_.front().partition;
    for (int part = 0; part < alone.parts; ++part) {  // every terminal's exit and entry
      program_.require_cut(alone.side(part), 1);
      program_.require_cut(turned(alone.side(part)), 1);
    }
  }

  Rate rate() {
    for (int round = 0; round < kMaxRounds; ++round) {
      program_.solve();
      if (program_.hardly_falls()) break;
      const bool cuts = add_cuts();
      const bool volumes = add_volumes();
      if (!cuts && !volumes) break;
    }
    Rate rate{.gb_s = program_.rate(), .method = "min cut and LP"};
    program_.explain(rate);
    if (!rate.side.empty()) return rate;
    for (std::size_t i = 0; i < volumes_.size(); ++i) {
      if (!program_.limits(requirements_[i])) continue;
      rate.method = "volume and LP";
      rate.words = words_of(volumes_[i].partition, network_, volumes_[i].leaving);
      rate.arcs = volumes_[i].arcs;
      break;
    }
    return rate;
  }

 private:
  void require(Volume volume) {
    requirements_.push_back(program_.require(volume.arcs, volume.partition.messages()));
    volumes_.push_back(std::move(volume));
  }

  /// True if there were some that are wanting; so below.
  bool add_cuts() {
    for (std::size_t arc = 0; arc < network_.arcs.size(); ++arc) {
      flow_.set_arc(static_cast<int>(arc), program_.carried(static_cast<int>(arc)));
    }
    bool added = false;
    each_separating_pair(network_, [&](int from, int to) {
      if (flow_.between(from, to) >= program_.rate() * (1 - 1e-7)) return;
      program_.require_cut(flow_.side(), 1);
      added = true;
    });
    return added;
  }

  bool add_volumes() {
    std::vector<Volume> wanting = wanting_volumes(network_, program_.mean(), program_.rate());
    for (Volume& volume : wanting) require(std::move(volume));
    return !wanting.empty();
  }

  const Network& network_;
  CarryProgram program_;
  PairFlow flow_;
  std::vector<Volume> volumes_;
  std::vector<int> requirements_;  // by volume
};

}  // namespace

Rate all_reduce_cut_rate(const Network& network) { return least_cut(network); }

Rate all_reduce_rate(const Network& network) {
  return network.plain() ? by_cuts_and_volumes(network) : CuttingPlanes(network).rate();
}

}  // namespace chorus::bounds
