#include "synth/network.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/price/cost.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

/// True if no inner node of `path` carries a rank.
bool direct(const Topology& topology, const std::vector<char>& carries_rank,
            const std::vector<int>& path) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (carries_rank[at(topology.links[at(path[i])].dst)] != 0) return false;
  }
  return true;
}

/// Gives numbers to the links and groups that some edge crosses, in order of first use.
class ResourceNumbering {
 public:
  explicit ResourceNumbering(const Topology& topology)
      : topology_(topology), groups_of_(port_groups_of_links(topology)) {}

  void add(int link, std::vector<int>& resources) {
    const Topology::Link& facts = topology_.links[at(link)];
    if (facts.beta_s_per_byte > 0) resources.push_back(number({0, link}));
    for (const int group : groups_of_[at(link)]) {
      const Topology::PortGroup& port = topology_.port_groups[at(group)];
      if (port.beta_s_per_byte > 0 || port.message_s > 0) resources.push_back(number({1, group}));
    }
  }

  std::vector<Resource> take() { return std::move(resources_); }
  [[nodiscard]] const Resource& operator[](int index) const { return resources_[at(index)]; }

 private:
  int number(std::pair<int, int> what) {
    const auto [found, is_new] = numbers_.try_emplace(what, static_cast<int>(resources_.size()));
    if (is_new) resources_.push_back(resource_of(topology_, what.first == 1, what.second));
    return found->second;
  }

  const Topology& topology_;
  std::vector<std::vector<int>> groups_of_;
  std::map<std::pair<int, int>, int> numbers_;
  std::vector<Resource> resources_;
};

/// Edge indices grouped by the rank that `of` names, and where each group begins.
template <class Of>
void group_by(const std::vector<Edge>& edges, int world_size, Of of, std::vector<int>& grouped,
              std::vector<std::size_t>& begins) {
  begins.assign(at(world_size) + 1, 0);
  for (const Edge& edge : edges) ++begins[at(of(edge)) + 1];
  for (std::size_t rank = 0; rank < at(world_size); ++rank) begins[rank + 1] += begins[rank];
  std::vector<std::size_t> next(begins.begin(), begins.end() - 1);
  grouped.resize(edges.size());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    grouped[next[at(of(edges[i]))]++] = static_cast<int>(i);
  }
}

/// Ranks that `from` cannot reach over edges taken forwards (or backwards).
std::vector<Rank> unreached(const Network& network, Rank from, bool forwards) {
  std::vector<char> seen(at(network.world_size()), 0);
  std::vector<Rank> stack = {from};
  seen[at(from)] = 1;
  while (!stack.empty()) {
    const Rank rank = stack.back();
    stack.pop_back();
    for (const int index : forwards ? network.out(rank) : network.in(rank)) {
      const Edge& edge = network.edges()[at(index)];
      const Rank next = forwards ? edge.dst : edge.src;
      if (std::exchange(seen[at(next)], 1) == 0) stack.push_back(next);
    }
  }
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < network.world_size(); ++rank) {
    if (seen[at(rank)] == 0) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

Resource resource_of(const Topology& topology, bool is_group, int index) {
  if (is_group) {
    const Topology::PortGroup& group = topology.port_groups[at(index)];
    return {group.name, group.beta_s_per_byte, group.message_s};
  }
  const Topology::Link& link = topology.links[at(index)];
  return {
      fmt::format("{} -> {}", topology.nodes[at(link.src)].name, topology.nodes[at(link.dst)].name),
      link.beta_s_per_byte, 0};
}

Network::Network(const Topology& topology, Direction direction)
    : world_size_(topology.world_size()), cells_(world_size_, {}) {
  const Routes routes(topology);
  std::vector<char> carries_rank(topology.nodes.size(), 0);
  for (const int node : topology.rank_nodes) carries_rank[at(node)] = 1;
  ResourceNumbering numbering(topology);
  for (Rank src = 0; src < world_size_; ++src) {
    for (Rank dst = 0; dst < world_size_; ++dst) {
      if (src == dst || !routes.connected(src, dst)) continue;
      const std::vector<int>& path = routes.path(src, dst);
      if (!direct(topology, carries_rank, path)) continue;
      Edge edge{src, dst, routes.alpha_s(src, dst), 0, {}};
      for (const int link : path) numbering.add(link, edge.resources);
      std::sort(edge.resources.begin(), edge.resources.end());
      for (const int resource : edge.resources) {
        edge.beta_s_per_byte = std::max(edge.beta_s_per_byte, numbering[resource].beta_s_per_byte);
      }
      if (direction == Direction::reversed) std::swap(edge.src, edge.dst);
      edges_.push_back(std::move(edge));
    }
  }
  resources_ = numbering.take();
  sort_edges();
}

Network::Network(int world_size, std::vector<Edge> edges, std::vector<Resource> resources)
    : Network(Cells(world_size, {}), std::move(edges), std::move(resources)) {}

Network::Network(Cells cells, std::vector<Edge> edges, std::vector<Resource> resources)
    : world_size_(cells.count() * cells.size()),
      cells_(std::move(cells)),
      edges_(std::move(edges)),
      resources_(std::move(resources)) {
  sort_edges();
}

Network Network::reversed() const {
  Network result = *this;
  for (Edge& edge : result.edges_) std::swap(edge.src, edge.dst);
  result.sort_edges();
  return result;
}

Network Network::restricted_to(std::span<const char> keep) const {
  Network result = *this;
  result.edges_.clear();
  for (std::size_t edge = 0; edge < edges_.size(); ++edge) {
    if (keep[edge] != 0) result.edges_.push_back(edges_[edge]);
  }
  result.sort_edges();
  return result;
}

void Network::sort_edges() {
  std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.src, a.dst) < std::tie(b.src, b.dst);
  });
  destinations_.clear();
  for (const Edge& edge : edges_) destinations_.push_back(edge.dst);
  group_by(
      edges_, world_size_, [](const Edge& e) { return e.src; }, out_, out_at_);
  group_by(
      edges_, world_size_, [](const Edge& e) { return e.dst; }, in_, in_at_);
}

std::span<const int> Network::out(Rank rank) const {
  return std::span(out_).subspan(out_at_[at(rank)], out_at_[at(rank) + 1] - out_at_[at(rank)]);
}

std::span<const int> Network::in(Rank rank) const {
  return std::span(in_).subspan(in_at_[at(rank)], in_at_[at(rank) + 1] - in_at_[at(rank)]);
}

std::optional<int> Network::edge(Rank src, Rank dst) const {
  if (folded()) {
    dst = cells_.minus(cells_.cell_of(dst), cells_.cell_of(src)) * cells_.size() +
          dst % cells_.size();
    src %= cells_.size();
  }
  const std::size_t first = out_at_[at(src)];
  const std::span<const Rank> leaving = destinations().subspan(first, out_at_[at(src) + 1] - first);
  const auto found = std::ranges::lower_bound(leaving, dst);
  if (found == leaving.end() || *found != dst) return std::nullopt;
  return out_[first + at(static_cast<int>(found - leaving.begin()))];
}

int widest(const Network& network) {
  std::size_t most = 0;
  for (Rank rank = 0; rank < network.world_size(); ++rank) {
    most = std::max(most, network.out(rank).size());
  }
  return static_cast<int>(most);
}

Network thinned(Network network, std::optional<int> edges_per_rank) {
  if (!edges_per_rank || widest(network) <= *edges_per_rank) return network;
  const int n = network.world_size();
  std::vector<int> turn(at(n));  // by offset
  std::iota(turn.begin(), turn.end(), 0);
  std::mt19937_64 random;
  shuffle(turn, random);
  const auto turn_of = [&](int index) {
    const Edge& edge = network.edges()[at(index)];
    const int offset = (edge.dst - edge.src + n) % n;
    return turn[at(std::min(offset, n - offset))];  // there and back alike
  };
  std::vector<char> keep(network.edges().size(), 0);
  for (Rank rank = 0; rank < n; ++rank) {
    std::map<std::size_t, std::vector<int>> by_distance;
    for (const int index : network.out(rank)) {
      by_distance[network.edges()[at(index)].resources.size()].push_back(index);
    }
    int left = *edges_per_rank;
    auto distances = static_cast<int>(by_distance.size());
    for (auto& [distance, edges] : by_distance) {  // what the near ones leave goes to the far ones
      const int share = std::max(1, left / distances--);
      std::ranges::sort(edges, {}, turn_of);
      for (std::size_t i = 0; i < std::min(edges.size(), at(share)); ++i) {
        const Edge& edge = network.edges()[at(edges[i])];
        keep[at(edges[i])] = 1;
        if (const auto back = network.edge(edge.dst, edge.src)) keep[at(*back)] = 1;
      }
      left -= std::min(static_cast<int>(edges.size()), share);
    }
  }
  Network some = network.restricted_to(keep);
  return connected(some) ? some : network;
}

bool connected(const Network& network) {
  return unreached(network, 0, true).empty() && unreached(network, 0, false).empty();
}

void require_connected(const Topology& topology, const Network& network) {
  for (const bool forwards : {true, false}) {
    const std::vector<Rank> missing = unreached(network, 0, forwards);
    if (missing.empty()) continue;
    const std::span<const Rank> some =
        std::span(missing).first(std::min<std::size_t>(missing.size(), 8));
    throw TopologyError(fmt::format(
        "the topology '{}' is not connected: no path leads {} rank{} {}{} {} the other {} ranks "
        "(rank 0 "
        "among them); add the missing link, or leave these ranks out",
        topology.name, forwards ? "to" : "from", missing.size() == 1 ? "" : "s",
        fmt::join(some, ", "), some.size() < missing.size() ? ", …" : "", forwards ? "from" : "to",
        network.world_size() - static_cast<int>(missing.size())));
  }
}

}  // namespace chorus::synth
