#include "runtime/engine/connections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/blob.hpp"
#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/cores.hpp"
#include "base/files/descriptors.hpp"
#include "base/host.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/engine/cpu_quota.hpp"

namespace chorus {
namespace {

// The ranks that share cores, and the cores that any of them may use.
struct Machine {
  std::vector<std::size_t> members;
  std::set<int> cores;
  std::set<std::string> hosts = {};
};

/// Of all peers of one rank. Most are alike, so each answer is kept and sent once, with the number
/// of peers in a row that it holds for: n² of them would take megabytes in every rank.
class Reachability {
 public:
  /// Of the next `count` peers.
  void add(Reach reach, std::size_t count = 1) {
    const auto known = std::find(answers_.begin(), answers_.end(), reach);
    const auto answer = static_cast<std::size_t>(known - answers_.begin());
    if (known == answers_.end()) answers_.push_back(std::move(reach));
    if (runs_.empty() || runs_.back().answer != answer) runs_.push_back({size_, answer});
    size_ += count;
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const Reach& to(std::size_t peer) const { return answers_[run_of(peer)->answer]; }
  /// What holds for all of `peers`, which are in order; null where they differ.
  [[nodiscard]] const Reach* to_all(std::span<const Rank> peers) const {
    const auto run = run_of(static_cast<std::size_t>(peers.front()));
    const Reach* const first = &answers_[run->answer];
    if (run == run_of(static_cast<std::size_t>(peers.back()))) return first;
    const bool alike = std::ranges::all_of(
        peers, [&](Rank peer) { return &to(static_cast<std::size_t>(peer)) == first; });
    return alike ? first : nullptr;
  }

  void write(BlobWriter& blob) const {
    blob.u32(static_cast<std::uint32_t>(runs_.size()));
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const std::size_t end = i + 1 < runs_.size() ? runs_[i + 1].first : size_;
      blob.u32(static_cast<std::uint32_t>(end - runs_[i].first));
      blob.u32(answers_[runs_[i].answer].usable);
      blob.text(answers_[runs_[i].answer].why_not);
    }
  }
  /// Of at most `most` peers; the reader is not ok() where it makes no sense.
  static Reachability read(BlobReader& blob, std::size_t most) {
    Reachability result;
    const std::uint32_t runs = blob.u32();
    for (std::uint32_t i = 0; i < runs && blob.ok(); ++i) {
      const std::size_t count = blob.u32();
      Reach reach{.usable = blob.u32(), .why_not = blob.text()};
      if (count > 0) result.add(std::move(reach), std::min(count, most - result.size_));
    }
    return result;
  }

 private:
  struct Run {
    std::size_t first;
    std::size_t answer;
  };
  [[nodiscard]] std::vector<Run>::const_iterator run_of(std::size_t peer) const {
    const auto after =
        std::upper_bound(runs_.begin(), runs_.end(), peer,
                         [](std::size_t p, const Run& run) { return p < run.first; });
    return std::prev(after);
  }

  std::size_t size_ = 0;
  std::vector<Reach> answers_;
  std::vector<Run> runs_;
};

/// Ranks that reach the others alike.
struct Alike {
  Reachability reached;
  std::vector<Rank> ranks;  ///< in order
};

std::vector<std::string_view> split(std::string_view list, char separator) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const auto end = list.find(separator);
    if (end != 0) parts.push_back(list.substr(0, end));
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
  }
  return parts;
}

constexpr std::string_view kBetweenReasons = "; ";

// Of "shm: other host; rdma: no adapter" what follows `transport`. Reasons are clauses of any
// words, so a reason ends where another transport's begins.
std::string reason_of(std::string_view reasons, std::string_view transport) {
  const auto begin_of = [&](std::string_view name) {
    const std::string mark = fmt::format("{}: ", name);
    if (reasons.starts_with(mark)) return std::size_t{0};
    const auto at = reasons.find(fmt::format("{}{}", kBetweenReasons, mark));
    return at == std::string_view::npos ? at : at + kBetweenReasons.size();
  };
  const std::size_t begin = begin_of(transport);
  if (begin == std::string_view::npos) return {};
  std::size_t end = reasons.size();
  for (const auto& other : transports()) {
    const std::size_t next = begin_of(other.name);
    if (next != std::string_view::npos && next > begin) {
      end = std::min(end, next - kBetweenReasons.size());
    }
  }
  const std::size_t text = begin + transport.size() + 2;
  return std::string(reasons.substr(text, end - text));
}

}  // namespace

Connections::Connections(Control& control, const GroupPlace& place, const Options& options,
                         const SlotLayout& layout, const std::string& agreement, Memory memory)
    : rank_(place.rank) {
  // A communicator keeps one or two, and one per peer that it talks to over the network.
  allow_more_descriptors(4 * place.members.size() + 64);
  wakeups_ = place.wakeups ? place.wakeups : std::make_shared<Wakeups>();
  make_transports(place, options, control.secret().derive(place.key), control.local_address(),
                  layout);

  BlobWriter mine;
  mine.text(agreement);
  mine.u64(static_cast<std::uint64_t>(steady_ns()));
  const std::string kernel = boot_id();  // one for all containers under it
  const std::string own_host = host_name() + "/" + kernel;
  mine.text(own_host);
  mine.text(options.machine.empty() ? kernel : options.machine);
  const std::vector<int> cores = usable_cores();
  mine.bytes(std::as_bytes(std::span(cores)));
  mine.u32(static_cast<std::uint32_t>(std::ceil(std::min(cpu_quota(), 1e6))));
  mine.u32(static_cast<std::uint32_t>(transports_.size()));
  for (const auto& transport : transports_) mine.bytes(transport->address());
  table_ = control.exchange(place.key + "/connections", place.members, mine.view(),
                            options.join_timeout_ms, place.key);
  for (std::size_t t = 0; t < transports_.size(); ++t) order_.push_back(t);

  std::map<std::string, std::set<int>> cores_of_host;
  std::map<std::string, Machine> machines;
  std::map<std::string, int> quotas;  // of hosts that have one, whole cores
  std::span<const std::byte> cores_before;
  for (std::size_t peer = 0; peer < table_.size(); ++peer) {
    BlobReader reader(table_[peer]);
    const std::string theirs = reader.text();
    if (theirs != agreement) {
      throw BootstrapError(fmt::format(
          "ranks {} and {} do not agree on how to run: '{}' against '{}'; give all ranks the same "
          "options, plan and version",
          rank_, peer, agreement, theirs));
    }
    const std::uint64_t serial = reader.u64();
    if (peer == 0) serial_ = serial;
    Member member{.world_rank = place.members[peer], .host = reader.text()};
    Machine& machine = machines[reader.text()];
    machine.members.push_back(peer);
    const auto cores_seen = reader.bytes();
    // Those of the rank before, most often, which are in the sets.
    const bool again = peer > 0 && members_.back().host == member.host &&
                       std::ranges::equal(cores_seen, cores_before);
    cores_before = cores_seen;
    if (member.host == own_host) {
      member.units.resize(cores_seen.size() / sizeof(int));
      std::memcpy(member.units.data(), cores_seen.data(), member.units.size() * sizeof(int));
    }
    for (std::size_t i = 0; !again && i + sizeof(int) <= cores_seen.size(); i += sizeof(int)) {
      int core = 0;
      std::memcpy(&core, cores_seen.data() + i, sizeof core);
      cores_of_host[member.host].insert(core);
      machine.cores.insert(core);
    }
    // Ranks of a host are in one control group, most often; of several the smallest counts.
    const auto quota = static_cast<int>(std::min(reader.u32(), std::uint32_t{1'000'000}));
    if (quota > 0) {
      const auto [known, is_new] = quotas.try_emplace(member.host, quota);
      known->second = std::min(known->second, quota);
    }
    machine.hosts.insert(member.host);
    const std::uint32_t count = reader.u32();
    addresses_.push_back(static_cast<std::uint32_t>(table_[peer].size() - reader.left()));
    for (std::uint32_t i = 0; i < count && reader.ok(); ++i) (void)reader.bytes();
    if (!reader.ok() || count != transports_.size()) {
      throw BootstrapError(fmt::format("rank {} sent a malformed address", peer));
    }
    members_.push_back(std::move(member));
  }
  const auto allowed = [&](const std::string& host) {
    const auto cores_there = static_cast<int>(cores_of_host[host].size());
    const auto quota = quotas.find(host);
    return quota == quotas.end() ? cores_there : std::min(cores_there, quota->second);
  };
  for (Member& member : members_) member.host_cores = std::max(1, allowed(member.host));
  for (const auto& [name, machine] : machines) {
    int together = 0;
    for (const std::string& host : machine.hosts) together += allowed(host);
    const int machine_cores =
        std::clamp(together, 1, std::max(1, static_cast<int>(machine.cores.size())));
    for (const std::size_t i : machine.members) {
      members_[i].neighbor = static_cast<Rank>(machine.members.front());
      members_[i].machine_cores = machine_cores;
      members_[i].oversubscribed = static_cast<int>(machine.members.size()) > machine_cores;
    }
  }
  links_.resize(members_.size());
  choose(control, place, options);
  drop_unused_transports();
  if (memory == Memory::in_common) open_shared_window();
}

std::span<const std::byte> Connections::address(Rank peer, std::size_t transport) const {
  const auto of_peer = static_cast<std::size_t>(peer);
  BlobReader reader(table_[of_peer].subspan(addresses_[of_peer]));
  for (std::size_t before = 0; before < order_[transport]; ++before) (void)reader.bytes();
  return reader.bytes();
}

void Connections::make_transports(const GroupPlace& place, const Options& options,
                                  const Secret& secret, const std::string& local_address,
                                  const SlotLayout& layout) {
  TransportContext context;
  context.rank = place.rank;
  context.world_size = static_cast<int>(place.members.size());
  context.secret = secret;
  context.wakeups = wakeups_;
  context.link.region_bytes = layout.region_bytes();
  context.link.num_channels = 2 * layout.data_channels;  // data and credits
  context.link.max_outstanding = 32;
  context.link.slot_bytes = layout.slot_bytes;
  context.link.timeout_ms = options.join_timeout_ms;
  context.interface_name = options.interface_name.empty() ? local_address : options.interface_name;
  context.other_interfaces = options.interface_name.empty();
  context.tcp_sockets = options.tcp_sockets;
  context.rdma = {.hca = options.rdma_hca,
                  .gid_index = options.rdma_gid_index,
                  .traffic_class = options.rdma_traffic_class,
                  .service_level = options.rdma_service_level,
                  .timeout = options.rdma_timeout,
                  .retry = options.rdma_retry,
                  .queue_pairs = options.rdma_queue_pairs,
                  .max_rails = options.rdma_rails};

  for (const std::string_view wanted : split(options.transports, ',')) {
    const auto known = chorus::transports();
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const auto& factory) { return factory.name == wanted; });
    if (found == known.end()) {
      std::string names;
      for (const auto& factory : known) names += fmt::format(" {}", factory.name);
      throw InputError(fmt::format("CHORUS_TRANSPORTS: no transport is called '{}'; there are:{}",
                                   wanted, names));
    }
    transports_.push_back(found->make(context));
  }
  if (transports_.empty()) throw InputError("CHORUS_TRANSPORTS is empty: use shm,rdma,tcp");
}

// A pair uses the first transport that both of its ends can use, so each tells the others what it
// can. Ranks that say the same, those of one host above all, are judged as one: there are n² pairs.
void Connections::choose(Control& control, const GroupPlace& place, const Options& options) {
  const std::size_t n = members_.size();
  const auto own = static_cast<std::size_t>(rank_);
  std::vector<Reach> each(n);
  std::size_t like_own = own == 0 && n > 1 ? 1 : 0;
  for (std::size_t peer = 0; peer < n; ++peer) {
    if (peer == own) continue;
    if (members_[like_own].host != members_[own].host) like_own = peer;
    for (std::size_t t = 0; t < transports_.size(); ++t) {
      const auto reason = transports_[t]->why_not(address(static_cast<Rank>(peer), t));
      if (!reason) each[peer].usable |= 1U << t;
      if (!reason) continue;
      each[peer].why_not +=
          fmt::format("{}{}: {}", each[peer].why_not.empty() ? "" : kBetweenReasons,
                      transports_[t]->name(), *reason);
    }
  }
  each[own] = each[like_own];  // nobody asks; so ranks of one host say the same
  Reachability reached;
  for (Reach& reach : each) reached.add(std::move(reach));
  BlobWriter mine;
  const bool in_vain =
      std::any_of(transports_.begin(), transports_.end(),
                  [](const auto& transport) { return transport->misconfigured(); });
  mine.u32(in_vain ? 1 : 0);
  reached.write(mine);
  const auto blobs = control.exchange(place.key + "/transports", place.members, mine.view(),
                                      options.join_timeout_ms, place.key);
  bool misconfigured = false;  // by any rank
  std::vector<Alike> all;      // in the order of their first ranks, so that all ranks throw alike
  std::map<std::string_view, std::size_t> known;
  for (std::size_t from = 0; from < n; ++from) {
    const std::string_view said(reinterpret_cast<const char*>(blobs[from].data()),
                                blobs[from].size());
    const auto [entry, is_new] = known.try_emplace(said, all.size());
    if (is_new) {
      BlobReader reader(blobs[from]);
      misconfigured = (reader.u32() != 0) || misconfigured;
      all.push_back({.reached = Reachability::read(reader, n), .ranks = {}});
      if (!reader.ok() || !reader.at_end() || all.back().reached.size() != n) {
        throw BootstrapError(fmt::format("rank {} sent a malformed list", from));
      }
    }
    all[entry->second].ranks.push_back(static_cast<Rank>(from));
  }
  chosen_.assign(n, -1);
  std::vector<Served> served(transports_.size());
  for (auto a = all.begin(); a != all.end(); ++a) {
    for (auto b = a; b != all.end(); ++b) {
      const Reach* const there = a->reached.to_all(b->ranks);
      const Reach* const back = b->reached.to_all(a->ranks);
      if (there != nullptr && back != nullptr) {
        judge(a->ranks, b->ranks, *there, *back, served);
        continue;
      }
      for (const Rank one : a->ranks) {
        for (const Rank other : b->ranks) {
          if (a == b && other <= one) continue;
          judge({&one, 1}, {&other, 1}, a->reached.to(static_cast<std::size_t>(other)),
                b->reached.to(static_cast<std::size_t>(one)), served);
        }
      }
    }
  }
  if (rank_ == 0 && n > 1) tell(served, misconfigured ? LogLevel::warn : LogLevel::info);
}

void Connections::judge(std::span<const Rank> some, std::span<const Rank> others,
                        const Reach& there, const Reach& back, std::vector<Served>& served) {
  const bool same = some.data() == others.data();
  const std::size_t pairs =
      same ? some.size() * (some.size() - 1) / 2 : some.size() * others.size();
  if (pairs == 0) return;
  const Rank one = some.front();
  const Rank other = same ? others[1] : others.front();
  const std::uint32_t both = there.usable & back.usable;
  if (both == 0) {
    std::string reasons_of_both = there.why_not;
    if (back.why_not != there.why_not) {
      reasons_of_both =
          fmt::format("rank {}: {}; rank {}: {}", one, there.why_not, other, back.why_not);
    }
    throw TopologyError(
        fmt::format("no transport connects ranks {} and {}: {}", one, other, reasons_of_both));
  }
  const int first = __builtin_ctz(both);
  served[static_cast<std::size_t>(first)].pairs += pairs;
  for (std::size_t t = 0; t < static_cast<std::size_t>(first); ++t) {
    if (served[t].not_pairs == 0) {
      const std::string reason = reason_of(there.why_not, transports_[t]->name());
      served[t].why_not =
          fmt::format("ranks {} and {}: {}", one, other,
                      reason.empty() ? reason_of(back.why_not, transports_[t]->name()) : reason);
    }
    served[t].not_pairs += pairs;
  }
  if (transports_[static_cast<std::size_t>(first)]->name() != "shm") {
    any_network_ = true;
    std::set<std::string_view> hosts;
    for (const Rank rank : some) {
      const bool is_new = hosts.insert(members_[static_cast<std::size_t>(rank)].host).second;
      if (same && !is_new) hosts_share_memory_ = false;
    }
    for (const Rank rank : others) {
      if (!same && hosts.contains(members_[static_cast<std::size_t>(rank)].host)) {
        hosts_share_memory_ = false;
      }
    }
  }
  const auto chosen_by = [&](std::span<const Rank> ranks, std::span<const Rank> peers) {
    if (std::ranges::find(ranks, rank_) == ranks.end()) return;
    for (const Rank peer : peers) {
      if (peer != rank_) chosen_[static_cast<std::size_t>(peer)] = first;
    }
  };
  chosen_by(some, others);
  chosen_by(others, some);
}

void Connections::tell(const std::vector<Served>& served, LogLevel level) const {
  const bool all_by_first = std::all_of(served.begin(), served.end(), [](const Served& transport) {
    return transport.not_pairs == 0;
  });
  if (all_by_first) level = LogLevel::info;
  if (!log_enabled(level)) return;
  std::string pairs, not_by;
  for (std::size_t t = 0; t < served.size(); ++t) {
    const std::string_view name = transports_[t]->name();
    if (served[t].pairs > 0) {
      pairs += fmt::format("{}{} by {}", pairs.empty() ? "" : ", ", served[t].pairs, name);
    }
    if (served[t].not_pairs > 0) {
      not_by +=
          fmt::format("; {} not by {}, the first {}", served[t].not_pairs, name, served[t].why_not);
    }
  }
  log(level, fmt::format("[rank 0/{}]", members_.size()),
      fmt::format("pairs of ranks: {}{}", pairs, not_by));
}

// Each listens, or holds memory, for peers that come another way.
void Connections::drop_unused_transports() {
  for (int t = static_cast<int>(transports_.size()) - 1; t >= 0; --t) {
    if (std::find(chosen_.begin(), chosen_.end(), t) != chosen_.end()) continue;
    transports_.erase(transports_.begin() + t);
    order_.erase(order_.begin() + t);
    for (int& chosen : chosen_) chosen -= chosen > t ? 1 : 0;
  }
}

void Connections::open_shared_window() {
  const std::size_t n = members_.size();
  if (any_network_ || n < 2 || n > SharedWindow::kMaxRanks) return;
  const std::size_t other = rank_ == 0 ? 1 : 0;
  const auto transport = static_cast<std::size_t>(chosen_[other]);
  std::vector<std::vector<std::byte>> addresses;
  for (Rank peer = 0; peer < static_cast<Rank>(n); ++peer) {
    const auto of_peer = address(peer, transport);
    addresses.emplace_back(of_peer.begin(), of_peer.end());
  }
  shared_window_ = transports_[transport]->open_shared_window(addresses);
}

Link& Connections::link(Rank peer) {
  auto& link = links_[static_cast<std::size_t>(peer)];
  if (!link) {
    const auto transport = static_cast<std::size_t>(chosen_[static_cast<std::size_t>(peer)]);
    link = transports_[transport]->connect(peer, address(peer, transport));
    link->expect_copies(copies_);
    if (!paces_.empty()) link->pace(paces_[static_cast<std::size_t>(peer)]);
  }
  return *link;
}

void Connections::pace(std::vector<double> bytes_per_s) {
  paces_ = std::move(bytes_per_s);
  paces_.resize(links_.size());
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (links_[peer]) links_[peer]->pace(paces_[peer]);
  }
}

void Connections::expect_copies(MessageCopiesBySize copies) {
  copies_ = std::move(copies);
  for (const auto& link : links_) {
    if (link) link->expect_copies(copies_);
  }
}

std::string_view Connections::transport_of(Rank peer) const {
  const int chosen = chosen_[static_cast<std::size_t>(peer)];
  return chosen < 0 ? "self" : transports_[static_cast<std::size_t>(chosen)]->name();
}

void Connections::progress() {
  for (const auto& transport : transports_) transport->progress();
}

}  // namespace chorus
