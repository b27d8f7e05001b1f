#include "runtime/probing/inquiry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ctime>
#include <numeric>
#include <utility>

#include "base/blob.hpp"
#include "base/index.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

using probing::Flow;
using Kind = ProbeQuestion::Kind;

/// The host that measures a flow: its receiver; of a round trip the lower one; -1: nobody.
int answers_from(Kind kind, const Flow& flow) {
  if (kind != Kind::round_trip) return flow.dst;
  return flow.src < flow.dst ? flow.src : -1;
}

}  // namespace

ProbeInquiry::ProbeInquiry(std::span<const Rank> ranks,
                           std::span<const probing::HostNetwork> networks, int budget_ms)
    : ranks_(ranks), networks_(networks), budget_ms_(budget_ms) {
  begin_network(networks.empty() ? 0 : 1);
}

void ProbeInquiry::begin_network(std::size_t number) {
  network_ = number;
  found_.emplace_back(static_cast<int>(hosts_here().size()));
  fastest_.clear();
  measuring_s_ = 0;
}

/// The hosts, by number, that the prober in use knows by their places here.
std::vector<int> ProbeInquiry::hosts_here() const {
  if (network_ > 0) return networks_[network_ - 1].hosts;
  std::vector<int> all(ranks_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

ProbeBatch ProbeInquiry::next() {
  ProbeBatch batch;
  if (!joined_) {  // two of its hosts have no path there: all networks as one, from the start
    joined_ = true;
    found_.clear();
    latencies_.clear();
    measured_bytes_.clear();
    begin_network(0);
  }
  while (!time_left() || !found_.back().next()) {
    if (network_ == 0 || network_ == networks_.size()) return batch;
    begin_network(network_ + 1);
  }
  const probing::Prober& prober = found_.back();
  const std::vector<int> hosts = hosts_here();
  const auto pending = prober.pending();
  if (fastest_.empty()) {
    scout(pending, hosts.size(), batch);
  } else {
    const probing::HostTree known =
        prober.done() > 0 ? prober.tree() : probing::HostTree{.out = fastest_, .in = fastest_};
    for (const auto& round : pending) {
      batch.push_back({Kind::flows, round, duration_ms(round, known)});
    }
  }
  for (ProbeQuestion& question : batch) {
    question.network = static_cast<std::uint32_t>(network_);
    for (Flow& flow : question.flows) flow = {hosts[at(flow.src)], hosts[at(flow.dst)]};
  }
  return batch;
}

/// Whoever meets in the tournament is timed, once; the first rounds until every host has taken
/// part are the scouts.
void ProbeInquiry::scout(std::span<const std::vector<Flow>> tournament, std::size_t hosts,
                         ProbeBatch& batch) {
  fastest_.assign(hosts, 0);
  std::vector<std::vector<Flow>> seen;
  for (const auto& round : tournament) {
    if (network_ > 1) break;  // small messages take the first
    if (std::find(seen.begin(), seen.end(), round) != seen.end()) continue;
    seen.push_back(round);
    batch.push_back({.kind = Kind::round_trip, .flows = round});
  }
  std::vector<char> met(hosts, 0);
  for (const auto& round : tournament) {
    batch.push_back({.kind = Kind::scout, .flows = round});
    for (const Flow& flow : round) met[at(flow.dst)] = 1;
    if (std::find(met.begin(), met.end(), 0) == met.end()) return;
  }
}

std::vector<std::vector<Received>> ProbeInquiry::answers(const Table& told,
                                                         const ProbeQuestion& question) const {
  std::vector<std::vector<Received>> answers(ranks_.size());
  for (std::size_t h = 0; h < ranks_.size(); ++h) {
    BlobReader blob(told[h]);
    blob.u32();
    const std::uint32_t count = blob.u32();
    const auto expected =
        static_cast<std::size_t>(std::ranges::count_if(question.flows, [&](const Flow& flow) {
          return answers_from(question.kind, flow) == static_cast<int>(h);
        }));
    for (std::uint32_t i = 0; i < count && blob.ok() && i < expected; ++i) {
      const auto rate = std::bit_cast<double>(blob.u64());
      answers[h].push_back({rate, blob.u64()});
      if (!std::isfinite(rate) || rate < 0) {
        throw BootstrapError(fmt::format("rank {} measured an impossible {}", ranks_[h], rate));
      }
    }
    if (!blob.ok() || !blob.at_end() || answers[h].size() != expected) {
      throw BootstrapError(fmt::format("rank {} sent malformed measurements", ranks_[h]));
    }
  }
  return answers;
}

void ProbeInquiry::take(const Table& told, const ProbeQuestion& question) {
  const auto& [kind, flows, ms, network] = question;
  const std::vector<int> hosts = hosts_here();
  const std::vector<std::vector<Received>> all = answers(told, question);
  std::vector<std::size_t> next(ranks_.size(), 0);
  std::vector<double> rates;
  std::vector<std::uint64_t> bytes;
  for (const Flow& flow : flows) {
    const int host = answers_from(kind, flow);
    if (host < 0) continue;
    const Received& received = all[at(host)][next[at(host)]++];
    if (kind == Kind::round_trip) {
      latencies_.push_back({flow.src, flow.dst, received.bytes_per_s});
      continue;
    }
    if (network > 0 && received.bytes == 0) joined_ = false;
    if (kind == Kind::scout) {
      for (const int end : {flow.src, flow.dst}) {
        const auto place = std::ranges::lower_bound(hosts, end) - hosts.begin();
        double& fastest = fastest_[static_cast<std::size_t>(place)];
        fastest = std::max(fastest, received.bytes_per_s);
      }
    }
    rates.push_back(received.bytes_per_s);
    bytes.push_back(received.bytes);
    bytes_ += received.bytes;
  }
  if (kind != Kind::flows || !joined_) return;
  found_.back().take(rates);
  ++experiments_;
  if (found_.size() == 1) measured_bytes_.push_back(std::move(bytes));
}

void ProbeInquiry::conclude(Probed& probed) const {
  probed.experiments = experiments_;
  probed.bytes = bytes_;
  probed.measured_bytes = measured_bytes_;
  probed.network.tree = found_.front().tree();
  probed.network.measured_at_s = std::time(nullptr);
  probing::fit_latencies(probed.network, latencies_);
  const auto& experiments = found_.front().experiments();
  probed.measured.assign(experiments.begin(), experiments.end());
  for (std::size_t n = 1; n < found_.size(); ++n) {
    probing::ProbedNetwork further{.name = networks_[n].name, .tree = found_[n].tree()};
    for (const int host : networks_[n].hosts) {
      further.hosts.push_back(probed.network.hosts[at(host)]);
    }
    further.cable_alpha_s.assign(further.hosts.size(), 0);
    further.trunk_alpha_s.assign(further.tree.groups.size(), 0);
    further.measured_at_s = probed.network.measured_at_s;
    probed.network.further.push_back(std::move(further));
  }
}

std::string ProbeInquiry::phase() const {
  const std::string& phase = found_.back().phase();
  if (network_ < 2) return phase;
  return fmt::format("{}, network {}", phase, networks_[network_ - 1].name);
}

}  // namespace chorus
