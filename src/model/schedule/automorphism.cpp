#include "model/schedule/automorphism.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/disjoint_sets.hpp"
#include "base/index.hpp"
#include "model/schedule/ways.hpp"

namespace chorus {
namespace {

constexpr double kClearGap = 4.0 / 3.0;

using Hash = std::uint64_t;

Hash mixed(Hash hash, Hash value) {
  hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccd;
  return hash ^ hash >> 33;
}

Hash hash_of(double figure) { return std::hash<double>{}(figure); }

std::size_t distinct(const std::vector<Hash>& colours) {
  return std::unordered_set<Hash>(colours.begin(), colours.end()).size();
}

/// Colours that tell nodes apart by what they are wired to, ranks coloured by `label`: refined
/// until it no longer helps. Equal wirings give equal colours.
std::vector<Hash> refined(const Topology& topology, std::span<const Rank> label) {
  std::vector<Hash> colours(topology.nodes.size());
  for (std::size_t node = 0; node < colours.size(); ++node) {
    colours[node] = mixed(1, static_cast<Hash>(topology.nodes[node].kind));
  }
  for (std::size_t rank = 0; rank < label.size(); ++rank) {  // several on one node: in any order
    colours[at(topology.rank_nodes[rank])] += mixed(2, static_cast<Hash>(label[rank]));
  }
  std::vector<std::vector<int>> groups_of(topology.links.size());
  for (std::size_t group = 0; group < topology.port_groups.size(); ++group) {
    for (const int link : topology.port_groups[group].links) {
      groups_of[at(link)].push_back(static_cast<int>(group));
    }
  }
  for (std::size_t before = 0, now = distinct(colours); now > before;) {
    before = now;
    const auto plain = [&](std::size_t index) {
      const Topology::Link& link = topology.links[index];
      return mixed(
          mixed(mixed(hash_of(link.alpha_s), hash_of(link.beta_s_per_byte)), colours[at(link.src)]),
          colours[at(link.dst)]);
    };
    std::vector<Hash> groups;
    for (const Topology::PortGroup& group : topology.port_groups) {
      Hash sum = mixed(hash_of(group.beta_s_per_byte), hash_of(group.message_s));
      for (const int link : group.links) sum += mixed(3, plain(at(link)));
      groups.push_back(sum);
    }
    std::vector<Hash> next = colours;
    for (std::size_t index = 0; index < topology.links.size(); ++index) {
      Hash hash = plain(index);
      for (const int group : groups_of[index]) hash += mixed(4, groups[at(group)]);
      next[at(topology.links[index].src)] += mixed(5, hash);
      next[at(topology.links[index].dst)] += mixed(6, hash);
    }
    colours = std::move(next);
    now = distinct(colours);
  }
  return colours;
}

/// Things with equal keys matched in their order; nothing if the keys differ.
template <class Key>
std::optional<std::vector<int>> matched(const std::vector<Key>& from, const std::vector<Key>& to) {
  const auto sorted = [](const std::vector<Key>& keys) {
    std::vector<int> order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return keys[at(a)] < keys[at(b)]; });
    return order;
  };
  const std::vector<int> left = sorted(from);
  const std::vector<int> right = sorted(to);
  std::vector<int> image(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[at(left[i])] != to[at(right[i])]) return std::nullopt;
    image[at(left[i])] = right[i];
  }
  return image;
}

std::optional<std::vector<int>> image_of_links(const Topology& topology,
                                               const std::vector<int>& nodes) {
  std::vector<std::tuple<int, int, double, double>> from, to;
  for (const Topology::Link& link : topology.links) {
    from.emplace_back(nodes[at(link.src)], nodes[at(link.dst)], link.alpha_s, link.beta_s_per_byte);
    to.emplace_back(link.src, link.dst, link.alpha_s, link.beta_s_per_byte);
  }
  return matched(from, to);
}

std::optional<std::vector<int>> image_of_groups(const Topology& topology,
                                                const std::vector<int>& links) {
  std::vector<std::tuple<std::vector<int>, double, double>> from, to;
  for (const Topology::PortGroup& group : topology.port_groups) {
    std::vector<int> own = group.links;
    std::vector<int> moved;
    for (const int link : own) moved.push_back(links[at(link)]);
    std::sort(own.begin(), own.end());
    std::sort(moved.begin(), moved.end());
    from.emplace_back(std::move(moved), group.beta_s_per_byte, group.message_s);
    to.emplace_back(std::move(own), group.beta_s_per_byte, group.message_s);
  }
  return matched(from, to);
}

/// Least sums of alpha from rank 0's node to every rank.
std::vector<double> distances(const Topology& topology) {
  std::vector<std::vector<int>> out(topology.nodes.size());
  for (std::size_t link = 0; link < topology.links.size(); ++link) {
    out[at(topology.links[link].src)].push_back(static_cast<int>(link));
  }
  std::vector<double> reached(topology.nodes.size(), std::numeric_limits<double>::infinity());
  using Item = std::pair<double, int>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  queue.push({0, topology.rank_nodes.front()});
  reached[at(topology.rank_nodes.front())] = 0;
  while (!queue.empty()) {
    const auto [distance, node] = queue.top();
    queue.pop();
    if (distance > reached[at(node)]) continue;
    for (const int index : out[at(node)]) {
      const Topology::Link& link = topology.links[at(index)];
      if (distance + link.alpha_s >= reached[at(link.dst)]) continue;
      reached[at(link.dst)] = distance + link.alpha_s;
      queue.push({reached[at(link.dst)], link.dst});
    }
  }
  std::vector<double> result;
  for (const int node : topology.rank_nodes) result.push_back(reached[at(node)]);
  return result;
}

/// Ranks from 0 on that are in the host of rank 0. The way through a box may take longer than that
/// to the next one, so that distances do not tell.
int ranks_of_first_host(const Topology& topology) {
  const Ways ways(topology);
  const auto host = [&](int node) { return ways.outermost[at(node)]; };
  const auto other = std::ranges::find_if(topology.rank_nodes, [&](int node) {
    return host(node) != host(topology.rank_nodes.front());
  });
  return static_cast<int>(other - topology.rank_nodes.begin());
}

/// Numbers of ranks from 0 on that make a host, or that are nearer to rank 0 than all others by a
/// clear gap, each a multiple of the one before; 1 first, all last.
std::vector<int> suggested_sizes(const Topology& topology) {
  const int host = ranks_of_first_host(topology);
  const std::vector<double> distance = distances(topology);
  const auto n = static_cast<int>(distance.size());
  std::vector<double> nearest(distance.size());  // from here on
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = distance.size(); i-- > 0;) nearest[i] = least = std::min(least, distance[i]);
  std::vector<int> sizes = {1};
  double farthest = 0;
  for (int rank = 1; rank < n; ++rank) {
    const double next = nearest[at(rank)];
    const bool gap = (rank == host && host > 1) || (farthest > 0 && next > farthest * kClearGap &&
                                                    (rank > host ? rank % host : host % rank) == 0);
    if (gap && rank % sizes.back() == 0 && n % rank == 0) sizes.push_back(rank);
    farthest = std::max(farthest, distance[at(rank)]);
  }
  if (n > 1) sizes.push_back(n);
  return sizes;
}

/// Adds one to the digit of `radix` that counts the parts of every `size` ranks.
std::optional<Automorphism> move_of_digit(const Topology& topology, int radix, int size) {
  const int n = topology.world_size();
  const Cells cells(n, {radix, n / size});
  std::vector<Rank> image(at(n));
  for (Rank rank = 0; rank < n; ++rank) image[at(rank)] = cells.moved(rank, 1);
  return automorphism(topology, image);
}

}  // namespace

std::optional<Automorphism> automorphism(const Topology& topology, std::span<const Rank> image) {
  std::vector<Rank> own(image.size());
  std::iota(own.begin(), own.end(), 0);
  auto nodes = matched(refined(topology, image), refined(topology, own));
  if (!nodes) return std::nullopt;
  for (std::size_t rank = 0; rank < image.size(); ++rank) {
    const int to = topology.rank_nodes[at(image[rank])];
    if ((*nodes)[at(topology.rank_nodes[rank])] != to) return std::nullopt;
  }
  auto links = image_of_links(topology, *nodes);
  if (!links) return std::nullopt;
  auto groups = image_of_groups(topology, *links);
  if (!groups) return std::nullopt;
  return Automorphism{*std::move(nodes), *std::move(links), *std::move(groups)};
}

Repetition repetition_of(const Topology& topology) {
  const int n = topology.world_size();
  Repetition result{Cells(std::max(n, 1), {}), {}};
  if (n < 2) return result;
  const std::vector<int> sizes = suggested_sizes(topology);
  std::vector<int> radices;
  const auto repeats = [&](int radix, int size) {
    auto generator = move_of_digit(topology, radix, size);
    if (!generator) return false;
    radices.insert(radices.begin(), radix);
    result.generators.insert(result.generators.begin(), *std::move(generator));
    return true;
  };
  for (std::size_t level = sizes.size() - 1; level > 0; --level) {  // outermost first
    if (!repeats(sizes[level] / sizes[level - 1], sizes[level])) break;
  }
  if (sizes.size() == 2 && radices.empty()) {
    // No distance tells parts apart: the planes of a torus, then their rows.
    for (int size = n, radix = n / 2; radix > 1;) {
      if (size % radix == 0 && repeats(radix, size)) {
        size /= radix;
        radix = size;
      } else {
        --radix;
      }
    }
  }
  result.cells = Cells(n, radices);
  return result;
}

std::vector<int> orbits(std::size_t count, std::span<const std::vector<int>* const> maps) {
  DisjointSets sets(count);
  for (const std::vector<int>* map : maps) {
    for (std::size_t thing = 0; thing < count; ++thing) {
      sets.join(static_cast<int>(thing), (*map)[thing]);
    }
  }
  return sets.sets();
}

}  // namespace chorus
