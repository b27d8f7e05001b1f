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

struct Volume {
  const Partition* partition = nullptr;
  bool leaving = true;
  std::vector<int> arcs;
};

std::vector<Volume> volumes_of(const Network& network, const std::vector<Partition>& partitions) {
  std::vector<Volume> volumes;
  for (const Partition& partition : partitions) {
    for (const bool leaving : {true, false}) {
      volumes.push_back({&partition, leaving, partition.arcs(network, leaving)});
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

Rate by_cuts_and_volumes(const Network& network, const std::vector<Volume>& volumes) {
  const Rate cut = least_cut(network);
  Rate least{.gb_s = kNoLimit, .method = "volume"};
  for (const Volume& volume : volumes) {
    const double gb_s = network.crossing(volume.arcs) / volume.partition->messages();
    if (gb_s >= least.gb_s * (1 - 1e-10)) continue;
    least.gb_s = gb_s;
    least.arcs = volume.arcs;
    least.words = words_of(*volume.partition, network, volume.leaving);
  }
  return least.gb_s < cut.gb_s * (1 - 1e-9) ? least : cut;
}

Rate by_cutting_planes(const Network& network, const std::vector<Volume>& volumes) {
  CarryProgram program(network);
  std::vector<int> requirements;
  for (const Volume& volume : volumes) {
    requirements.push_back(program.require(volume.arcs, volume.partition->messages()));
  }
  for (int part = 0; part < volumes.front().partition->parts; ++part) {  // every terminal's exit
    program.require_cut(volumes.front().partition->side(part), 1);
  }
  PairFlow flow(network);
  Rate rate{.method = "min cut and LP"};
  for (int round = 0, settled = 0; round < kMaxRounds && settled == 0; ++round) {
    program.solve();
    rate.gb_s = program.rate();
    if (program.hardly_falls()) break;
    settled = 1;
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
      flow.set_arc(static_cast<int>(arc), program.carried(static_cast<int>(arc)));
    }
    each_separating_pair(network, [&](int from, int to) {
      if (flow.between(from, to) >= rate.gb_s * (1 - 1e-7)) return;
      program.require_cut(flow.side(), 1);
      settled = 0;
    });
  }
  program.explain(rate);
  if (!rate.side.empty()) return rate;
  for (std::size_t i = 0; i < volumes.size(); ++i) {
    if (!program.limits(requirements[i])) continue;
    rate.method = "volume and LP";
    rate.words = words_of(*volumes[i].partition, network, volumes[i].leaving);
    rate.arcs = volumes[i].arcs;
    break;
  }
  return rate;
}

}  // namespace

Rate all_reduce_cut_rate(const Network& network) { return least_cut(network); }

Rate all_reduce_rate(const Network& network) {
  std::vector<Partition> partitions = natural_partitions(network);
  if (auto merged = merged_partition(network)) partitions.push_back(*std::move(merged));
  const std::vector<Volume> volumes = volumes_of(network, partitions);
  return network.plain() ? by_cuts_and_volumes(network, volumes)
                         : by_cutting_planes(network, volumes);
}

}  // namespace chorus::bounds
