#include "runtime/wiring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/blob.hpp"
#include "base/check.hpp"
#include "base/cores.hpp"
#include "base/descriptors.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

// The ranks that share cores, and the cores that any of them may use.
struct Machine {
  std::vector<std::size_t> members;
  std::set<int> cores;
};

/// By which transports (a bit each) one rank can use a peer, and why not by the others.
struct Reach {
  std::uint32_t usable = 0;
  std::string why_not = {};

  bool operator==(const Reach&) const = default;
};

/// Of all peers of one rank. Most are alike, so each answer is kept and sent once, with the number
/// of peers in a row that it holds for: n² of them would take megabytes in every rank.
class Reachability {
 public:
  /// Of the next peer.
  void add(Reach reach) {
    if (runs_.empty() || !(answers_[runs_.back().answer] == reach)) {
      const auto known = std::find(answers_.begin(), answers_.end(), reach);
      runs_.push_back({size_, static_cast<std::size_t>(known - answers_.begin())});
      if (known == answers_.end()) answers_.push_back(std::move(reach));
    }
    ++size_;
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const Reach& to(std::size_t peer) const {
    const auto after =
        std::upper_bound(runs_.begin(), runs_.end(), peer,
                         [](std::size_t p, const Run& run) { return p < run.first; });
    return answers_[std::prev(after)->answer];
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
      const std::uint32_t count = blob.u32();
      const Reach reach{.usable = blob.u32(), .why_not = blob.text()};
      for (std::uint32_t k = 0; k < count && result.size_ < most; ++k) result.add(reach);
    }
    return result;
  }

 private:
  struct Run {
    std::size_t first;
    std::size_t answer;
  };
  std::size_t size_ = 0;
  std::vector<Reach> answers_;
  std::vector<Run> runs_;
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

Wiring::Wiring(Control& control, const GroupPlace& place, const Options& options,
               const SlotLayout& layout, const std::string& agreement, Memory memory)
    : rank_(place.rank) {
  // A communicator keeps one or two, and one per peer that it talks to over the network.
  allow_more_descriptors(4 * place.members.size() + 64);
  wakeups_ = place.wakeups ? place.wakeups : std::make_shared<Wakeups>();
  make_transports(place, options, control.secret().derive(place.key), control.local_address(),
                  layout);

  BlobWriter mine;
  mine.text(agreement);
  const std::string kernel = boot_id();  // one for all containers under it
  mine.text(host_name() + "/" + kernel);
  mine.text(options.machine.empty() ? kernel : options.machine);
  const std::vector<int> cores = usable_cores();
  mine.bytes(std::as_bytes(std::span(cores)));
  mine.u32(static_cast<std::uint32_t>(transports_.size()));
  for (const auto& transport : transports_) mine.bytes(transport->address());
  const auto blobs = control.exchange(place.key + "/wiring", place.members, mine.view(),
                                      options.join_timeout_ms, place.key);

  std::map<std::string, std::set<int>> cores_of_host;
  std::map<std::string, Machine> machines;
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    BlobReader reader(blobs[peer]);
    const std::string theirs = reader.text();
    if (theirs != agreement) {
      throw BootstrapError(fmt::format(
          "ranks {} and {} do not agree on how to run: '{}' against '{}'; give all ranks the same "
          "options, plan and version",
          rank_, peer, agreement, theirs));
    }
    Member member{.world_rank = place.members[peer], .host = reader.text()};
    Machine& machine = machines[reader.text()];
    machine.members.push_back(peer);
    const auto cores_seen = reader.bytes();
    for (std::size_t i = 0; i + sizeof(int) <= cores_seen.size(); i += sizeof(int)) {
      int core = 0;
      std::memcpy(&core, cores_seen.data() + i, sizeof core);
      cores_of_host[member.host].insert(core);
      machine.cores.insert(core);
    }
    const std::uint32_t count = reader.u32();
    auto& addresses = addresses_.emplace_back();
    for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
      const auto address = reader.bytes();
      addresses.emplace_back(address.begin(), address.end());
    }
    if (!reader.ok() || addresses.size() != transports_.size()) {
      throw BootstrapError(fmt::format("rank {} sent a malformed address", peer));
    }
    members_.push_back(std::move(member));
  }
  for (Member& member : members_) {
    member.host_cores = std::max(1, static_cast<int>(cores_of_host[member.host].size()));
  }
  for (const auto& [name, machine] : machines) {
    for (const std::size_t i : machine.members) {
      members_[i].neighbor = static_cast<Rank>(machine.members.front());
      members_[i].machine_cores = std::max(1, static_cast<int>(machine.cores.size()));
      members_[i].crowded = machine.members.size() > machine.cores.size();
    }
  }
  links_.resize(members_.size());
  choose(control, place, options);
  drop_unused_transports();
  if (memory == Memory::in_common) open_commons();
}

void Wiring::make_transports(const GroupPlace& place, const Options& options, const Secret& secret,
                             const std::string& local_address, const SlotLayout& layout) {
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
// can.
void Wiring::choose(Control& control, const GroupPlace& place, const Options& options) {
  const std::size_t n = members_.size();
  Reachability reached;
  for (std::size_t peer = 0; peer < n; ++peer) {
    Reach reach;
    for (std::size_t t = 0; t < transports_.size() && static_cast<Rank>(peer) != rank_; ++t) {
      const auto reason = transports_[t]->why_not(addresses_[peer][t]);
      if (!reason) reach.usable |= 1U << t;
      if (!reason) continue;
      reach.why_not += fmt::format("{}{}: {}", reach.why_not.empty() ? "" : kBetweenReasons,
                                   transports_[t]->name(), *reason);
    }
    reached.add(std::move(reach));
  }
  BlobWriter mine;
  reached.write(mine);
  const bool in_vain =
      std::any_of(transports_.begin(), transports_.end(),
                  [](const auto& transport) { return transport->named_in_vain(); });
  mine.u32(in_vain ? 1 : 0);
  const auto blobs = control.exchange(place.key + "/transports", place.members, mine.view(),
                                      options.join_timeout_ms, place.key);
  std::vector<Reachability> all;  // by rank; every rank reads all, so that all throw alike
  bool named_in_vain = false;     // by any rank
  for (std::size_t from = 0; from < n; ++from) {
    BlobReader reader(blobs[from]);
    all.push_back(Reachability::read(reader, n));
    named_in_vain = (reader.u32() != 0) || named_in_vain;
    if (!reader.ok() || all.back().size() != n) {
      throw BootstrapError(fmt::format("rank {} sent a malformed list", from));
    }
  }
  chosen_.assign(n, -1);
  std::vector<Served> served(transports_.size());
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      const Reach& there = all[a].to(b);
      const Reach& back = all[b].to(a);
      const std::uint32_t both = there.usable & back.usable;
      if (both == 0) {
        std::string reasons_of_both = there.why_not;
        if (back.why_not != there.why_not) {
          reasons_of_both =
              fmt::format("rank {}: {}; rank {}: {}", a, there.why_not, b, back.why_not);
        }
        throw TopologyError(
            fmt::format("no transport connects ranks {} and {}: {}", a, b, reasons_of_both));
      }
      const int first = __builtin_ctz(both);
      ++served[static_cast<std::size_t>(first)].pairs;
      for (std::size_t t = 0; t < static_cast<std::size_t>(first); ++t) {
        if (served[t].not_pairs++ > 0) continue;
        const std::string reason = reason_of(there.why_not, transports_[t]->name());
        served[t].why_not =
            fmt::format("ranks {} and {}: {}", a, b,
                        reason.empty() ? reason_of(back.why_not, transports_[t]->name()) : reason);
      }
      if (transports_[static_cast<std::size_t>(first)]->name() != "shm") {
        any_network_ = true;
        if (members_[a].host == members_[b].host) hosts_share_memory_ = false;
      }
      if (static_cast<Rank>(a) == rank_) chosen_[b] = first;
      if (static_cast<Rank>(b) == rank_) chosen_[a] = first;
    }
  }
  if (rank_ == 0 && n > 1) tell(served, named_in_vain ? LogLevel::warn : LogLevel::info);
}

void Wiring::tell(const std::vector<Served>& served, LogLevel level) const {
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
void Wiring::drop_unused_transports() {
  for (int t = static_cast<int>(transports_.size()) - 1; t >= 0; --t) {
    if (std::find(chosen_.begin(), chosen_.end(), t) != chosen_.end()) continue;
    transports_.erase(transports_.begin() + t);
    for (auto& addresses : addresses_) addresses.erase(addresses.begin() + t);
    for (int& chosen : chosen_) chosen -= chosen > t ? 1 : 0;
  }
}

void Wiring::open_commons() {
  const std::size_t n = members_.size();
  if (any_network_ || n < 2 || n > Commons::kMaxRanks) return;
  const std::size_t other = rank_ == 0 ? 1 : 0;
  const auto transport = static_cast<std::size_t>(chosen_[other]);
  std::vector<std::vector<std::byte>> addresses;
  for (const auto& of_peer : addresses_) addresses.push_back(of_peer[transport]);
  commons_ = transports_[transport]->open_commons(addresses);
}

Link& Wiring::link(Rank peer) {
  auto& link = links_[static_cast<std::size_t>(peer)];
  if (!link) {
    const auto transport = static_cast<std::size_t>(chosen_[static_cast<std::size_t>(peer)]);
    link = transports_[transport]->connect(peer,
                                           addresses_[static_cast<std::size_t>(peer)][transport]);
    link->leave_to_kernel(to_kernel_);
    if (!paces_.empty()) link->pace(paces_[static_cast<std::size_t>(peer)]);
  }
  return *link;
}

void Wiring::pace(std::vector<double> bytes_per_s) {
  paces_ = std::move(bytes_per_s);
  paces_.resize(links_.size());
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (links_[peer]) links_[peer]->pace(paces_[peer]);
  }
}

void Wiring::leave_to_kernel(MessageSizes sizes) {
  to_kernel_ = sizes;
  for (const auto& link : links_) {
    if (link) link->leave_to_kernel(sizes);
  }
}

void Wiring::know_machines(const std::map<Rank, std::shared_ptr<const HostRates>>& rates) {
  for (Member& member : members_) {
    const auto known = rates.find(member.neighbor);
    if (known != rates.end()) member.rates = known->second;
  }
}

std::string_view Wiring::transport_of(Rank peer) const {
  const int chosen = chosen_[static_cast<std::size_t>(peer)];
  return chosen < 0 ? "self" : transports_[static_cast<std::size_t>(chosen)]->name();
}

void Wiring::progress() {
  for (const auto& transport : transports_) transport->progress();
}

}  // namespace chorus
