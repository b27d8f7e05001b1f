#include "topology/probing/division.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/index.hpp"

namespace chorus::probing {
namespace {

/// Parts that a demand is cut into, and how often each is divided anew; less where there are so
/// many that it would take long.
constexpr int kParts = 50, kFewParts = 10;
constexpr int kRounds = 30, kFewRounds = 2;
constexpr std::size_t kMany = 2000;
constexpr std::size_t kMostSteps = 1'000'000;

/// The sum of so high powers of all loads is about that of the highest.
double to_the_24th(double x) {
  const double x2 = x * x, x4 = x2 * x2, x8 = x4 * x4;
  return x8 * x8 * x8;
}

class Divider {
 public:
  Divider(const Networks& networks, std::span<const Demand> demands)
      : networks_(networks), demands_(demands) {
    std::vector<Flow> flows;
    for (const Demand& demand : demands) flows.push_back({demand.src, demand.dst});
    crossed_.resize(demands.size());
    result_.demands.resize(demands.size());
    for (std::size_t d = 0; d < demands.size(); ++d) {
      result_.demands[d].networks = networks.between(demands[d].src, demands[d].dst);
      result_.demands[d].shares.assign(result_.demands[d].networks.size(), 0);
      crossed_[d].resize(result_.demands[d].networks.size());
    }
    for (int n = 0; n < networks.count(); ++n) add_limits(n, flows);
  }

  Division divided() {
    const auto choices = static_cast<std::size_t>(
        std::ranges::count_if(crossed_, [](const auto& networks) { return networks.size() > 1; }));
    parts_ = choices > kMany ? kFewParts : kParts;
    const std::size_t steps = std::max<std::size_t>(choices * static_cast<std::size_t>(parts_), 1);
    const int rounds = std::clamp(static_cast<int>(kMostSteps / steps), kFewRounds, kRounds);
    for (int round = 0; round < rounds; ++round) {
      highest_ = busiest();
      for (std::size_t d = 0; d < demands_.size(); ++d) {
        if (round > 0 && crossed_[d].size() < 2) continue;
        divide_anew(d);
      }
    }
    gather();
    result_.seconds = busiest();
    return std::move(result_);
  }

 private:
  /// Of the cables and trunks of one network, by who crosses them.
  void add_limits(int network, std::span<const Flow> flows) {
    std::vector<Flow> of_network;
    std::vector<std::size_t> demand_of;
    for (std::size_t d = 0; d < flows.size(); ++d) {
      if (!std::ranges::binary_search(result_.demands[d].networks, network)) continue;
      of_network.push_back(flows[d]);
      demand_of.push_back(d);
    }
    for (const Limit& limit : limits_of(networks_.tree(network), of_network)) {
      const auto number = static_cast<int>(loads_s_.size());
      loads_s_.push_back(0);
      rates_.push_back(std::max(limit.bytes_per_s, 1.0));
      for (const int flow : limit.flows) {
        const std::size_t d = demand_of[at(flow)];
        const auto& joined = result_.demands[d].networks;
        const auto place = std::ranges::lower_bound(joined, network) - joined.begin();
        crossed_[d][static_cast<std::size_t>(place)].push_back(number);
      }
    }
  }

  void add(std::size_t demand, std::size_t place, double part) {
    for (const int limit : crossed_[demand][place]) {
      loads_s_[at(limit)] += part * demands_[demand].bytes / rates_[at(limit)];
    }
    result_.demands[demand].shares[place] += part;
  }

  /// What `part` more by one of the networks adds to the sum of powers.
  [[nodiscard]] double price(std::size_t demand, std::size_t place, double part) const {
    double sum = 0;
    for (const int limit : crossed_[demand][place]) {
      const double before = loads_s_[at(limit)] / highest_;
      const double more = part * demands_[demand].bytes / rates_[at(limit)] / highest_;
      sum += to_the_24th(before + more) - to_the_24th(before);
    }
    return sum;
  }

  void divide_anew(std::size_t demand) {
    auto& shares = result_.demands[demand].shares;
    if (shares.size() == 1) return add(demand, 0, 1);
    for (std::size_t place = 0; place < shares.size(); ++place) {
      add(demand, place, -shares[place]);
      shares[place] = 0;
    }
    for (int part = 0; part < parts_; ++part) {
      std::size_t best = 0;
      double least = price(demand, 0, 1.0 / parts_);
      for (std::size_t place = 1; place < shares.size(); ++place) {
        const double other = price(demand, place, 1.0 / parts_);
        if (other < least) {
          least = other;
          best = place;
        }
      }
      add(demand, best, 1.0 / parts_);
    }
  }

  /// Takes each demand to as few networks as can be, where that makes no cable or trunk the
  /// busiest: what is on its way by two at once arrives with the slower one.
  void gather() {
    constexpr double kBusy = 0.9;
    const double most_s = kBusy * busiest();
    for (std::size_t d = 0; d < demands_.size(); ++d) {
      const std::vector<double> shares = result_.demands[d].shares;
      std::vector<std::size_t> places(shares.size());
      std::iota(places.begin(), places.end(), 0);
      std::ranges::stable_sort(places, std::greater(), [&](std::size_t p) { return shares[p]; });
      for (std::size_t few = 1; few < places.size(); ++few) {
        if (take(d, std::span(places).first(few), shares, most_s)) break;
      }
    }
  }

  /// Divides a demand among these networks alone, as it was among them; false, and nothing is
  /// changed, if a cable or trunk that is less busy now would be so for longer than `most_s`.
  bool take(std::size_t demand, std::span<const std::size_t> places,
            const std::vector<double>& shares, double most_s) {
    const std::vector<double> before = loads_s_;
    double sum = 0;
    for (const std::size_t place : places) sum += shares[place];
    for (std::size_t place = 0; place < shares.size(); ++place) {
      const bool kept = std::ranges::find(places, place) != places.end();
      add(demand, place, (kept ? shares[place] / sum : 0) - shares[place]);
    }
    for (std::size_t limit = 0; limit < loads_s_.size(); ++limit) {
      if (loads_s_[limit] <= before[limit] || loads_s_[limit] <= most_s) continue;
      loads_s_ = before;
      result_.demands[demand].shares = shares;
      return false;
    }
    return true;
  }

  [[nodiscard]] double busiest() const {
    double most = 1e-12;
    for (const double load_s : loads_s_) most = std::max(most, load_s);
    return most;
  }

  const Networks& networks_;
  const std::span<const Demand> demands_;
  std::vector<std::vector<std::vector<int>>> crossed_;  // [demand][network]: limits
  std::vector<double> loads_s_, rates_;                 // [limit]
  double highest_ = 1;
  int parts_ = kParts;
  Division result_;
};

}  // namespace

Division divide(const Networks& networks, std::span<const Demand> demands) {
  return Divider(networks, demands).divided();
}

}  // namespace chorus::probing
