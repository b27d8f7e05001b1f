// A wiring as the planner sees it: which way round, folded or not, and how long schedules take.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"
#include "synth/ordering/predict.hpp"
#include "synth/plan.hpp"

namespace chorus::synth {
namespace {

constexpr double kLittleLost = 1.1;
constexpr std::size_t kMostFolded = 600'000;  // transfers of one cell that are still simulated

/// True if that takes a few seconds at most.
bool quickly_simulated(const Schedule& schedule) {
  return num_transfers(schedule) <= kMostSimulated;
}

/// What identifies a link among its counterparts, whichever way it is turned.
auto identity(const Topology::Link& link, bool turned) {
  return std::tuple(turned ? link.dst : link.src, turned ? link.src : link.dst, link.alpha_s,
                    link.beta_s_per_byte);
}

}  // namespace

Topology reversed(const Topology& topology) {
  Topology result = topology;
  for (Topology::Link& link : result.links) std::swap(link.src, link.dst);
  return result;
}

bool symmetric(const Topology& topology) {
  const auto sorted = [&](bool turned) {
    std::vector<decltype(identity(topology.links[0], turned))> all;
    for (const Topology::Link& link : topology.links) all.push_back(identity(link, turned));
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto groups = [&](bool turned) {
    std::vector<
        std::tuple<double, double, std::vector<decltype(identity(topology.links[0], false))>>>
        all;
    for (const Topology::PortGroup& group : topology.port_groups) {
      auto& [beta, message, links] = all.emplace_back();
      beta = group.beta_s_per_byte;
      message = group.message_s;
      for (const int link : group.links)
        links.push_back(identity(topology.links[at(link)], turned));
      std::sort(links.begin(), links.end());
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  return sorted(false) == sorted(true) && groups(false) == groups(true);
}

PreparedTopology::PreparedTopology(const Topology& topology)
    : topology_(topology),
      repeated_(topology.world_size() > kMostListed ? RepeatedNetwork::of(topology)
                                                    : std::nullopt) {}

bool PreparedTopology::folds(CollectiveKind kind) const { return repeated_ && !is_rooted(kind); }

const Network& PreparedTopology::network(CollectiveKind kind) const {
  if (folds(kind)) return repeated_->folded();
  if (!whole_) whole_.emplace(topology_);
  return *whole_;
}

const Routes& PreparedTopology::routes() const {
  if (!routes_) routes_.emplace(topology_);
  return *routes_;
}

Prediction PreparedTopology::predict(const Schedule& schedule, double size_bytes,
                                     double give_up_s) const {
  if (folds(schedule.collective.kind)) {
    const bool quick = num_transfers(schedule) / at(repeated_->cells().count()) <= kMostFolded;
    const auto seconds = quick ? repeated_->simulated_seconds(schedule, size_bytes, give_up_s)
                               : replayed_seconds(schedule, repeated_->folded(), size_bytes);
    if (!seconds) {
      throw InputError(
          fmt::format("'{}' on {} ranks has not the symmetry of '{}': schedules of so many ranks "
                      "are timed by it",
                      schedule.name, schedule.world_size, topology_.name));
    }
    return {*seconds, quick ? Method::simulated : Method::replayed};
  }
  if (quickly_simulated(schedule)) {
    return {simulate(schedule, topology_, routes(), size_bytes, give_up_s).seconds,
            Method::simulated};
  }
  if (!schedule.symmetry.empty()) return predict(expanded(schedule), size_bytes);
  // With a barrier after every step; where that loses little, or where nothing could overlap.
  const double stepwise = cost(schedule, topology_, routes()).seconds(size_bytes);
  const bool hardly_less = stepwise <= kLittleLost * least_seconds(schedule, size_bytes);
  if (schedule.steps.size() > 1 && !hardly_less) {
    const auto replayed = replayed_seconds(schedule, network(schedule.collective.kind), size_bytes);
    if (replayed) return {*replayed, Method::replayed};
  }
  return {stepwise, Method::cost};
}

double PreparedTopology::estimate(const Schedule& schedule, double size_bytes) const {
  if (folds(schedule.collective.kind) || !quickly_simulated(schedule)) {
    return predict(schedule, size_bytes).seconds;
  }
  return roughly_simulated_seconds(schedule, topology_, routes(), size_bytes);
}

double PreparedTopology::least_seconds(const Schedule& schedule, double size_bytes) const {
  if (folds(schedule.collective.kind)) return 0;
  if (!schedule.symmetry.empty()) return least_seconds(expanded(schedule), size_bytes);
  Schedule at_once{
      schedule.name, schedule.collective, schedule.world_size, schedule.num_chunks, {{}}};
  for (const Step& step : schedule.steps) {
    at_once.steps.front().insert(at_once.steps.front().end(), step.begin(), step.end());
  }
  return cost(at_once, topology_, routes()).beta_s_per_byte * size_bytes;
}

double PreparedTopology::straight_seconds(double size_bytes) const {
  const int n = topology_.world_size();
  Schedule straight{"straight", {CollectiveKind::all_to_all, 0}, n, n * n, {{}}};
  for (Rank src = 0; src < n; ++src) {
    for (Rank dst = 0; dst < n; ++dst) {
      if (src != dst) straight.steps[0].push_back({src, dst, src * n + dst, Action::copy});
    }
  }
  return least_seconds(straight, size_bytes);
}

std::optional<Simulation> PreparedTopology::simulation(const Schedule& schedule,
                                                       double size_bytes) const {
  if (folds(schedule.collective.kind) || !schedule.symmetry.empty() || !quickly_simulated(schedule))
    return std::nullopt;
  return simulate(schedule, topology_, routes(), size_bytes);
}

}  // namespace chorus::synth
