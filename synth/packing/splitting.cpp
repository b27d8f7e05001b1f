#include "synth/packing/splitting.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <queue>
#include <span>
#include <tuple>
#include <utility>

#include "base/index.hpp"
#include "model/price/max_flow.hpp"

namespace chorus::synth {
namespace {

struct UnitArc {
  int src = 0;
  int dst = 0;
  int units = 0;
  std::vector<int> links;
};

/// Moves `units` from an arc into a switch and one out of it to an arc past it. Any of the three
/// may be absent (-1).
struct Move {
  int in = -1;
  int out = -1;
  int past = -1;
  int units = 0;
};

class Splitting {
 public:
  Splitting(const CapacityGraph& graph, const TreeDemand& demand)
      : graph_(graph), feeder_(graph.num_nodes), flow_(graph.num_nodes + 1) {
    for (const int node : graph.terminals) {
      total_ += demand.supply[at(node)];
      if (demand.supply[at(node)] > 0) flow_.add_arc(feeder_, node, demand.supply[at(node)]);
    }
    num_feeds_ = static_cast<int>(std::count_if(demand.supply.begin(), demand.supply.end(),
                                                [](int supply) { return supply > 0; }));
    for (const CapacityGraph::Arc& arc : graph.arcs) {
      const double units = std::floor(arc.gb_s / demand.unit_gb_s * (1 + 1e-9));
      if (units < 1) continue;
      // No arc can be of use to more trees than there are.
      add({arc.src, arc.dst, static_cast<int>(std::min<double>(units, total_)), arc.links});
    }
    order_ = graph.terminals;
  }

  /// True if a maximum flow brings every tree to every terminal.
  bool holds() { return missing() == 0; }

  /// Makes the switches pass on exactly what they take in. False if they cannot.
  bool balance() {
    for (int sweep = 0; sweep < 8; ++sweep) {
      bool balanced = true;
      for (int node = 0; node < graph_.num_nodes; ++node) {
        if (graph_.is_terminal(node) || excess(node) == 0) continue;
        balanced = false;
        attempt(proportional_cuts(node));
        for (const int arc : wider_side(node)) {
          const int most = std::min(arcs_[at(arc)].units, std::abs(excess(node)));
          if (most > 0) attempt({cut(node, arc, most)});
        }
      }
      if (balanced) return true;
    }
    return false;
  }

  /// Removes all switches, the farthest from the ranks first. False if one resists.
  bool remove_switches(const RoutePieces& routes, const Budget& budget) {
    for (const int node : switches_from_afar()) {
      if (budget.spent()) return false;
      attempt(even_moves(node, routes));
      for (const bool along_routes : {true, false}) {
        if (!move_rest(node, routes, along_routes, budget)) return false;
      }
      for (const int arc : arcs_at(node, true)) set_units(arc, 0);
      for (const int arc : arcs_at(node, false)) set_units(arc, 0);
    }
    return holds();
  }

  [[nodiscard]] PairCapacities pairs() const {
    std::vector<int> index(at(graph_.num_nodes), -1);
    for (std::size_t i = 0; i < graph_.terminals.size(); ++i) {
      index[at(graph_.terminals[i])] = static_cast<int>(i);
    }
    const std::size_t n = graph_.terminals.size();
    PairCapacities pairs(n * n, 0);
    for (const UnitArc& arc : arcs_) {
      if (arc.units > 0) pairs[at(index[at(arc.src)]) * n + at(index[at(arc.dst)])] += arc.units;
    }
    return pairs;
  }

 private:
  int add(UnitArc arc) {
    const auto key = std::tuple(arc.src, arc.dst, arc.links);
    const auto [found, is_new] = numbers_.try_emplace(key, static_cast<int>(arcs_.size()));
    if (is_new) {
      flow_.add_arc(arc.src, arc.dst, arc.units);
      arcs_.push_back(std::move(arc));
    } else if (arc.units > 0) {
      set_units(found->second, arcs_[at(found->second)].units + arc.units);
    }
    return found->second;
  }

  void set_units(int arc, int units) {
    arcs_[at(arc)].units = units;
    flow_.set_capacity(num_feeds_ + arc, units);
  }

  void apply(const Move& move, int times) {
    if (move.in >= 0) set_units(move.in, arcs_[at(move.in)].units - times * move.units);
    if (move.out >= 0) set_units(move.out, arcs_[at(move.out)].units - times * move.units);
    if (move.past >= 0) set_units(move.past, arcs_[at(move.past)].units + times * move.units);
  }

  /// How many trees do not reach the first terminal found that some do not reach; 0 if there is
  /// none.
  int missing() {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const double flow = flow_.solve(feeder_, order_[i], total_);
      if (flow >= total_ - 0.5) continue;
      std::rotate(order_.begin(), order_.begin() + static_cast<long>(i),
                  order_.begin() + static_cast<long>(i) + 1);  // it may well fail next time too
      return total_ - static_cast<int>(std::lround(flow));
    }
    return 0;
  }

  /// Does as much of `moves` as no cut forbids: all at once if possible, else by halves. No cut
  /// loses more by a single one than what it moves, so what is missing is what it moves too much.
  void attempt(std::span<const Move> moves) {
    if (moves.empty()) return;
    for (const Move& move : moves) apply(move, 1);
    int too_many = missing();
    if (too_many == 0) return;
    for (const Move& move : moves) apply(move, -1);
    if (moves.size() > 1) {
      attempt(moves.first(moves.size() / 2));
      attempt(moves.subspan(moves.size() / 2));
      return;
    }
    for (Move move = moves.front(); move.units > too_many;) {
      move.units -= too_many;
      apply(move, 1);
      too_many = missing();
      if (too_many == 0) return;
      apply(move, -1);
    }
  }
  void attempt(std::initializer_list<Move> moves) {
    attempt(std::span(moves.begin(), moves.size()));
  }

  [[nodiscard]] std::vector<int> arcs_at(int node, bool entering) const {
    std::vector<int> found;
    for (std::size_t arc = 0; arc < arcs_.size(); ++arc) {
      if (arcs_[arc].units > 0 && (entering ? arcs_[arc].dst : arcs_[arc].src) == node) {
        found.push_back(static_cast<int>(arc));
      }
    }
    std::stable_sort(found.begin(), found.end(), [&](int a, int b) {
      return entering ? arcs_[at(a)].src < arcs_[at(b)].src : arcs_[at(a)].dst < arcs_[at(b)].dst;
    });
    return found;
  }

  /// What enters `node` less what leaves it.
  [[nodiscard]] int excess(int node) const {
    int sum = 0;
    for (const UnitArc& arc : arcs_) {
      sum += (arc.dst == node ? arc.units : 0) - (arc.src == node ? arc.units : 0);
    }
    return sum;
  }

  [[nodiscard]] std::vector<int> wider_side(int node) const {
    return arcs_at(node, excess(node) > 0);
  }
  [[nodiscard]] Move cut(int node, int arc, int units) const {
    return arcs_[at(arc)].dst == node ? Move{arc, -1, -1, units} : Move{-1, arc, -1, units};
  }

  [[nodiscard]] std::vector<Move> proportional_cuts(int node) const {
    const std::vector<int> wide = wider_side(node);
    long sum = 0;
    for (const int arc : wide) sum += arcs_[at(arc)].units;
    const long superfluous = std::abs(excess(node));
    std::vector<Move> cuts;
    long seen = 0;
    for (const int arc : wide) {
      const long before = seen * superfluous / sum;
      seen += arcs_[at(arc)].units;
      const auto units = static_cast<int>(seen * superfluous / sum - before);
      if (units > 0) cuts.push_back(cut(node, arc, units));
    }
    return cuts;
  }

  [[nodiscard]] std::vector<int> switches_from_afar() const {
    std::vector<int> distance(at(graph_.num_nodes), -1);
    std::queue<int> queue;
    for (const int node : graph_.terminals) {
      distance[at(node)] = 0;
      queue.push(node);
    }
    std::vector<std::vector<int>> next(at(graph_.num_nodes));
    for (const UnitArc& arc : arcs_) next[at(arc.src)].push_back(arc.dst);
    for (; !queue.empty(); queue.pop()) {
      for (const int node : next[at(queue.front())]) {
        if (distance[at(node)] >= 0) continue;
        distance[at(node)] = distance[at(queue.front())] + 1;
        queue.push(node);
      }
    }
    std::vector<int> switches;
    for (int node = 0; node < graph_.num_nodes; ++node) {
      if (!graph_.is_terminal(node)) switches.push_back(node);
    }
    std::stable_sort(switches.begin(), switches.end(),
                     [&](int a, int b) { return distance[at(a)] > distance[at(b)]; });
    return switches;
  }

  /// The arc past the switch, or -1 if it would lead back to where it came from.
  int arc_past(int in, int out) {
    if (arcs_[at(in)].src == arcs_[at(out)].dst) return -1;
    UnitArc past{arcs_[at(in)].src, arcs_[at(out)].dst, 0, arcs_[at(in)].links};
    past.links.insert(past.links.end(), arcs_[at(out)].links.begin(), arcs_[at(out)].links.end());
    return add(std::move(past));
  }

  [[nodiscard]] bool on_route(int in, int out, const RoutePieces& routes) const {
    return arcs_[at(in)].src != arcs_[at(out)].dst &&
           routes.contain(arcs_[at(in)].links, arcs_[at(out)].links);
  }

  /// Joins what enters to what leaves along the routes, everybody with everybody as evenly as whole
  /// trees allow.
  std::vector<Move> even_moves(int node, const RoutePieces& routes) {
    const std::vector<int> ins = arcs_at(node, true);
    const std::vector<int> outs = arcs_at(node, false);
    std::vector<int> in_left, out_left, share;
    for (const int in : ins) {
      in_left.push_back(arcs_[at(in)].units);
      const auto partners = static_cast<int>(std::count_if(
          outs.begin(), outs.end(), [&](int out) { return on_route(in, out, routes); }));
      share.push_back(partners == 0 ? 0 : (in_left.back() + partners - 1) / partners);
    }
    for (const int out : outs) out_left.push_back(arcs_[at(out)].units);
    std::map<std::pair<std::size_t, std::size_t>, int> planned;
    for (const bool evenly : {true, false}) {
      for (std::size_t shift = 1; shift <= outs.size(); ++shift) {
        for (std::size_t i = 0; i < ins.size(); ++i) {
          const std::size_t j = (i + shift) % outs.size();
          const int units = std::min({in_left[i], out_left[j], evenly ? share[i] : in_left[i]});
          if (units <= 0 || !on_route(ins[i], outs[j], routes)) continue;
          planned[{i, j}] += units;
          in_left[i] -= units;
          out_left[j] -= units;
        }
      }
    }
    std::vector<Move> moves;
    for (const auto& [pair, units] : planned) {
      const int in = ins[pair.first];
      const int out = outs[pair.second];
      moves.push_back({in, out, arc_past(in, out), units});
    }
    return moves;
  }

  /// Joins what is left, pair by pair. False if the budget is spent.
  bool move_rest(int node, const RoutePieces& routes, bool along_routes, const Budget& budget) {
    for (const int in : arcs_at(node, true)) {
      for (const int out : arcs_at(node, false)) {
        const int units = std::min(arcs_[at(in)].units, arcs_[at(out)].units);
        if (units <= 0 || (along_routes && !on_route(in, out, routes))) continue;
        if (budget.spent()) return false;
        attempt({Move{in, out, arc_past(in, out), units}});
      }
    }
    return true;
  }

  const CapacityGraph& graph_;
  int feeder_;
  MaxFlow flow_;
  int num_feeds_ = 0;  // arcs of flow_ before the first of arcs_
  int total_ = 0;
  std::vector<UnitArc> arcs_;
  std::map<std::tuple<int, int, std::vector<int>>, int> numbers_;
  std::vector<int> order_;  // terminals, those that failed last first
};

}  // namespace

std::optional<PairCapacities> without_switches(const CapacityGraph& graph,
                                               const RoutePieces& routes, const TreeDemand& demand,
                                               const Budget& budget) {
  Splitting splitting(graph, demand);
  if (!splitting.holds() || !splitting.balance()) return std::nullopt;
  if (!splitting.remove_switches(routes, budget)) return std::nullopt;
  return splitting.pairs();
}

bool cuts_allow(const CapacityGraph& graph, const TreeDemand& demand) {
  Splitting splitting(graph, demand);
  return splitting.holds() && splitting.balance();
}

}  // namespace chorus::synth
