#include "synth/sketch/logical.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "synth/composing/levels.hpp"
#include "synth/sketch.hpp"

namespace chorus::synth {
namespace {

bool contains(const std::vector<Sketch::Link>& links, int src, int dst) {
  return std::find(links.begin(), links.end(), Sketch::Link{src, dst}) != links.end();
}

int hosts_per_sketch(const Network& network, const Sketch& sketch) {
  const int n = network.world_size();
  if (sketch.hosts == 0) return ranks_per_host(network);
  if (sketch.hosts < 1 || n % sketch.hosts != 0) {
    throw InputError(
        fmt::format("hosts: the {} ranks of the topology are not {} equal hosts", n, sketch.hosts));
  }
  return n / sketch.hosts;
}

void require_local(std::string_view what, int rank, int per_host) {
  if (rank >= 0 && rank < per_host) return;
  throw InputError(fmt::format("{}: there is no local rank {}: a host has ranks 0 to {}", what,
                               rank, per_host - 1));
}

/// Everything that the sketch names exists.
void require_known(const Network& network, const Sketch& sketch, int per_host) {
  for (const auto& [what, links] : {std::pair("allowed links", &sketch.allowed),
                                    std::pair("forbidden links", &sketch.forbidden)}) {
    for (const Sketch::Link& link : *links) {
      require_local(what, link.src, per_host);
      require_local(what, link.dst, per_host);
      for (Rank base = 0; base < network.world_size(); base += per_host) {
        if (network.edge(base + link.src, base + link.dst)) continue;
        throw InputError(fmt::format("{}: the topology has no link {} -> {}", what, base + link.src,
                                     base + link.dst));
      }
    }
  }
  for (const Sketch::Switch& one : sketch.switches) {
    for (const int rank : one.ranks) require_local("switches", rank, per_host);
  }
  for (const auto& [what, map] :
       {std::pair("senders", &sketch.senders), std::pair("sends for", &sketch.sends_for)}) {
    for (const auto& [sender, others] : *map) {
      require_local(what, sender, per_host);
      for (const int other : others) require_local(what, other, per_host);
    }
  }
  if (sketch.relays) {
    for (const int rank : *sketch.relays) require_local("relays", rank, per_host);
  }
  if (sketch.between == HostLinks::listed && sketch.senders.empty() &&
      network.world_size() > per_host) {
    throw InputError("senders: none is named, so that nothing leaves a host; name one");
  }
  if (sketch.chunks_per_block < 1) throw InputError("chunks per block: at least 1");
}

bool listed(const Sketch& sketch, int src, int dst) {
  const auto found = sketch.senders.find(src);
  return found != sketch.senders.end() &&
         std::find(found->second.begin(), found->second.end(), dst) != found->second.end();
}

/// Inside hosts, a way through what leads out of the host (gpu to card to gpu) is none, unless
/// hosts fall apart without.
class Detours {
 public:
  Detours(const Network& network, int per_host)
      : network_(network), per_host_(per_host), leads_out_(network.resources().size(), 0) {
    for (const Edge& edge : network.edges()) {
      if (edge.src / per_host == edge.dst / per_host) continue;
      for (const int resource : edge.resources) leads_out_[at(resource)] = 1;
    }
    needed_ = !connected();
  }

  [[nodiscard]] bool leaves_out(const Edge& edge) const {
    return !needed_ && edge.src / per_host_ == edge.dst / per_host_ && detours(edge);
  }

 private:
  [[nodiscard]] bool detours(const Edge& edge) const {
    return std::any_of(edge.resources.begin(), edge.resources.end(),
                       [&](int resource) { return leads_out_[at(resource)] != 0; });
  }

  [[nodiscard]] bool connected() const {
    for (Rank from = 0; from < network_.world_size(); ++from) {
      std::vector<char> seen(at(per_host_), 0);
      std::vector<Rank> stack = {from};
      seen[at(from % per_host_)] = 1;
      int reached = 0;
      while (!stack.empty()) {
        const Rank rank = stack.back();
        stack.pop_back();
        ++reached;
        for (const int e : network_.out(rank)) {
          const Edge& edge = network_.edges()[at(e)];
          if (edge.dst / per_host_ != from / per_host_ || detours(edge)) continue;
          if (std::exchange(seen[at(edge.dst % per_host_)], 1) == 0) stack.push_back(edge.dst);
        }
      }
      if (reached < per_host_) return false;
    }
    return true;
  }

  const Network& network_;
  int per_host_;
  std::vector<char> leads_out_;  // by resource: some edge between hosts crosses it
  bool needed_ = false;
};

Network restricted(const Network& network, const Sketch& sketch, int per_host) {
  const Detours detours(network, per_host);
  std::vector<char> keep(network.edges().size(), 0);
  for (std::size_t e = 0; e < keep.size(); ++e) {
    const Edge& edge = network.edges()[e];
    const int src = edge.src % per_host;
    const int dst = edge.dst % per_host;
    if (edge.src / per_host == edge.dst / per_host) {
      keep[e] = (sketch.allowed.empty() ? !detours.leaves_out(edge)
                                        : contains(sketch.allowed, src, dst)) &&
                !contains(sketch.forbidden, src, dst);
    } else {
      keep[e] = sketch.between == HostLinks::all ||
                (sketch.between == HostLinks::direct && src == dst) ||
                (sketch.between == HostLinks::listed && listed(sketch, src, dst));
    }
  }
  return network.restricted_to(keep);
}

}  // namespace

int ranks_per_host(const Network& network) {
  const Levels levels(network);
  const int n = network.world_size();
  if (levels.count() < 2) return n;
  const int per_host = n / levels.sizes().back();
  for (Rank rank = 0; rank < n; ++rank) {
    if (levels.digit(rank, levels.count() - 1) !=
        levels.digit(rank / per_host * per_host, levels.count() - 1)) {
      return n;
    }
  }
  return per_host;
}

/// Finds what makes a sketch impossible: constraints are taken away one after the other, and those
/// without which it still is impossible stay away.
class Culprit {
 public:
  Culprit(const Network& network, const Sketch& sketch, int per_host)
      : network_(network), sketch_(sketch), per_host_(per_host) {}

  [[nodiscard]] std::string sentence(Rank src, Rank dst) {
    std::vector<std::string> needed;
    const auto relax = [&](const std::string& name, const std::function<void(Sketch&)>& drop) {
      Sketch without = sketch_;
      drop(without);
      if (Logical(network_, without, per_host_).cut_off()) {
        sketch_ = std::move(without);
      } else {
        needed.push_back(name);
      }
    };
    if (sketch_.relays) {
      relax(fmt::format("relays [{}]", fmt::join(*sketch_.relays, ", ")),
            [](Sketch& s) { s.relays.reset(); });
    }
    for (const auto& [sender, origins] : std::map(sketch_.sends_for)) {
      relax(fmt::format("{} sends for [{}]", sender, fmt::join(origins, ", ")),
            [sender = sender](Sketch& s) { s.sends_for.erase(sender); });
    }
    for (const Sketch::Link& link : std::vector(sketch_.forbidden)) {
      relax(fmt::format("{} -> {} is forbidden", link.src, link.dst),
            [link](Sketch& s) { std::erase(s.forbidden, link); });
    }
    if (!sketch_.allowed.empty()) {
      relax("only the listed links are allowed inside hosts", [](Sketch& s) { s.allowed.clear(); });
    }
    if (sketch_.between != HostLinks::all) {
      relax(sketch_.between == HostLinks::direct ? "hosts exchange by direct map"
                                                 : "only the listed senders leave a host",
            [](Sketch& s) { s.between = HostLinks::all; });
    }
    const std::string between = fmt::format("data of rank {} has no way to rank {}", src, dst);
    if (needed.empty()) {
      return fmt::format("{}: the topology itself does not connect them", between);
    }
    return fmt::format("the sketch cannot be kept: {}, because {}; without {} it could", between,
                       fmt::join(needed, " and "),
                       needed.size() == 1 ? "that" : "any one of these");
  }

 private:
  const Network& network_;
  Sketch sketch_;
  int per_host_;
};

Logical::Logical(const Network& network, const Sketch& sketch, int per_host)
    : per_host_(per_host),
      network_(restricted(network, sketch, per_host)),
      symmetry_(network.world_size()),
      relays_(at(per_host), sketch.relays ? 0 : 1),
      sends_for_(at(per_host), std::vector<char>(at(per_host), 0)),
      bound_(at(per_host), 0) {
  if (sketch.relays) {
    for (const int rank : *sketch.relays) relays_[at(rank)] = 1;
  }
  for (const auto& [sender, origins] : sketch.sends_for) {
    for (const int origin : origins) {
      sends_for_[at(sender)][at(origin)] = 1;
      bound_[at(origin)] = 1;
    }
  }
  for (const Sketch::Switch& one : sketch.switches) {
    std::vector<char> members(at(per_host), 0);
    for (const int rank : one.ranks) members[at(rank)] = 1;
    switches_.emplace_back(std::move(members), one.use);
  }
}

Logical::Logical(const Network& network, const Sketch& sketch)
    : Logical(network, (require_known(network, sketch, hosts_per_sketch(network, sketch)), sketch),
              hosts_per_sketch(network, sketch)) {
  if (const auto pair = cut_off()) {
    throw InputError(Culprit(network, sketch, per_host_).sentence(pair->first, pair->second));
  }
  impose_symmetry(network, sketch);
}

void Logical::impose_symmetry(const Network& whole, const Sketch& sketch) {
  symmetry_ = Symmetry(network_.world_size(), sketch.symmetry);
  for (const Sketch::Offset& offset : sketch.symmetry) {
    if (const auto fault = symmetry_fault(network_, offset)) {
      const bool topology = symmetry_fault(whole, offset).has_value();
      throw InputError(fmt::format(
          "symmetry {} does not map the logical topology onto itself: {}{}", name_of(offset),
          *fault, topology ? "" : "; the topology has this symmetry, the sketch's links break it"));
    }
    for (Rank origin = 0; origin < network_.world_size(); ++origin) {
      for (const Edge& edge : network_.edges()) {
        Edge image = edge;
        image.src = turned(offset, edge.src);
        image.dst = turned(offset, edge.dst);
        if (permitted(origin, edge) == permitted(turned(offset, origin), image)) continue;
        throw InputError(fmt::format(
            "symmetry {} does not fit relays and senders: data of rank {} {} go {} -> {}, but of "
            "rank {} {} -> {} it {}",
            name_of(offset), origin, permitted(origin, edge) ? "may" : "may not", edge.src,
            edge.dst, turned(offset, origin), image.src, image.dst,
            permitted(origin, edge) ? "may not" : "may"));
      }
    }
  }
}

Logical Logical::reversed() const {
  Logical result = *this;
  result.network_ = network_.reversed();
  std::fill(result.bound_.begin(), result.bound_.end(), 0);
  return result;
}

bool Logical::permitted(Rank origin, const Edge& edge) const {
  if (edge.src != origin && relays_[at(edge.src % per_host_)] == 0) return false;
  if (!leaves_host(edge) || edge.src / per_host_ != origin / per_host_) return true;
  const int local = origin % per_host_;
  return bound_[at(local)] == 0 || sends_for_[at(edge.src % per_host_)][at(local)] != 0;
}

SwitchUse Logical::use(const Edge& edge) const {
  if (leaves_host(edge)) return SwitchUse::any;
  for (const auto& [members, use] : switches_) {
    if (members[at(edge.src % per_host_)] != 0 && members[at(edge.dst % per_host_)] != 0) {
      return use;
    }
  }
  return SwitchUse::any;
}

std::optional<std::pair<Rank, Rank>> Logical::cut_off() const {
  const int n = network_.world_size();
  for (Rank origin = 0; origin < n; ++origin) {
    std::vector<char> seen(at(n), 0);
    std::vector<Rank> stack = {origin};
    seen[at(origin)] = 1;
    while (!stack.empty()) {
      const Rank rank = stack.back();
      stack.pop_back();
      for (const int e : network_.out(rank)) {
        const Edge& edge = network_.edges()[at(e)];
        if (!permitted(origin, edge)) continue;
        if (std::exchange(seen[at(edge.dst)], 1) == 0) stack.push_back(edge.dst);
      }
    }
    const auto missing = std::find(seen.begin(), seen.end(), 0);
    if (missing != seen.end()) return std::pair(origin, static_cast<Rank>(missing - seen.begin()));
  }
  return std::nullopt;
}

Network logical_network(const Network& network, const Sketch& sketch) {
  return Logical(network, sketch).network();
}

std::optional<std::string> strays(const Schedule& schedule, const Network& logical) {
  for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
    for (const Transfer& transfer : schedule.steps[s]) {
      if (logical.edge(transfer.src, transfer.dst)) continue;
      return fmt::format("step {} sends {} -> {}, which the sketch does not allow", s, transfer.src,
                         transfer.dst);
    }
  }
  return std::nullopt;
}

}  // namespace chorus::synth
