// The wiring is found from rates alone: on invented networks whose truth is known.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "topology/probing/fit.hpp"
#include "topology/probing/prober.hpp"

namespace chorus::probing {
namespace {

constexpr double kMb = 1e6;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// How a network answers: rates scatter, some are disturbed; flows share what limits them by shares
// whose logarithms differ by `unfair` (TCP's windows), and of two ways at once one may be
// `held_up`, for its acknowledgements stand in the queue of the other.
struct Manner {
  double scatter = 0.02, disturbed = 0.02, unfair = 0, held_up = 0;
};

class Network {
 public:
  Network(HostTree truth, unsigned seed, Manner manner = {})
      : truth_(std::move(truth)), random_(seed), manner_(manner) {}

  std::vector<double> run(const std::vector<Flow>& flows) {
    std::vector<double> shares(flows.size(), 1);
    if (manner_.unfair > 0) {
      std::normal_distribution<double> unfair(0, manner_.unfair);
      for (double& share : shares) share = std::exp(unfair(random_));
    }
    std::vector<double> rates =
        grown_rates(limits_of(truth_, flows), std::vector<double>(flows.size(), 0), shares);
    for (std::size_t f = 0; f < flows.size(); ++f) {
      for (std::size_t back = f + 1; back < flows.size(); ++back) {
        if (flows[back] != Flow{flows[f].dst, flows[f].src} || chance() >= manner_.held_up) {
          continue;
        }
        rates[chance() < 0.5 ? f : back] *= 0.3 + 0.7 * chance();
      }
    }
    std::normal_distribution<double> noise(0, manner_.scatter);
    for (double& rate : rates) {
      rate *= std::max(0.5, 1 - std::abs(noise(random_)));
      if (chance() < manner_.disturbed) rate *= 0.6;
    }
    return rates;
  }

 private:
  double chance() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  HostTree truth_;
  std::mt19937 random_;
  Manner manner_;
};

Prober probed(Network network, int hosts) {
  Prober prober(hosts);
  while (const auto flows = prober.next()) prober.take(network.run(*flows));
  return prober;
}

HostTree flat(int hosts, double rate) {
  return {.out = std::vector<double>(at(hosts), rate),
          .in = std::vector<double>(at(hosts), rate),
          .groups = {}};
}

std::vector<std::vector<int>> groups_of(const HostTree& tree) {
  std::vector<std::vector<int>> groups;
  for (const auto& group : tree.groups) groups.push_back(group.hosts);
  std::sort(groups.begin(), groups.end());
  return groups;
}

using Groups = std::vector<std::vector<int>>;

void expect_rate(double found, double truth, const std::string& what) {
  EXPECT_NEAR(found / truth, 1, 0.05) << what;
}

TEST(Tournament, LetsEveryPairMeetOnceAndNobodyTwiceInARound) {
  for (int n = 2; n <= 17; ++n) {
    std::vector<int> met(at(n) * at(n), 0);
    for (const auto& round : tournament(n)) {
      std::vector<int> busy(at(n), 0);
      for (const Flow& flow : round) {
        ++met[at(flow.src) * at(n) + at(flow.dst)];
        ++busy[at(flow.src)];
      }
      EXPECT_LE(*std::max_element(busy.begin(), busy.end()), 1) << n;
    }
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) EXPECT_EQ(met[at(a) * at(n) + at(b)], a == b ? 0 : 1) << n;
    }
  }
}

TEST(Probing, FindsEqualHostsOnOneSwitch) {
  for (const int n : {2, 3, 4, 7, 8, 16, 40}) {
    for (unsigned seed = 0; seed < 10; ++seed) {
      const HostTree tree = probed(Network(flat(n, 239 * kMb), seed), n).tree();
      EXPECT_EQ(groups_of(tree), Groups{}) << n << " hosts, seed " << seed;
      EXPECT_EQ(tree.core, 0) << n << " hosts, seed " << seed;
      for (int h = 0; h < n; ++h) expect_rate(tree.out[at(h)], 239 * kMb, "cable");
    }
  }
}

TEST(Probing, FindsTwoFastPairsBehindASlowTrunkInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    HostTree truth = flat(4, 239 * kMb);
    std::vector<int> group = {order[0], order[1]};
    std::sort(group.begin(), group.end());
    group = smaller_side(4, group);
    truth.groups.push_back({group, 24 * kMb, 24 * kMb});
    const HostTree tree = probed(Network(truth, 3), 4).tree();
    ASSERT_EQ(groups_of(tree), Groups{group});
    expect_rate(tree.groups[0].out, 24 * kMb, "trunk out");
    expect_rate(tree.groups[0].in, 24 * kMb, "trunk in");
    for (int h = 0; h < 4; ++h) expect_rate(tree.out[at(h)], 239 * kMb, "cable");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Probing, FindsOneSlowHostAndNoTrunk) {
  for (int slow = 0; slow < 4; ++slow) {
    HostTree truth = flat(4, 239 * kMb);
    truth.out[at(slow)] = truth.in[at(slow)] = 24 * kMb;
    const HostTree tree = probed(Network(truth, 5), 4).tree();
    EXPECT_EQ(groups_of(tree), Groups{});
    for (int h = 0; h < 4; ++h) {
      expect_rate(tree.out[at(h)], truth.out[at(h)], "cable out");
      expect_rate(tree.in[at(h)], truth.in[at(h)], "cable in");
    }
  }
}

// A – 500 – B – 200 – C, three islands of 3, 3 and 2 hosts in a line.
TEST(Probing, FindsThreeUnequalIslandsInALine) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    HostTree truth = flat(8, 119 * kMb);
    truth.groups.push_back({{0, 3, 5}, 60 * kMb, 60 * kMb});
    truth.groups.push_back({{2, 7}, 24 * kMb, 24 * kMb});
    const Prober prober = probed(Network(truth, seed), 8);
    const HostTree tree = prober.tree();
    ASSERT_EQ(groups_of(tree), (Groups{{0, 3, 5}, {2, 7}})) << seed;
    for (const auto& group : tree.groups) {
      expect_rate(group.out, group.hosts.size() == 3 ? 60 * kMb : 24 * kMb, "trunk");
    }
    EXPECT_LE(prober.done(), 80);
  }
}

// No pair alone shows it: each trunk is twice as fast as a cable, and four hosts share it.
TEST(Probing, FindsSwitchesWhoseTrunksAreOversubscribed) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    HostTree truth = flat(8, 119 * kMb);
    truth.groups.push_back({{1, 3, 5, 7}, 240 * kMb, 240 * kMb});
    const HostTree tree = probed(Network(truth, seed), 8).tree();
    ASSERT_EQ(groups_of(tree), (Groups{{1, 3, 5, 7}})) << seed;
    expect_rate(tree.groups[0].out, 240 * kMb, "trunk");
  }
}

TEST(Probing, FindsACableFasterThanItsPeers) {
  HostTree truth = flat(6, 100 * kMb);
  truth.out[4] = truth.in[4] = 300 * kMb;
  truth.out[2] = truth.in[2] = 50 * kMb;
  const HostTree tree = probed(Network(truth, 1), 6).tree();
  EXPECT_EQ(groups_of(tree), Groups{});
  for (int h = 0; h < 6; ++h) expect_rate(tree.out[at(h)], truth.out[at(h)], "cable");
}

// What is measured several times becomes one figure; what only resembles another does not, or the
// same cluster would have other rates each time.
TEST(Probing, CablesThatDifferByATwentiethKeepTheirRates) {
  HostTree truth = flat(6, 100 * kMb);
  for (int h = 0; h < 6; ++h) {
    truth.out[at(h)] = truth.in[at(h)] = std::pow(0.95, h % 3) * 100 * kMb;
  }
  for (unsigned seed = 0; seed < 20; ++seed) {
    const HostTree tree =
        probed(Network(truth, seed, {.scatter = 0.005, .disturbed = 0}), 6).tree();
    for (int h = 0; h < 6; ++h) {
      EXPECT_NEAR(tree.out[at(h)] / truth.out[at(h)], 1, 0.025) << "seed " << seed;
      EXPECT_NEAR(tree.in[at(h)] / truth.in[at(h)], 1, 0.025) << "seed " << seed;
    }
  }
}

TEST(Probing, FindsACoreThatIsSlowerThanItsPorts) {
  HostTree truth = flat(8, 100 * kMb);
  truth.core = 400 * kMb;
  const HostTree tree = probed(Network(truth, 2), 8).tree();
  EXPECT_EQ(groups_of(tree), Groups{});
  expect_rate(tree.core, 400 * kMb, "core");
}

// Every round of such pairs is slowed by about as much, as by a core; which of the three trunks it
// is that is missing shows where hosts of all three meet.
TEST(Probing, FindsTwoTrunksThatAreNearlyAsFastAsACable) {
  HostTree truth = flat(6, 17.4 * kMb);
  truth.groups = {{{0, 1}, 16.2 * kMb, 16.2 * kMb}, {{2, 3}, 17 * kMb, 17 * kMb}};
  int found = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const HostTree tree = probed(Network(truth, seed), 6).tree();
    if (groups_of(tree) == groups_of(truth) && tree.core == 0) ++found;
  }
  EXPECT_GE(found, 16);
}

// Two ways at once, and the slower says nothing.
TEST(Probing, FindsATrunkThatIsSlowInOneDirection) {
  HostTree truth = flat(7, 29 * kMb);
  truth.groups = {{{0, 1, 2}, 83 * kMb, 23 * kMb}};
  truth.out[5] = truth.in[5] = 105 * kMb;
  truth.in[2] = 13 * kMb;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const HostTree tree = probed(Network(truth, seed), 7).tree();
    ASSERT_EQ(groups_of(tree), groups_of(truth)) << seed;
    EXPECT_NEAR(tree.groups[0].in, 23 * kMb, 0.05 * 23 * kMb) << seed;
  }
}

TEST(Probing, FindsDirectionsApart) {
  HostTree truth = flat(4, 100 * kMb);
  for (double& rate : truth.in) rate = 100 * kMb;
  truth.out[1] = 20 * kMb;
  const HostTree tree = probed(Network(truth, 2), 4).tree();
  expect_rate(tree.out[1], 20 * kMb, "out");
  expect_rate(tree.in[1], 100 * kMb, "in");
}

struct Invented {
  HostTree tree;
  std::string text;
};

// Islands, perhaps nested, with trunks that limit a pair, several pairs or nothing.
Invented invent(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const int n = pick(4, 16);
  Invented invented{flat(n, 120 * kMb), std::to_string(n) + " hosts"};
  HostTree& tree = invented.tree;
  std::vector<int> order(at(n));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const int islands = std::min(pick(1, 4), n / 2);
  for (int i = 0; i + 1 < islands; ++i) {
    std::vector<int> hosts;
    for (int k = i * n / islands; k < (i + 1) * n / islands; ++k) hosts.push_back(order[at(k)]);
    std::sort(hosts.begin(), hosts.end());
    hosts = smaller_side(n, hosts);
    const double shares[] = {0.1, 0.25, 0.5};
    const double rate = 120 * kMb * shares[pick(0, 2)] * (pick(0, 1) + 1);
    tree.groups.push_back({hosts, rate, rate});
    invented.text += ", " + std::to_string(hosts.size()) + " at " + std::to_string(rate / kMb);
  }
  if (pick(0, 2) == 0) {
    const int slow = pick(0, n - 1);
    tree.out[at(slow)] = tree.in[at(slow)] = 30 * kMb;
    invented.text += ", slow host " + std::to_string(slow);
  }
  return invented;
}

// Traffic that was never measured is predicted as the truth would have it.
TEST(Probing, PredictsTrafficItNeverSawOnManyInventedNetworks) {
  int wrong = 0;
  int total = 0;
  std::string mistakes;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Invented invented = invent(seed);
    const int n = invented.tree.hosts();
    const HostTree found = probed(Network(invented.tree, seed + 1000), n).tree();
    std::mt19937 random(seed);
    double error = 0;
    constexpr int kTrials = 12;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<Flow> flows;
      for (int i = 0; i < 2 * n; ++i) {
        const int src = static_cast<int>(random() % at(n));
        const int dst = static_cast<int>(random() % at(n));
        if (src != dst) flows.push_back({src, dst});
      }
      const auto truth = fair_rates(invented.tree, flows);
      const auto guess = fair_rates(found, flows);
      const double slowest = *std::min_element(truth.begin(), truth.end());
      const double guessed = *std::min_element(guess.begin(), guess.end());
      error = std::max(error, std::abs(std::log(guessed / slowest)));
    }
    ++total;
    if (error > 0.2) {
      ++wrong;
      mistakes += "seed " + std::to_string(seed) + ": " + invented.text + "\n";
    }
  }
  EXPECT_LE(wrong * 100, total * 5) << mistakes;
}

// Cables of all rates behind a tree of switches whose trunks are faster and slower than they are,
// some in one direction only.
HostTree drawn(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto rate = [&] {
    return std::exp(std::uniform_real_distribution<double>(std::log(10), std::log(250))(random)) *
           kMb;
  };
  const int n = pick(2, 12);
  const int switches = pick(1, std::min(n, 5));
  HostTree tree = flat(n, rate());
  if (pick(0, 1) == 0) {
    for (double& cable : tree.out) cable = rate();
    tree.in = tree.out;
    for (double& cable : tree.in) {
      if (pick(0, 4) == 0) cable = rate();
    }
  }
  std::vector<std::vector<int>> below(at(switches));
  std::vector<int> parent(at(switches), 0);
  for (int s = 1; s < switches; ++s) parent[at(s)] = pick(0, s - 1);
  for (int h = 0; h < n; ++h) {
    for (int s = h < switches ? h : pick(0, switches - 1); s > 0; s = parent[at(s)]) {
      below[at(s)].push_back(h);
    }
  }
  for (int s = 1; s < switches; ++s) {
    const double out = rate();
    const double in = pick(0, 3) == 0 ? rate() : out;
    if (!worth_a_trunk(n, below[at(s)])) continue;
    const std::vector<int> hosts = smaller_side(n, below[at(s)]);
    const auto known = std::find_if(tree.groups.begin(), tree.groups.end(),
                                    [&](const auto& group) { return group.hosts == hosts; });
    if (known == tree.groups.end()) tree.groups.push_back({hosts, out, in});
  }
  return tree;
}

// Whatever the disturbances: of ten probes of a cluster, at most one has another tree, or a rate
// that is more than 5 % off their medians. Of most clusters; trunks that hardly matter come and go.
TEST(Probing, SaysTheSameOfMostClustersEveryTime) {
  constexpr int kClusters = 40;
  constexpr int kProbes = 10;
  int steady = 0;
  for (unsigned seed = 0; seed < kClusters; ++seed) {
    const HostTree truth = drawn(seed);
    std::vector<std::vector<double>> figures;
    std::map<Groups, int> trees;
    std::vector<Groups> groups;
    for (unsigned probe = 0; probe < kProbes; ++probe) {
      HostTree found = probed(Network(truth, 1000 * seed + probe), truth.hosts()).tree();
      groups.push_back(groups_of(found));
      ++trees[groups.back()];
      std::sort(found.groups.begin(), found.groups.end(),
                [](const auto& a, const auto& b) { return a.hosts < b.hosts; });
      std::vector<double> all = found.out;
      all.insert(all.end(), found.in.begin(), found.in.end());
      for (const auto& group : found.groups) all.insert(all.end(), {group.out, group.in});
      figures.push_back(std::move(all));
    }
    const auto usual =
        std::max_element(trees.begin(), trees.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    std::vector<bool> same(kProbes, true);
    for (std::size_t p = 0; p < kProbes; ++p) same[p] = groups[p] == usual->first;
    const std::size_t some =
        static_cast<std::size_t>(std::find(same.begin(), same.end(), true) - same.begin());
    for (std::size_t i = 0; i < figures[some].size(); ++i) {
      std::vector<double> values;
      for (std::size_t p = 0; p < kProbes; ++p) {
        if (groups[p] == usual->first) values.push_back(figures[p][i]);
      }
      std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
      const double median = values[values.size() / 2];
      for (std::size_t p = 0; p < kProbes; ++p) {
        if (groups[p] == usual->first && std::abs(figures[p][i] / median - 1) > 0.05)
          same[p] = false;
      }
    }
    if (std::count(same.begin(), same.end(), true) >= kProbes - 1) ++steady;
  }
  EXPECT_GE(steady, 35) << "of " << kClusters;
}

// How long what limits these flows takes for a byte of each.
double seconds_of(const HostTree& tree, const std::vector<Flow>& flows) {
  double most = 0;
  for (const Limit& limit : limits_of(tree, flows)) {
    most = std::max(most, static_cast<double>(limit.flows.size()) / limit.bytes_per_s);
  }
  return most;
}

// However flows share: what any traffic takes at the limits found is what it takes at the true
// ones, and trunks that are not there are not invented.
TEST(Probing, UnderstandsDrawnClustersWhoseFlowsShareUnfairly) {
  constexpr Manner kTcp{.unfair = 0.7, .held_up = 0.5};
  int clusters = 0, wrong = 0, trunks = 0, invented = 0;
  std::string mistakes;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const HostTree truth = drawn(seed);
    const int n = truth.hosts();
    if (n < 3) continue;
    const HostTree found = probed(Network(truth, seed + 1000, kTcp), n).tree();
    std::mt19937 random(seed);
    double error = 0;
    for (int trial = 0; trial < 40; ++trial) {
      std::vector<Flow> flows;
      for (int i = 0; i < (trial % 2 == 0 ? 2 * n : n / 2); ++i) {
        const int src = static_cast<int>(random() % at(n));
        const int dst = static_cast<int>(random() % at(n));
        if (src != dst) flows.push_back({src, dst});
      }
      if (flows.empty()) continue;
      error =
          std::max(error, std::abs(std::log(seconds_of(found, flows) / seconds_of(truth, flows))));
    }
    ++clusters;
    if (error > 0.1) {
      ++wrong;
      mistakes += "seed " + std::to_string(seed) + ": " + std::to_string(error) + "\n";
    }
    const Groups groups = groups_of(truth);
    trunks += static_cast<int>(groups.size());
    invented += static_cast<int>(std::ranges::count_if(groups_of(found), [&](const auto& group) {
      return std::ranges::find(groups, group) == groups.end();
    }));
  }
  EXPECT_LE(wrong * 100, clusters * 5) << wrong << " of " << clusters << ":\n" << mistakes;
  EXPECT_LE(invented * 100, trunks * 6) << invented << " of " << trunks;
}

// A flow that fills none of its limits could go faster, and one that fills any could not, however
// little others have left it.
TEST(Fit, RoomIsWhatNoLimitStops) {
  HostTree tree = flat(4, 100 * kMb);
  tree.groups.push_back({{2, 3}, 60 * kMb, 60 * kMb});
  const std::vector<Flow> flows = {{0, 2}, {1, 3}, {0, 1}};
  const auto limits = limits_of(tree, flows);
  const std::vector<int> over_trunk = {0, 1}, all = {0, 1, 2};
  EXPECT_NEAR(room(limits, std::vector{50 * kMb, 10 * kMb, 50 * kMb}, over_trunk), 1, 1e-9);
  EXPECT_NEAR(room(limits, std::vector{10 * kMb, 10 * kMb, 80 * kMb}, over_trunk), 3, 1e-9);
  EXPECT_NEAR(room(limits, std::vector{10 * kMb, 10 * kMb, 20 * kMb}, all), 130. / 40, 1e-9);
}

TEST(Probing, AsksFewerThanSquareQuestionsOfManyHosts) {
  for (const int n : {32, 64}) {
    HostTree truth = flat(n, 100 * kMb);
    std::vector<int> half(at(n) / 2);
    std::iota(half.begin(), half.end(), n / 2);
    truth.groups.push_back({half, 50 * kMb, 50 * kMb});
    const Prober prober = probed(Network(truth, 1), n);
    EXPECT_EQ(groups_of(prober.tree()), Groups{half});
    std::size_t flows = 0;
    for (const Experiment& e : prober.experiments()) flows += e.flows.size();
    EXPECT_LE(flows, at(n) * static_cast<std::size_t>(8 * std::log2(n))) << n;
  }
}

}  // namespace
}  // namespace chorus::probing
