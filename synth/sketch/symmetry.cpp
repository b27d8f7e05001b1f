#include "synth/sketch/symmetry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"

namespace chorus::synth {
namespace {

constexpr std::size_t kMostRenamings = 4096;
constexpr double kAlikeRates = 1e-9;  // relative

bool alike(double a, double b) { return std::abs(a - b) <= kAlikeRates * std::max(a, b); }

void require_fits(int world_size, const Sketch::Offset& offset) {
  if (offset.group < 1 || world_size % offset.group != 0) {
    throw InputError(fmt::format("symmetry {}: groups of {} do not make up the {} ranks",
                                 name_of(offset), offset.group, world_size));
  }
  if (offset.offset < 1 || offset.offset >= offset.group) {
    throw InputError(fmt::format("symmetry {}: the offset is to be 1 to {}, less than the group",
                                 name_of(offset), offset.group - 1));
  }
}

/// What a resource limits: by edge, how often it is crossed.
std::vector<std::vector<int>> crossings(const Network& network) {
  std::vector<std::vector<int>> edges(network.resources().size());
  for (std::size_t e = 0; e < network.edges().size(); ++e) {
    for (const int resource : network.edges()[e].resources) {
      edges[at(resource)].push_back(static_cast<int>(e));
    }
  }
  return edges;
}

}  // namespace

std::string name_of(const Sketch::Offset& offset) {
  return fmt::format("[{}, {}]", offset.offset, offset.group);
}

Rank turned(const Sketch::Offset& offset, Rank rank) {
  const Rank base = rank / offset.group * offset.group;
  return base + (rank - base + offset.offset) % offset.group;
}

Symmetry::Symmetry(int world_size) : Symmetry(world_size, {}) {}

Symmetry::Symmetry(int world_size, const std::vector<Sketch::Offset>& offsets) {
  for (const Sketch::Offset& offset : offsets) require_fits(world_size, offset);
  std::vector<Rank> same(at(world_size));
  for (Rank rank = 0; rank < world_size; ++rank) same[at(rank)] = rank;
  std::set<std::vector<Rank>> known = {same};
  renamings_ = {same};
  for (std::size_t i = 0; i < renamings_.size(); ++i) {
    for (const Sketch::Offset& offset : offsets) {
      std::vector<Rank> next = renamings_[i];
      for (Rank& rank : next) rank = turned(offset, rank);
      if (known.insert(next).second) renamings_.push_back(std::move(next));
    }
    if (renamings_.size() > kMostRenamings) {
      throw InputError(fmt::format("the symmetry has more than {} renamings: leave out an offset",
                                   kMostRenamings));
    }
  }
  for (std::size_t i = 1; i < renamings_.size(); ++i) {
    for (Rank rank = 0; rank < world_size; ++rank) {
      if (renamings_[i][at(rank)] != rank) continue;
      std::string names;
      for (const Sketch::Offset& offset : offsets) {
        names += (names.empty() ? "" : " and ") + name_of(offset);
      }
      throw InputError(fmt::format(
          "symmetry {}: together they move some ranks but leave rank {} where it is, so that its "
          "data would have two ways; leave one of them out",
          names, rank));
    }
  }
  represent();
}

void Symmetry::represent() {
  const std::size_t n = renamings_.front().size();
  std::vector<char> seen(n, 0);
  for (std::size_t rank = 0; rank < n; ++rank) {
    if (seen[rank] != 0) continue;
    representatives_.push_back(static_cast<Rank>(rank));
    for (const std::vector<Rank>& renaming : renamings_) seen[at(renaming[rank])] = 1;
  }
}

std::optional<std::string> symmetry_fault(const Network& network, const Sketch::Offset& offset) {
  std::vector<int> image(network.edges().size());
  for (std::size_t e = 0; e < network.edges().size(); ++e) {
    const Edge& edge = network.edges()[e];
    const Rank src = turned(offset, edge.src);
    const Rank dst = turned(offset, edge.dst);
    const std::optional<int> found = network.edge(src, dst);
    const auto what = [&](std::string_view complaint) {
      return fmt::format("the link {} -> {} becomes {} -> {}, {}", edge.src, edge.dst, src, dst,
                         complaint);
    };
    if (!found) return what("which is not there or not allowed");
    const Edge& other = network.edges()[at(*found)];
    if (!alike(edge.alpha_s, other.alpha_s)) return what("which has another latency");
    if (!alike(edge.beta_s_per_byte, other.beta_s_per_byte)) return what("which is not as fast");
    image[e] = *found;
  }
  // Resources are told apart by what they limit; several may limit the same.
  const std::vector<std::vector<int>> edges = crossings(network);
  std::map<std::vector<int>, std::vector<std::pair<double, double>>> limits[2];
  for (std::size_t r = 0; r < edges.size(); ++r) {
    if (edges[r].empty()) continue;
    std::vector<int> moved;
    for (const int e : edges[r]) moved.push_back(image[at(e)]);
    std::sort(moved.begin(), moved.end());
    const Resource& resource = network.resources()[r];
    limits[0][edges[r]].emplace_back(resource.beta_s_per_byte, resource.message_s);
    limits[1][moved].emplace_back(resource.beta_s_per_byte, resource.message_s);
  }
  for (auto& side : limits) {
    for (auto& [crossed, figures] : side) std::sort(figures.begin(), figures.end());
  }
  for (std::size_t r = 0; r < edges.size(); ++r) {
    if (edges[r].empty()) continue;
    const auto other = limits[1].find(edges[r]);
    const auto& mine = limits[0][edges[r]];
    const bool same = other != limits[1].end() && other->second.size() == mine.size() &&
                      std::equal(mine.begin(), mine.end(), other->second.begin(),
                                 [](const auto& a, const auto& b) {
                                   return alike(a.first, b.first) && alike(a.second, b.second);
                                 });
    if (!same) {
      return fmt::format("no other limit has the place that '{}' is moved from",
                         network.resources()[r].name);
    }
  }
  return std::nullopt;
}

}  // namespace chorus::synth
