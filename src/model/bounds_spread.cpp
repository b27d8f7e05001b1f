// Rates of spreading and combining: all-gather, reduce-scatter, broadcast, reduce, all-reduce.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>

#include "base/check.hpp"
#include "model/bounds_lp.hpp"
#include "model/bounds_network.hpp"
#include "model/max_flow.hpp"

namespace chorus::bounds {
namespace {

using Side = std::vector<char>;
constexpr int kMaxRounds = 500;  // of cutting planes; a few dozen are enough in practice

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::size_t at(int index) { return static_cast<std::size_t>(index); }

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// w(S), the sources inside a set of nodes.
double inside(const std::vector<double>& sources, const Side& side) {
  double sum = 0;
  for (std::size_t node = 0; node < side.size(); ++node) {
    if (side[node] != 0) sum += sources[node];
  }
  return sum;
}

Side all_but(const Network& network, int node) {
  Side side(at(network.num_nodes()), 1);
  side[at(node)] = 0;
  return side;
}

/// Flows through a network from an extra node that feeds every source with weight·x.
class FedFlow {
 public:
  FedFlow(const Network& network, const std::vector<double>& sources)
      : sources_(sources), feeder_(network.num_nodes()), flow_(network.num_nodes() + 1) {
    for (const Network::Arc& arc : network.arcs) flow_.add_arc(arc.src, arc.dst, arc.capacity);
    for (int node = 0; node < network.num_nodes(); ++node) {
      feeds_.push_back(sources[at(node)] > 0 ? flow_.add_arc(feeder_, node, 0) : -1);
    }
  }

  void set_arc(int arc, double capacity) { flow_.set_capacity(arc, capacity); }
  void set_rate(double x) {
    for (std::size_t node = 0; node < feeds_.size(); ++node) {
      if (feeds_[node] >= 0) flow_.set_capacity(feeds_[node], sources_[node] * x);
    }
  }

  double flow_to(int node) { return flow_.solve(feeder_, node); }
  /// The nodes on the source's side of the cut just found.
  Side side() const {
    Side side = flow_.source_side();
    side.pop_back();
    return side;
  }

 private:
  std::vector<double> sources_;
  int feeder_;
  MaxFlow flow_;
  std::vector<int> feeds_;
};

/// Newton's method on the ratio (Dinkelbach 1967): at the present x look for a set S with
/// B(S) < x·w(S); its own ratio is the next x. Ends, after a few rounds, on the exact least ratio,
/// with no fraction to round: the ratio of a real cut.
Rate least_ratio(const Network& network, const std::vector<double>& sources) {
  Rate rate{.gb_s = kNoLimit, .method = "max-flow"};
  const auto try_side = [&](const Side& side) {
    const double within = inside(sources, side);
    if (within <= 0) return false;
    const double ratio = network.crossing(side) / within;
    if (ratio >= rate.gb_s * (1 - 1e-12)) return false;
    rate.gb_s = ratio;
    rate.side = side;
    return true;
  };
  for (const int node : network.terminals) try_side(all_but(network, node));
  const double total = sum_of(sources);
  FedFlow flow(network, sources);
  for (bool again = true; again;) {
    again = false;
    for (const int node : network.terminals) {
      flow.set_rate(rate.gb_s);
      const double wanted = total * rate.gb_s;
      if (flow.flow_to(node) < wanted * (1 - 1e-10) && try_side(flow.side())) again = true;
    }
  }
  return rate;
}

/// Cutting planes: how much each link carries is a variable, switches pass on exactly what they
/// take in, port groups are rows, and every cut that a maximum flow finds wanting becomes a row.
class CarryProgram {
 public:
  explicit CarryProgram(const Network& network) : network_(network) {
    for (const Network::Arc& arc : network.arcs) program_.add_variable(0, arc.capacity, 0);
    rate_ = program_.add_variable(0, network.unlimited, 1);
    for (const Network::Group& group : network.groups) {
      std::vector<LinearProgram::Term> terms;
      for (const int arc : group.arcs) terms.push_back({arc, 1});
      group_rows_.push_back(program_.add_row(-LinearProgram::kInfinity, group.capacity, terms));
    }
    for (int node = 0; node < network.num_nodes(); ++node) {
      if (!network.is_terminal(node)) add_balance(node);
    }
  }

  /// The arcs together carry at least weight·x.
  void require(const std::vector<int>& arcs, double weight) {
    std::vector<LinearProgram::Term> terms;
    for (const int arc : arcs) terms.push_back({arc, 1});
    terms.push_back({rate_, -weight});
    rows_.push_back(program_.add_row(0, LinearProgram::kInfinity, terms));
  }
  void require_cut(const Side& side, double weight) {
    cuts_.push_back({side, weight, static_cast<int>(rows_.size())});
    require(network_.arcs_across(side), weight);
  }

  void solve() { CHORUS_CHECK(program_.maximize(), "carrying nothing at all is always possible"); }
  [[nodiscard]] double rate() const { return program_.value(rate_); }
  [[nodiscard]] double carried(int arc) const { return std::max(0.0, program_.value(arc)); }
  [[nodiscard]] bool limits(int requirement) const {
    return program_.price(rows_[at(requirement)]) > 1e-9;
  }

  /// Says which cut limits, preferring one that explains the rate by itself.
  void explain(Rate& rate) const {
    std::vector<int> limiting_cuts;
    for (std::size_t group = 0; group < group_rows_.size(); ++group) {
      if (program_.price(group_rows_[group]) > 1e-9) rate.groups.push_back(static_cast<int>(group));
    }
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      const Cut& cut = cuts_[i];
      if (!limits(cut.row)) continue;
      limiting_cuts.push_back(static_cast<int>(i));
      if (network_.crossing(cut.side) <= rate.gb_s * cut.weight * (1 + 1e-6)) {
        rate.side = cut.side;
        rate.arcs = network_.arcs_across(cut.side);
        std::erase_if(rate.groups, [&](int group) { return !crosses(group, rate.arcs); });
        return;
      }
    }
    std::vector<char> named(network_.arcs.size(), 0);
    for (const int cut : limiting_cuts) {
      for (const int arc : network_.arcs_across(cuts_[at(cut)].side)) named[at(arc)] = 1;
    }
    for (std::size_t arc = 0; arc < named.size(); ++arc) {
      if (named[arc] != 0) rate.arcs.push_back(static_cast<int>(arc));
    }
    rate.words = "no single cut, several together";
  }

 private:
  struct Cut {
    Side side;
    double weight = 0;
    int row = 0;  // index into rows_
  };

  void add_balance(int node) {
    std::vector<LinearProgram::Term> terms;
    for (std::size_t arc = 0; arc < network_.arcs.size(); ++arc) {
      const Network::Arc& ends = network_.arcs[arc];
      if (ends.src == ends.dst) continue;
      if (ends.src == node) terms.push_back({static_cast<int>(arc), 1});
      if (ends.dst == node) terms.push_back({static_cast<int>(arc), -1});
    }
    program_.add_row(0, 0, terms);
  }

  [[nodiscard]] bool crosses(int group, const std::vector<int>& arcs) const {
    const std::vector<int>& members = network_.groups[at(group)].arcs;
    return std::any_of(arcs.begin(), arcs.end(), [&](int arc) {
      return std::binary_search(members.begin(), members.end(), arc);
    });
  }

  const Network& network_;
  LinearProgram program_;
  int rate_ = 0;
  std::vector<int> group_rows_;
  std::vector<int> rows_;  // of requirements
  std::vector<Cut> cuts_;
};

/// spread_rate() where port groups or lopsided switches couple the links.
Rate spread_by_cutting_planes(const Network& network, const std::vector<double>& sources) {
  CarryProgram program(network);
  for (const int node : network.terminals) {
    const Side side = all_but(network, node);
    if (inside(sources, side) > 0) program.require_cut(side, inside(sources, side));
  }
  FedFlow flow(network, sources);
  const double total = sum_of(sources);
  Rate rate{.method = "max-flow and LP", .tight = false};
  for (int round = 0; round < kMaxRounds && !rate.tight; ++round) {
    program.solve();
    rate.gb_s = program.rate();
    rate.tight = true;
    flow.set_rate(rate.gb_s);
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
      flow.set_arc(static_cast<int>(arc), program.carried(static_cast<int>(arc)));
    }
    for (const int node : network.terminals) {
      if (flow.flow_to(node) >= total * rate.gb_s * (1 - 1e-7)) continue;
      const Side side = flow.side();
      program.require_cut(side, inside(sources, side));
      rate.tight = false;
    }
  }
  program.explain(rate);
  return rate;
}

/// Arcs that leave (or enter) terminals.
std::vector<int> arcs_at_terminals(const Network& network, bool leaving) {
  std::vector<int> arcs;
  for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
    const Network::Arc& ends = network.arcs[arc];
    if (network.is_terminal(leaving ? ends.src : ends.dst)) arcs.push_back(static_cast<int>(arc));
  }
  return arcs;
}

/// A flow between any two nodes of a network.
class PairFlow {
 public:
  explicit PairFlow(const Network& network) : flow_(network.num_nodes()) {
    for (const Network::Arc& arc : network.arcs) flow_.add_arc(arc.src, arc.dst, arc.capacity);
  }
  void set_arc(int arc, double capacity) { flow_.set_capacity(arc, capacity); }
  double between(int src, int dst) { return flow_.solve(src, dst); }
  Side side() const { return flow_.source_side(); }

 private:
  MaxFlow flow_;
};

/// Calls visit(from, to) for enough pairs that every cut between two terminals separates one.
template <class Visit>
void each_separating_pair(const Network& network, Visit visit) {
  const int first = network.terminals.front();
  for (const int node : network.terminals) {
    if (node == first) continue;
    visit(first, node);
    visit(node, first);
  }
}

double deliveries_and_combines(const Network& network) {
  return 2.0 * (static_cast<double>(network.terminals.size()) - 1);
}

Rate all_reduce_plain(const Network& network) {
  Rate cut{.gb_s = kNoLimit, .method = "min cut"};
  PairFlow flow(network);
  each_separating_pair(network, [&](int from, int to) {
    const double found = flow.between(from, to);
    if (found >= cut.gb_s * (1 - 1e-10)) return;
    cut.side = flow.side();
    cut.gb_s = network.crossing(cut.side);
  });
  cut.arcs = network.arcs_across(cut.side);

  Rate volume{.gb_s = kNoLimit, .method = "volume"};
  for (const bool leaving : {true, false}) {
    const std::vector<int> arcs = arcs_at_terminals(network, leaving);
    const double rate = network.crossing(arcs) / deliveries_and_combines(network);
    if (rate >= volume.gb_s * (1 - 1e-10)) continue;
    volume.gb_s = rate;
    volume.arcs = arcs;
    volume.words = leaving ? "out of all ranks together" : "into all ranks together";
  }
  return volume.gb_s <= cut.gb_s * (1 + 1e-9) ? volume : cut;
}

Rate all_reduce_by_cutting_planes(const Network& network) {
  CarryProgram program(network);
  for (const bool leaving : {true, false}) {
    program.require(arcs_at_terminals(network, leaving), deliveries_and_combines(network));
  }
  for (const int node : network.terminals) program.require_cut(all_but(network, node), 1);
  PairFlow flow(network);
  Rate rate{.method = "", .tight = false};
  bool settled = false;
  for (int round = 0; round < kMaxRounds && !settled; ++round) {
    program.solve();
    rate.gb_s = program.rate();
    settled = true;
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
      flow.set_arc(static_cast<int>(arc), program.carried(static_cast<int>(arc)));
    }
    each_separating_pair(network, [&](int from, int to) {
      if (flow.between(from, to) >= rate.gb_s * (1 - 1e-7)) return;
      program.require_cut(flow.side(), 1);
      settled = false;
    });
  }
  program.explain(rate);
  const bool by_volume = program.limits(0) || program.limits(1);
  const bool by_cut = !by_volume || !rate.side.empty();
  rate.method = by_cut ? "min cut and LP" : "volume and LP";
  if (by_volume && rate.side.empty()) {
    rate.words = "out of or into all ranks together";
    rate.arcs = arcs_at_terminals(network, program.limits(0));
  }
  return rate;
}

}  // namespace

Rate spread_rate(const Network& network, const std::vector<double>& sources) {
  Rate rate =
      network.plain() ? least_ratio(network, sources) : spread_by_cutting_planes(network, sources);
  if (rate.arcs.empty() && !rate.side.empty()) rate.arcs = network.arcs_across(rate.side);
  return rate;
}

Rate all_reduce_rate(const Network& network) {
  return network.plain() ? all_reduce_plain(network) : all_reduce_by_cutting_planes(network);
}

}  // namespace chorus::bounds
