#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "model/price/cost.hpp"
#include "model/schedule/ways.hpp"

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
  Ways ways;
  std::vector<std::vector<int>> out;  // links that leave each node
  std::vector<char> carries_rank;     // by node

  explicit Graph(const Topology& t)
      : topology(t), ways(t), out(at(ways.num_nodes())), carries_rank(out.size(), 0) {
    for (std::size_t link = 0; link < t.links.size(); ++link) {
      out[at(ways.src[link])].push_back(static_cast<int>(link));
    }
    for (const int node : t.rank_nodes) carries_rank[at(node)] = 1;
  }

  [[nodiscard]] bool same_host(int a, int b) const {
    return ways.outermost[at(a)] == ways.outermost[at(b)];
  }

  /// Whether data of `source` that crosses the link came into another host and goes out of it.
  [[nodiscard]] bool leaves_third_host(int source, const Topology::Link& link) const {
    const int outermost = ways.outermost[at(link.src)];
    return topology.nodes[at(outermost)].kind == NodeKind::host && !same_host(source, link.src) &&
           !same_host(link.src, link.dst);
  }
};

/// Which paths are looked at.
enum class Paths {
  inside,   ///< of the source's host alone, through no other rank's node
  direct,   ///< through no other rank's node and no third host, which passes nothing on by itself
  relayed,  ///< all
};

/// Dijkstra from `source`. Returns the link over which each node is reached best, -1 where none.
std::vector<int> best_links(const Graph& graph, int source, Paths paths) {
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
    if (std::exchange(done[at(node)], 1) != 0) continue;
    if (node != source && graph.carries_rank[at(node)] != 0 && paths != Paths::relayed) continue;
    for (const int index : graph.out[at(node)]) {
      const Topology::Link& link = graph.topology.links[at(index)];
      if (paths == Paths::inside && !graph.same_host(source, link.dst)) continue;
      if (paths == Paths::direct && graph.leaves_third_host(source, link)) continue;
      const std::size_t next = at(graph.ways.dst[at(index)]);
      if (done[next] != 0) continue;
      const Label reached{label.alpha_fs + femtoseconds(link.alpha_s),
                          std::max(label.worst_beta, link.beta_s_per_byte), label.hops + 1};
      if (via[next] >= 0 && !(reached < best[next])) continue;
      best[next] = reached;
      via[next] = index;
      queue.push({reached, graph.ways.dst[at(index)]});
    }
  }
  return via;
}

std::vector<int> walk_back(const Graph& graph, const std::vector<int>& via, int source,
                           int target) {
  std::vector<int> path;
  for (int node = target; node != source;) {
    const int link = via[at(node)];
    if (link < 0) return {};
    path.push_back(link);
    node = graph.ways.src[at(link)];
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace

struct RouteFinder::Impl {
  Graph graph;
};

RouteFinder::RouteFinder(const Topology& topology) : impl_(new Impl{Graph(topology)}) {}
RouteFinder::~RouteFinder() = default;

std::vector<Route> RouteFinder::from(Rank src) const {
  const Topology& topology = impl_->graph.topology;
  const int source = topology.rank_nodes[static_cast<std::size_t>(src)];
  const Graph& graph = impl_->graph;
  const std::vector<int> direct = best_links(graph, source, Paths::direct);
  std::vector<int> inside, relayed;  // found only if somebody needs it
  std::vector<Route> routes(topology.rank_nodes.size());
  for (std::size_t dst = 0; dst < routes.size(); ++dst) {
    Route& route = routes[dst];
    const int target = topology.rank_nodes[dst];
    if (target == source) {
      route.connected = true;
      continue;
    }
    route.path = walk_back(graph, direct, source, target);
    if (graph.same_host(source, target)) {
      if (inside.empty()) inside = best_links(graph, source, Paths::inside);
      std::vector<int> path = walk_back(graph, inside, source, target);
      if (!path.empty()) route.path = std::move(path);
    }
    if (route.path.empty()) {
      if (relayed.empty()) relayed = best_links(graph, source, Paths::relayed);
      route.path = walk_back(graph, relayed, source, target);
      route.relayed = true;
    }
    route.connected = !route.path.empty();
    for (const int link : route.path) {
      route.alpha_s += topology.links[static_cast<std::size_t>(link)].alpha_s;
    }
  }
  return routes;
}

Routes::Routes(const Topology& topology) : world_size_(topology.world_size()) {
  const auto n = static_cast<std::size_t>(world_size_);
  routes_.reserve(n * n);
  const RouteFinder finder(topology);
  for (Rank src = 0; src < world_size_; ++src) {
    for (Route& route : finder.from(src)) routes_.push_back(std::move(route));
  }
}

std::size_t Routes::index(Rank src, Rank dst) const {
  CHORUS_CHECK(src >= 0 && src < world_size_ && dst >= 0 && dst < world_size_,
               "a route is asked for between ranks of its topology");
  return static_cast<std::size_t>(src) * static_cast<std::size_t>(world_size_) +
         static_cast<std::size_t>(dst);
}

const std::vector<int>& Routes::path(Rank src, Rank dst) const {
  return routes_[index(src, dst)].path;
}

bool Routes::connected(Rank src, Rank dst) const { return routes_[index(src, dst)].connected; }

double Routes::alpha_s(Rank src, Rank dst) const { return routes_[index(src, dst)].alpha_s; }

}  // namespace chorus
