#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <utility>

#include "base/check.hpp"
#include "model/cost.hpp"

namespace chorus {
namespace {

/// How good a path is, best first. Alpha is counted in whole femtoseconds: sums of doubles depend
/// on their order, and a route must not.
struct Label {
  std::int64_t alpha_fs = 0;
  double worst_beta = 0;
  int hops = 0;

  auto operator<=>(const Label&) const = default;
};

std::int64_t femtoseconds(double seconds) {
  constexpr double kLongest = 1e3;  // seconds; keeps sums of thousands of links within 64 bits
  return std::llround(std::clamp(seconds, 0.0, kLongest) * 1e15);
}

struct Graph {
  const Topology& topology;
  std::vector<std::vector<int>> out;  // links that leave each node
  std::vector<char> carries_rank;     // by node

  explicit Graph(const Topology& t)
      : topology(t), out(t.nodes.size()), carries_rank(t.nodes.size(), 0) {
    for (std::size_t link = 0; link < t.links.size(); ++link) {
      out[static_cast<std::size_t>(t.links[link].src)].push_back(static_cast<int>(link));
    }
    for (const int node : t.rank_nodes) carries_rank[static_cast<std::size_t>(node)] = 1;
  }
};

/// Dijkstra from `source`. Returns the link over which each node is reached best, -1 where none.
std::vector<int> best_links(const Graph& graph, int source, bool through_ranks) {
  const std::size_t num_nodes = graph.out.size();
  std::vector<int> via(num_nodes, -1);
  std::vector<Label> best(num_nodes);
  std::vector<char> done(num_nodes, 0);
  using Item = std::pair<Label, int>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  queue.push({Label{}, source});
  while (!queue.empty()) {
    const auto [label, node] = queue.top();
    queue.pop();
    const auto at = static_cast<std::size_t>(node);
    if (done[at] != 0) continue;
    done[at] = 1;
    if (node != source && graph.carries_rank[at] != 0 && !through_ranks) continue;
    for (const int index : graph.out[at]) {
      const Topology::Link& link = graph.topology.links[static_cast<std::size_t>(index)];
      const auto next = static_cast<std::size_t>(link.dst);
      if (done[next] != 0) continue;
      const Label reached{label.alpha_fs + femtoseconds(link.alpha_s),
                          std::max(label.worst_beta, link.beta_s_per_byte), label.hops + 1};
      if (via[next] >= 0 && !(reached < best[next])) continue;
      best[next] = reached;
      via[next] = index;
      queue.push({reached, link.dst});
    }
  }
  return via;
}

std::vector<int> walk_back(const Topology& topology, const std::vector<int>& via, int source,
                           int target) {
  std::vector<int> path;
  for (int node = target; node != source;) {
    const int link = via[static_cast<std::size_t>(node)];
    if (link < 0) return {};
    path.push_back(link);
    node = topology.links[static_cast<std::size_t>(link)].src;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace

Routes::Routes(const Topology& topology) : world_size_(topology.world_size()) {
  const auto n = static_cast<std::size_t>(world_size_);
  paths_.resize(n * n);
  alpha_s_.assign(n * n, 0.0);
  connected_.assign(n * n, 0);
  const Graph graph(topology);
  for (std::size_t src = 0; src < n; ++src) {
    const int source = topology.rank_nodes[src];
    const std::vector<int> direct = best_links(graph, source, /*through_ranks=*/false);
    std::vector<int> relayed;  // found only if somebody needs it
    for (std::size_t dst = 0; dst < n; ++dst) {
      const std::size_t pair = src * n + dst;
      const int target = topology.rank_nodes[dst];
      if (target == source) {
        connected_[pair] = 1;
        continue;
      }
      std::vector<int> path = walk_back(topology, direct, source, target);
      if (path.empty()) {
        if (relayed.empty()) relayed = best_links(graph, source, /*through_ranks=*/true);
        path = walk_back(topology, relayed, source, target);
      }
      if (path.empty()) continue;
      connected_[pair] = 1;
      for (const int link : path) {
        alpha_s_[pair] += topology.links[static_cast<std::size_t>(link)].alpha_s;
      }
      paths_[pair] = std::move(path);
    }
  }
}

std::size_t Routes::index(Rank src, Rank dst) const {
  CHORUS_CHECK(src >= 0 && src < world_size_ && dst >= 0 && dst < world_size_,
               "a route is asked for between ranks of its topology");
  return static_cast<std::size_t>(src) * static_cast<std::size_t>(world_size_) +
         static_cast<std::size_t>(dst);
}

const std::vector<int>& Routes::path(Rank src, Rank dst) const { return paths_[index(src, dst)]; }

bool Routes::connected(Rank src, Rank dst) const { return connected_[index(src, dst)] != 0; }

double Routes::alpha_s(Rank src, Rank dst) const { return alpha_s_[index(src, dst)]; }

}  // namespace chorus
