#include "synth/packing/growing.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "model/price/max_flow.hpp"

namespace chorus::synth {
namespace {

/// A tree that does not span yet.
struct Sapling {
  int copies = 0;
  std::vector<int> parent;  // of the vertices in the tree
  std::vector<int> depth;   // -1: not in the tree
  int size = 1;
  std::vector<char> closed;  // by arc: a cut forbids it, for good
  int hub = 0;               // stands for it in the flow network
};

class Forest {
 public:
  Forest(const std::vector<int>& pairs, std::vector<int> supply)
      : n_(static_cast<int>(supply.size())), supply_(std::move(supply)) {
    for (int i = 0; i < n_; ++i) {
      for (int j = 0; j < n_; ++j) {
        const int units = pairs[at(i) * at(n_) + at(j)];
        if (i != j && units > 0) arcs_.push_back({i, j, units});
      }
    }
  }

  /// Grows all trees of `root`; false if it cannot be done.
  bool grow(int root, const Budget& budget, std::vector<GrownTree>& grown) {
    begin(root);
    while (!saplings_.empty()) {
      if (budget.spent()) return false;
      if (saplings_.front().size == n_) {
        Sapling& done = saplings_.front();
        grown.push_back({root, done.copies, std::move(done.parent)});
        retire(done);
        saplings_.pop_front();
      } else if (!extend(saplings_.front())) {
        return false;
      }
    }
    return true;
  }

 private:
  struct Arc {
    int src = 0;
    int dst = 0;
    int units = 0;
  };

  /// The flow network: vertices, a source that stands for all who wait (for the trees of the roots
  /// still to come directly, for the saplings through their hubs), and the arcs.
  void begin(int root) {
    root_ = root;
    source_ = n_;
    next_hub_ = n_ + 1;
    const int copies = std::exchange(supply_[at(root)], 0);
    flow_.emplace(n_ + 1 + copies + 1);
    for (const Arc& arc : arcs_) flow_->add_arc(arc.src, arc.dst, arc.units);
    others_ = 0;
    from_source_.assign(at(n_), -1);
    for (int vertex = 0; vertex < n_; ++vertex) {
      others_ += supply_[at(vertex)];
      from_source_[at(vertex)] = flow_->add_arc(source_, vertex, supply_[at(vertex)]);
    }
    hub_arcs_.clear();
    Sapling first{copies, std::vector<int>(at(n_), -1),       std::vector<int>(at(n_), -1),
                  1,      std::vector<char>(arcs_.size(), 0), 0};
    first.depth[at(root)] = 0;
    plant(first);
    saplings_.push_back(std::move(first));
  }

  /// Gives a sapling its hub: the source feeds it with the copies, it feeds all of the tree.
  void plant(Sapling& sapling) {
    sapling.hub = next_hub_++;
    hub_arcs_[sapling.hub] = flow_->add_arc(source_, sapling.hub, sapling.copies);
    for (int vertex = 0; vertex < n_; ++vertex) {
      if (sapling.depth[at(vertex)] >= 0) flow_->add_arc(sapling.hub, vertex, kPlenty);
    }
    others_ += sapling.copies;
  }

  void retire(const Sapling& sapling) {
    flow_->set_capacity(hub_arcs_[sapling.hub], 0);
    others_ -= sapling.copies;
  }

  /// The open arc out of the tree that is nearest to the root; of those the one with most left; of
  /// those the first after the root, so that the trees of equal roots differ as the roots do.
  [[nodiscard]] int best_arc(const Sapling& sapling) const {
    int best = -1;
    const auto rank = [&](int index) {
      const Arc& arc = arcs_[at(index)];
      return std::tuple(sapling.depth[at(arc.src)], -std::min(arc.units, sapling.copies),
                        -arc.units, (arc.dst - root_ + n_) % n_, (arc.src - root_ + n_) % n_);
    };
    for (std::size_t i = 0; i < arcs_.size(); ++i) {
      const Arc& arc = arcs_[i];
      if (arc.units <= 0 || sapling.closed[i] != 0) continue;
      if (sapling.depth[at(arc.src)] < 0 || sapling.depth[at(arc.dst)] >= 0) continue;
      const auto index = static_cast<int>(i);
      if (best < 0 || rank(index) < rank(best)) best = index;
    }
    return best;
  }

  /// How many copies of the tree may take the arc: the least, over the cuts that it enters, of what
  /// is left when all other trees have got into the far side. Closes the arcs of a cut that leaves
  /// nothing.
  int allowed(Sapling& sapling, const Arc& arc) {
    const int feed = from_source_[at(arc.src)];
    flow_->set_capacity(hub_arcs_[sapling.hub], 0);
    flow_->set_capacity(feed, kPlenty);
    const int others = others_ - sapling.copies;
    const int most = std::min(sapling.copies, arc.units);
    const double flow = flow_->solve(source_, arc.dst, others + most);
    const int left = static_cast<int>(std::lround(flow)) - others;
    if (left <= 0) {
      const std::vector<char> near = flow_->source_side();
      for (std::size_t i = 0; i < arcs_.size(); ++i) {
        if (near[at(arcs_[i].src)] != 0 && near[at(arcs_[i].dst)] == 0) sapling.closed[i] = 1;
      }
    }
    flow_->set_capacity(feed, supply_[at(arc.src)]);
    flow_->set_capacity(hub_arcs_[sapling.hub], sapling.copies);
    return std::min(left, most);
  }

  bool extend(Sapling& sapling) {
    for (int index = best_arc(sapling); index >= 0; index = best_arc(sapling)) {
      Arc& arc = arcs_[at(index)];
      const int units = allowed(sapling, arc);
      if (units <= 0) {
        sapling.closed[at(index)] = 1;
        continue;
      }
      if (units < sapling.copies) {  // the other copies go another way
        Sapling rest = sapling;
        rest.copies -= units;
        others_ -= rest.copies;  // plant() counts them again
        sapling.copies = units;
        flow_->set_capacity(hub_arcs_[sapling.hub], units);
        plant(rest);
        saplings_.push_back(std::move(rest));
      }
      Sapling& front = saplings_.front();
      arc.units -= units;
      flow_->set_capacity(index, arc.units);
      front.parent[at(arc.dst)] = arc.src;
      front.depth[at(arc.dst)] = front.depth[at(arc.src)] + 1;
      ++front.size;
      flow_->add_arc(front.hub, arc.dst, kPlenty);
      return true;
    }
    return false;
  }

  static constexpr double kPlenty = 1e8;  // trees; leaves whole numbers exact

  int n_;
  int root_ = 0;
  std::vector<int> supply_;  // trees still to begin, by root
  std::vector<Arc> arcs_;
  std::optional<MaxFlow> flow_;
  int source_ = 0;
  int next_hub_ = 0;
  int others_ = 0;                // trees that do not span yet
  std::vector<int> from_source_;  // by vertex: the arc of the flow network
  std::map<int, int> hub_arcs_;
  std::deque<Sapling> saplings_;
};

}  // namespace

std::optional<std::vector<GrownTree>> grow_trees(const std::vector<int>& pairs,
                                                 const std::vector<int>& supply,
                                                 const Budget& budget) {
  CHORUS_CHECK(pairs.size() == supply.size() * supply.size(), "capacities are by pair of vertices");
  Forest forest(pairs, supply);
  std::vector<GrownTree> grown;
  for (std::size_t root = 0; root < supply.size(); ++root) {
    if (supply[root] == 0) continue;
    if (!forest.grow(static_cast<int>(root), budget, grown)) return std::nullopt;
  }
  return grown;
}

}  // namespace chorus::synth
