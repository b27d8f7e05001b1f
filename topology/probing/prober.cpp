#include "topology/probing/prober.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/index.hpp"
#include "topology/probing/fit.hpp"
#include "topology/probing/groups.hpp"
#include "topology/probing/infer.hpp"

namespace chorus::probing {
namespace {

// Up to here every pair meets in the tournament, and every host is measured alone.
constexpr int kWholeTournament = 16;
// Up to here hosts meet in so few rounds that each is asked twice, or four times.
constexpr int kFewHosts = 8, kVeryFewHosts = 4;
// Runs of one cut in each direction: the best counts, because disturbances only slow down.
constexpr int kCutRuns = 2;
constexpr int kMostHidden = 4;
constexpr int kHiddenRuns = 3;
constexpr double kExplained = 0.8;
constexpr std::size_t kMostSlow = 12;
constexpr std::uint32_t kSeed = 20130807;

void both_ways(std::vector<Flow>& flows, int a, int b) {
  flows.push_back({a, b});
  flows.push_back({b, a});
}

/// Of what both_ways() has made: from the first of each two hosts, or to it.
std::vector<Flow> one_way(const std::vector<Flow>& flows, bool forth) {
  std::vector<Flow> half;
  for (std::size_t f = forth ? 0 : 1; f < flows.size(); f += 2) half.push_back(flows[f]);
  return half;
}

int log2_up(int n) {
  int log = 0;
  while ((1 << log) < n) ++log;
  return log;
}

// Orders `outside` so that its first hosts, met by those `inside` in turn, have what else is known
// leave most to the trunk of `group`.
void choose_partners(const Hosts& group, const Hosts& inside, HostTree known, Hosts& outside) {
  constexpr double kClearlyMore = 1.1;  // or rates that scatter would ask for another cut each time
  std::erase_if(known.groups, [&](const auto& other) { return other.hosts == group; });
  known.core = 0;
  std::vector<Flow> flows;
  for (std::size_t i = 0; i < std::min(inside.size(), outside.size()); ++i) {
    const auto next = outside.begin() + static_cast<std::ptrdiff_t>(i);
    auto best = next;
    double most = 0;
    for (auto host = next; host != outside.end(); ++host) {
      std::vector<Flow> with = flows;
      both_ways(with, inside[i], *host);
      const std::vector<double> rates = fair_rates(known, with);
      const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
      if (sum <= kClearlyMore * most) continue;
      most = sum;
      best = host;
    }
    std::rotate(next, best, best + 1);
    both_ways(flows, inside[i], outside[i]);
  }
}

}  // namespace

std::vector<std::vector<Flow>> tournament(int hosts) {
  const int seats = hosts + hosts % 2;  // an odd host out sits opposite an empty seat
  std::vector<std::vector<Flow>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    std::vector<Flow> flows;
    const auto meet = [&](int a, int b) {
      if (a < hosts && b < hosts) both_ways(flows, std::min(a, b), std::max(a, b));
    };
    const int moving = seats - 1;  // all but the last seat move on by one each round
    meet(round, seats - 1);
    for (int i = 1; i < seats / 2; ++i) {
      meet((round + i) % moving, (round + moving - i) % moving);
    }
    rounds.push_back(std::move(flows));
  }
  return rounds;
}

Prober::Prober(int hosts) : hosts_(hosts) { begin_tournament(); }

void Prober::begin_tournament() {
  phase_ = "rounds of all hosts";
  if (hosts_ < 2) {
    step_ = Step::finished;
    return;
  }
  if (hosts_ <= kWholeTournament) {
    // Few hosts meet in few rounds: once more, so that a disturbance is not believed.
    const int runs = hosts_ <= kVeryFewHosts ? 4 : hosts_ <= kFewHosts ? 2 : 1;
    for (int run = 0; run < runs; ++run) {
      for (auto& round : tournament(hosts_)) queue_.push_back(std::move(round));
    }
    return;
  }
  ask_random_rounds(2 * log2_up(hosts_));
}

void Prober::ask_random_rounds(int rounds) {
  std::mt19937 random(kSeed);
  for (int round = 0; round < rounds; ++round) {
    Hosts order(at(hosts_));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[random() % (i + 1)]);
    }
    std::vector<Flow> flows;
    for (std::size_t i = 0; i + 1 < order.size(); i += 2) both_ways(flows, order[i], order[i + 1]);
    queue_.push_back(std::move(flows));
  }
}

std::optional<std::vector<Flow>> Prober::next() {
  while (queue_.empty() && step_ != Step::finished) {
    switch (step_) {
      case Step::tournament:
        step_ = Step::crowd;
        ask_alone();
        break;
      case Step::crowd:
        step_ = Step::pairs;
        if (tournament_was_crowded()) ask_all_alone();
        break;
      case Step::pairs:
        if (pivot_ == 0) pair_parts_ = near_hosts(hosts_, experiments_);
        ask_pairs();
        if (!queue_.empty()) break;
        step_ = Step::cuts;
        groups_ = nested_groups(hosts_, experiments_);
        phase_ = "trunks";
        ask_cuts(groups_, kCutRuns);
        break;
      case Step::cuts:
        step_ = Step::slow;
        ask_where_slow_hosts_are();
        break;
      case Step::slow:
        step_ = Step::one_way;
        phase_ = "shared trunks";
        ask_slow_ways();
        break;
      case Step::one_way:
        step_ = Step::hidden;
        if (unexplained()) ask_random_rounds(3 * log2_up(hosts_));
        break;
      case Step::hidden:
        ask_hidden();
        if (queue_.empty() || ++hidden_runs_ == kHiddenRuns) step_ = Step::slow_again;
        break;
      case Step::slow_again:
        step_ = Step::fans;
        ask_where_slow_hosts_are();
        break;
      case Step::fans:
        ask_fans();
        if (queue_.empty()) step_ = Step::finished;
        break;
      case Step::finished:
        break;
    }
  }
  if (queue_.empty()) return std::nullopt;
  return queue_.front();
}

void Prober::take(std::span<const double> bytes_per_s) {
  measured_.push_back({std::move(queue_.front()), {bytes_per_s.begin(), bytes_per_s.end()}});
  experiments_ = believable(hosts_, measured_);
  queue_.erase(queue_.begin());
}

HostTree Prober::tree() const { return infer(hosts_, experiments_, groups_); }

// Every host once with nothing beside it (of very few hosts twice, so that a disturbance is not
// believed), and again where that shows how crowded the tournament was: then it could not tell what
// a cable carries. Of many hosts only two to begin with.
void Prober::ask_alone() {
  phase_ = "pairs alone";
  for (int run = 0; run < (hosts_ <= kVeryFewHosts ? 2 : 1); ++run) {
    for (const Hosts& part : near_hosts(hosts_, experiments_)) {
      for (std::size_t i = 0; i + 1 < part.size(); i += 2) {
        if (hosts_ > kWholeTournament && !queue_.empty()) break;
        ask_pair(part[i], part[i + 1]);
      }
    }
  }
}

// One way after the other: what goes back has its acknowledgements wait in queues, for longer where
// the one way is slower than the other.
void Prober::ask_pair(int a, int b) {
  queue_.push_back({{a, b}});
  queue_.push_back({{b, a}});
}

bool Prober::tournament_was_crowded() const {
  return std::any_of(experiments_.begin(), experiments_.end(), [&](const Experiment& alone) {
    if (alone.flows.size() != 1) return false;
    double before = 0;
    for (const Experiment& e : experiments_) {
      for (std::size_t f = 0; f < e.flows.size() && e.flows.size() > 2; ++f) {
        if (e.flows[f] == alone.flows[0]) before = std::max(before, e.bytes_per_s[f]);
      }
    }
    return before > 0 && before < kSame * alone.bytes_per_s[0];
  });
}

void Prober::ask_all_alone() {
  const std::vector<Flow> round = experiments_[0].flows;
  for (int run = 0; run < 2; ++run) {
    for (const Flow& flow : round) queue_.push_back({flow});
  }
}

int Prober::times_asked(const std::vector<Flow>& flows) const {
  const auto same = [&](const Experiment& e) { return e.flows == flows; };
  return static_cast<int>(std::count_if(experiments_.begin(), experiments_.end(), same) +
                          std::count(queue_.begin(), queue_.end(), flows));
}

// What a slow host gets from others does not tell which side of a trunk it is on. What a trunk
// carries when the host joins in does.
void Prober::ask_where_slow_hosts_are() {
  const HostTree now = tree();
  const double fastest = *std::max_element(now.out.begin(), now.out.end());
  std::vector<Hosts> joined;
  for (const Hosts& part : near_hosts(hosts_, experiments_)) {
    const bool slow = std::all_of(part.begin(), part.end(),
                                  [&](int host) { return now.out[at(host)] < kSame * fastest; });
    if (!slow) continue;
    for (const HostTree::Group& group : now.groups) {
      Hosts both;
      std::set_union(group.hosts.begin(), group.hosts.end(), part.begin(), part.end(),
                     std::back_inserter(both));
      Hosts without;
      std::set_difference(group.hosts.begin(), group.hosts.end(), part.begin(), part.end(),
                          std::back_inserter(without));
      for (const Hosts& changed : {both, without}) {
        if (changed == group.hosts || changed.size() < 2 || changed.size() + 2 > at(hosts_)) {
          continue;
        }
        joined.push_back(smaller_side(hosts_, changed));
      }
    }
  }
  std::sort(joined.begin(), joined.end());
  joined.erase(std::unique(joined.begin(), joined.end()), joined.end());
  std::erase_if(joined, [&](const Hosts& group) {
    return std::find(groups_.begin(), groups_.end(), group) != groups_.end();
  });
  if (joined.size() > kMostSlow) joined.resize(kMostSlow);
  groups_.insert(groups_.end(), joined.begin(), joined.end());
  ask_cuts(joined, 1);
}

// One pivot after another meets the others alone. The rate of a pair is a bottleneck along a path:
// where two parts are differently far from an earlier pivot, they are as far from each other as the
// farther is from it, and need not be asked.
void Prober::ask_pairs() {
  phase_ = "pairs alone";
  const std::size_t parts = pair_parts_.size();
  const std::size_t most = std::max<std::size_t>(3, 2 * at(log2_up(static_cast<int>(parts))));
  const HostTree tree = infer(hosts_, experiments_, {});
  std::vector<int> speaker;
  for (const Hosts& part : pair_parts_) {
    speaker.push_back(*std::max_element(part.begin(), part.end(), [&](int a, int b) {
      return tree.out[at(a)] + tree.in[at(a)] < tree.out[at(b)] + tree.in[at(b)];
    }));
  }
  const auto one_way = [&](int src, int dst) {
    double rate = 0;
    for (const Experiment& e : experiments_) {
      if (e.flows.size() == 1 && e.flows[0] == Flow{src, dst}) {
        rate = std::max(rate, e.bytes_per_s[0]);
      }
    }
    return rate;
  };
  const auto alone = [&](int a, int b) { return std::min(one_way(a, b), one_way(b, a)); };
  for (; queue_.empty() && pivot_ < std::min(most, parts); ++pivot_) {
    for (std::size_t other = pivot_ + 1; other < parts; ++other) {
      const int a = speaker[pivot_];
      const int b = speaker[other];
      if (alone(a, b) > 0) continue;
      bool known = false;
      for (std::size_t before = 0; before < pivot_ && !known; ++before) {
        const double to_a = alone(speaker[before], a);
        const double to_b = alone(speaker[before], b);
        known = to_a > 0 && to_b > 0 && std::min(to_a, to_b) < kSame * std::max(to_a, to_b);
      }
      if (known) continue;
      ask_pair(a, b);
    }
  }
}

std::vector<Flow> Prober::cut_flows(const Hosts& group, const HostTree& cables,
                                    const HostTree& known) const {
  const auto faster = [&](int a, int b) {
    const double x = cables.out[at(a)] + cables.in[at(a)];
    const double y = cables.out[at(b)] + cables.in[at(b)];
    return x != y ? x > y : a < b;
  };
  Hosts inside = group;
  std::sort(inside.begin(), inside.end(), faster);
  // Outside, one of each near part in turn, so that no other trunk is met before this one.
  std::vector<Hosts> parts;
  for (const Hosts& part : near_hosts(hosts_, experiments_)) {
    Hosts rest;
    for (const int host : part) {
      if (!std::binary_search(group.begin(), group.end(), host)) rest.push_back(host);
    }
    std::sort(rest.begin(), rest.end(), faster);
    if (!rest.empty()) parts.push_back(std::move(rest));
  }
  Hosts outside;
  for (std::size_t i = 0; outside.size() + group.size() < at(hosts_); ++i) {
    for (const Hosts& part : parts) {
      if (i < part.size()) outside.push_back(part[i]);
    }
  }
  if (hosts_ <= kWholeTournament) choose_partners(group, inside, known, outside);
  std::vector<Flow> flows;
  for (std::size_t i = 0; i < std::min(inside.size(), outside.size()); ++i) {
    both_ways(flows, inside[i], outside[i]);
  }
  return flows;
}

void Prober::ask_cuts(const std::vector<Hosts>& groups, int runs) {
  std::vector<std::vector<Flow>> cuts;
  const HostTree cables = infer(hosts_, experiments_, {});
  const HostTree known = tree();
  for (const Hosts& group : groups) cuts.push_back(cut_flows(group, cables, known));
  for (int run = 0; run < runs; ++run) {
    for (const bool out : {true, false}) {
      for (const std::vector<Flow>& cut : cuts) {
        std::vector<Flow> flows = one_way(cut, out);
        if (times_asked(flows) < runs) queue_.push_back(std::move(flows));
      }
    }
  }
}

// A round that waited for its way back says nothing of limits that are lower that way: once more,
// without the way back.
void Prober::ask_slow_ways() {
  if (hosts_ > kWholeTournament) return;
  for (const std::vector<Flow>& round : tournament(hosts_)) {
    for (const bool forth : {true, false}) {
      const std::vector<Flow> half = one_way(round, forth);
      if (half.size() > 1 && std::any_of(half.begin(), half.end(), [&](const Flow& flow) {
            return always_waited(round, flow);
          })) {
        queue_.push_back(half);
      }
    }
  }
}

bool Prober::always_waited(const std::vector<Flow>& round, const Flow& flow) const {
  const auto index =
      static_cast<std::size_t>(std::find(round.begin(), round.end(), flow) - round.begin());
  return std::all_of(experiments_.begin(), experiments_.end(), [&](const Experiment& e) {
    return e.flows != round || waited_for_way_back(e, index);
  });
}

// Are there rounds that all cables and trunks known so far should have let go much faster?
bool Prober::unexplained() const {
  const HostTree now = tree();
  const auto slow =
      std::count_if(experiments_.begin(), experiments_.end(), [&](const Experiment& e) {
        std::vector<int> all(e.flows.size());
        std::iota(all.begin(), all.end(), 0);
        return e.flows.size() > 2 &&
               room(limits_of(now, e.flows), e.bytes_per_s, all) > 1 / kExplained;
      });
  return slow >= 2;  // one alone was disturbed
}

// Of few hosts in any case: two that share a trunk of about a cable's rate are slowed in most
// rounds, and yet hardly slow a round down.
void Prober::ask_hidden() {
  if (hosts_ > kWholeTournament && !unexplained()) return;
  const auto found = oversubscribed_groups(tree(), experiments_, kMostHidden);
  if (found == last_found_) return;  // asked for already
  last_found_ = found;
  groups_.insert(groups_.end(), found.begin(), found.end());
  ask_cuts(found, kCutRuns);
}

// A host without an equal may have seen slow ways only: it exchanges with two different parts.
void Prober::ask_fans_of_single_hosts(const std::vector<Hosts>& parts) {
  const std::size_t n = parts.size();
  for (std::size_t p = 0; p < n && n >= 3; ++p) {
    if (parts[p].size() != 1) continue;
    std::vector<std::pair<std::size_t, std::size_t>> peers = {{1, 2}};
    if (n == 4) peers = {{1, 2}, {2, 3}, {1, 3}};
    for (const auto& [first, second] : peers) {
      std::vector<Flow> flows;
      both_ways(flows, parts[p][0], parts[(p + first) % n][0]);
      both_ways(flows, parts[p][0], parts[(p + second) % n][0]);
      queue_.push_back(std::move(flows));
    }
  }
}

// Few hosts: each sends to all others at once, and gets from them, which shows what its cable
// carries if anything does. Not both together: where one direction is the slower its queue holds up
// the acknowledgements for the other. Again where no second experiment says the same, since one
// alone may have been disturbed.
void Prober::ask_whole_fans() {
  constexpr int kMostFans = 3;
  if (hosts_ < 3 || ++fan_ >= kMostFans) return;
  for (int center = 0; center < hosts_; ++center) {
    std::vector<Flow> flows;
    for (int host = 0; host < hosts_; ++host) {
      if (host != center) both_ways(flows, center, host);
    }
    for (const bool sends : {true, false}) {
      if (fan_ == 0 || !is_confirmed(center, sends)) queue_.push_back(one_way(flows, sends));
    }
  }
}

// Whether two experiments agree on the most that the host sends, or gets.
bool Prober::is_confirmed(int host, bool sends) const {
  constexpr double kConfirmed = 0.97;
  double most = 0, second = 0;
  for (const Experiment& e : experiments_) {
    double sum = 0;
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      if ((sends ? e.flows[f].src : e.flows[f].dst) == host) sum += e.bytes_per_s[f];
    }
    second = std::max(second, std::min(most, sum));
    most = std::max(most, sum);
  }
  return second >= kConfirmed * most;
}

// Near hosts in threes: the first exchanges with the other two. Whoever gets more than from one
// peer is asked again with twice as many.
void Prober::ask_fans() {
  constexpr int kRotations = 3;
  phase_ = "cables faster than their peers'";
  if (hosts_ <= kWholeTournament) return ask_whole_fans();
  const std::vector<Hosts> parts = near_hosts(hosts_, experiments_);
  if (fan_ < 0) {
    fan_ = 0;
    ask_fans_of_single_hosts(parts);
  }
  while (queue_.empty() && fan_ < kRotations) {
    std::vector<Flow> flows;
    for (const Hosts& part : parts) {
      for (std::size_t i = 0; i + 3 <= part.size(); i += 3) {
        const auto host = [&](int k) { return part[i + at((k + fan_) % 3)]; };
        both_ways(flows, host(0), host(1));
        both_ways(flows, host(0), host(2));
      }
      // Those left over take their turns with hosts that sit in threes already.
      const std::size_t left = part.size() % 3;
      if (part.size() > 3 && left > 0 && fan_ < static_cast<int>(left)) {
        const int center = part[part.size() - 1 - at(fan_)];
        std::vector<Flow> extra;
        both_ways(extra, center, part[0]);
        both_ways(extra, center, part[1]);
        queue_.push_back(std::move(extra));
      }
    }
    ++fan_;
    if (!flows.empty()) queue_.push_back(std::move(flows));
  }
  if (!queue_.empty() || fan_ >= kRotations + log2_up(hosts_)) return;
  const int peers = 1 << (fan_ - kRotations + 2);
  ++fan_;
  std::vector<double> single(at(hosts_), 0);
  std::vector<double> together(at(hosts_), 0);
  for (const Experiment& e : experiments_) {
    std::vector<double> sum(at(hosts_), 0);
    std::vector<int> count(at(hosts_), 0);
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      single[at(e.flows[f].src)] = std::max(single[at(e.flows[f].src)], e.bytes_per_s[f]);
      sum[at(e.flows[f].src)] += e.bytes_per_s[f];
      ++count[at(e.flows[f].src)];
    }
    for (std::size_t h = 0; h < sum.size(); ++h) {
      if (count[h] == peers / 2) together[h] = std::max(together[h], sum[h]);
    }
  }
  for (const Hosts& part : parts) {
    for (const int center : part) {
      if (together[at(center)] * kSame < single[at(center)] * peers / 4) continue;
      std::vector<Flow> flows;
      for (const int host : part) {
        if (host != center && static_cast<int>(flows.size()) < 2 * peers) {
          both_ways(flows, center, host);
        }
      }
      if (static_cast<int>(flows.size()) > peers) queue_.push_back(std::move(flows));
    }
  }
}

}  // namespace chorus::probing
