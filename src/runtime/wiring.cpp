#include "runtime/wiring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/blob.hpp"
#include "base/check.hpp"
#include "base/cores.hpp"
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

std::vector<std::string_view> split(std::string_view list, char separator) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const auto end = list.find(separator);
    if (end != 0) parts.push_back(list.substr(0, end));
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
  }
  return parts;
}

}  // namespace

Wiring::Wiring(Control& control, const GroupPlace& place, const Options& options,
               const SlotLayout& layout, const std::string& agreement, Memory memory)
    : rank_(place.rank) {
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
  const auto blobs =
      control.exchange(place.key + "/wiring", place.members, mine.view(), options.join_timeout_ms);

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
  if (memory == Memory::in_common) open_commons();
}

void Wiring::make_transports(const GroupPlace& place, const Options& options, const Secret& secret,
                             const std::string& local_address, const SlotLayout& layout) {
  TransportContext context;
  context.rank = place.rank;
  context.world_size = static_cast<int>(place.members.size());
  context.secret = secret;
  context.link.region_bytes = layout.region_bytes();
  context.link.num_channels = 2 * layout.data_channels;  // data and credits
  context.link.max_outstanding = 32;
  context.link.slot_bytes = layout.slot_bytes;
  context.link.timeout_ms = options.join_timeout_ms;
  context.interface_name = options.interface_name.empty() ? local_address : options.interface_name;
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
  std::vector<std::string> reasons(n);
  BlobWriter mine;
  for (std::size_t peer = 0; peer < n; ++peer) {
    std::uint32_t usable = 0;
    for (std::size_t t = 0; t < transports_.size() && static_cast<Rank>(peer) != rank_; ++t) {
      const auto reason = transports_[t]->why_not(addresses_[peer][t]);
      if (!reason) usable |= 1U << t;
      if (!reason) continue;
      reasons[peer] += fmt::format("{}{}: {}", reasons[peer].empty() ? "" : "; ",
                                   transports_[t]->name(), *reason);
    }
    mine.u32(usable);
    mine.text(reasons[peer]);
  }
  const bool in_vain =
      std::any_of(transports_.begin(), transports_.end(),
                  [](const auto& transport) { return transport->named_in_vain(); });
  mine.u32(in_vain ? 1 : 0);
  const auto blobs = control.exchange(place.key + "/transports", place.members, mine.view(),
                                      options.join_timeout_ms);
  // [from][to], and the reasons; every rank reads all, so that all throw alike.
  std::vector<std::vector<std::uint32_t>> usable(n, std::vector<std::uint32_t>(n));
  std::vector<std::vector<std::string>> why(n, std::vector<std::string>(n));
  bool named_in_vain = false;  // by any rank
  for (std::size_t from = 0; from < n; ++from) {
    BlobReader reader(blobs[from]);
    for (std::size_t to = 0; to < n; ++to) {
      usable[from][to] = reader.u32();
      why[from][to] = reader.text();
    }
    named_in_vain = (reader.u32() != 0) || named_in_vain;
    if (!reader.ok()) throw BootstrapError(fmt::format("rank {} sent a malformed list", from));
  }
  chosen_.assign(n, -1);
  std::vector<std::size_t> pairs(transports_.size());
  std::string reason;  // against what the first pair could not use
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      const std::uint32_t both = usable[a][b] & usable[b][a];
      if (both == 0) {
        std::string reasons_of_both = why[a][b];
        if (why[b][a] != why[a][b]) {
          reasons_of_both = fmt::format("rank {}: {}; rank {}: {}", a, why[a][b], b, why[b][a]);
        }
        throw TopologyError(
            fmt::format("no transport connects ranks {} and {}: {}", a, b, reasons_of_both));
      }
      const int first = __builtin_ctz(both);
      ++pairs[static_cast<std::size_t>(first)];
      if (reason.empty() && first > 0) reason = why[a][b].empty() ? why[b][a] : why[a][b];
      if (transports_[static_cast<std::size_t>(first)]->name() != "shm") {
        any_network_ = true;
        if (members_[a].host == members_[b].host) hosts_share_memory_ = false;
      }
      if (static_cast<Rank>(a) == rank_) chosen_[b] = first;
      if (static_cast<Rank>(b) == rank_) chosen_[a] = first;
    }
  }
  if (rank_ != 0 || n < 2) return;
  const LogLevel level = named_in_vain && !reason.empty() ? LogLevel::warn : LogLevel::info;
  if (!log_enabled(level)) return;
  std::string summary;
  for (std::size_t t = 0; t < transports_.size(); ++t) {
    if (pairs[t] == 0) continue;
    summary +=
        fmt::format("{}{} by {}", summary.empty() ? "" : ", ", pairs[t], transports_[t]->name());
  }
  if (!reason.empty()) reason = fmt::format(" (against what comes before: {})", reason);
  log(level, fmt::format("[rank 0/{}]", n), fmt::format("pairs of ranks: {}{}", summary, reason));
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

std::string_view Wiring::transport_of(Rank peer) const {
  const int chosen = chosen_[static_cast<std::size_t>(peer)];
  return chosen < 0 ? "self" : transports_[static_cast<std::size_t>(chosen)]->name();
}

void Wiring::progress() {
  for (const auto& transport : transports_) transport->progress();
}

}  // namespace chorus
