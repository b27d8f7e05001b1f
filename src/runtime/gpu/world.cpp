#include "runtime/gpu/world.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "base/blob.hpp"
#include "base/counted.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "device/driver/peer_probe.hpp"
#include "device/image.hpp"
#include "transports/link/host_identity.hpp"

namespace chorus {
namespace {

// Where a rank has a GPU to itself, programs want most of it for their own kernels.
constexpr std::uint32_t kBlocksAlone = 32;

/// Every rank says a sentence of each. [from * ranks + of].
std::vector<std::string> tell_all(Control& control, const GroupPlace& place, const std::string& key,
                                  const std::vector<std::string>& mine, int timeout_ms) {
  BlobWriter blob;
  for (const std::string& sentence : mine) blob.text(sentence);
  const auto blobs = control.exchange(key, place.members, blob.view(), timeout_ms);
  std::vector<std::string> all;
  for (std::size_t from = 0; from < blobs.size(); ++from) {
    BlobReader reader(blobs[from]);
    for (std::size_t of = 0; of < mine.size(); ++of) all.push_back(reader.text());
    if (!reader.ok()) {
      throw BootstrapError(fmt::format("malformed GPU description from rank {}", from));
    }
  }
  return all;
}

}  // namespace

/// What each rank tells the others.
struct DeviceWorld::Facts {
  std::string failure;  ///< why it cannot take part
  std::string settings;
  HostIdentity host;
  std::uint64_t pid = 0;
  std::uint32_t ordinal = 0;
  cuda::Uuid uuid{};
  std::uint64_t resident = 0;  ///< blocks that its GPU holds at a time
  std::uint64_t arena = 0;     ///< 0: not yet
  cuda::IpcHandle handle{};
  bool exported = false;

  [[nodiscard]] std::vector<std::byte> write() const {
    BlobWriter blob;
    blob.text(failure);
    blob.text(settings);
    blob.bytes(std::as_bytes(std::span(&host, 1)));
    blob.u64(pid);
    blob.u32(ordinal);
    blob.bytes(std::as_bytes(std::span(&uuid, 1)));
    blob.u64(resident);
    blob.u64(arena);
    blob.bytes(std::as_bytes(std::span(&handle, 1)));
    blob.u32(exported ? 1 : 0);
    return {blob.view().begin(), blob.view().end()};
  }
  static Facts read(std::span<const std::byte> data, std::size_t rank) {
    BlobReader blob(data);
    Facts facts;
    bool well = true;
    const auto copy = [&](auto& to) {
      const auto bytes = blob.bytes();
      well = well && bytes.size() == sizeof to;
      if (well) std::memcpy(&to, bytes.data(), sizeof to);
    };
    facts.failure = blob.text();
    facts.settings = blob.text();
    copy(facts.host);
    facts.pid = blob.u64();
    facts.ordinal = blob.u32();
    copy(facts.uuid);
    facts.resident = blob.u64();
    facts.arena = blob.u64();
    copy(facts.handle);
    facts.exported = blob.u32() != 0;
    if (!well || !blob.ok() || !blob.at_end()) {
      throw BootstrapError(fmt::format("malformed GPU description from rank {}", rank));
    }
    return facts;
  }
  /// What all ranks say. Throws what one of them says of a failure.
  static std::vector<Facts> exchange(Control& control, const GroupPlace& place,
                                     const std::string& key, const Facts& mine, int timeout_ms) {
    std::vector<Facts> all;
    const auto blobs = control.exchange(key, place.members, mine.write(), timeout_ms);
    for (std::size_t r = 0; r < blobs.size(); ++r) all.push_back(read(blobs[r], r));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!all[r].failure.empty()) throw DeviceError(fmt::format("rank {}: {}", r, all[r].failure));
      if (all[r].settings != all[0].settings) {
        throw BootstrapError(
            fmt::format("ranks 0 and {} disagree: {}; {}", r, all[0].settings, all[r].settings));
      }
    }
    return all;
  }
  [[nodiscard]] bool same_host(const Facts& other) const { return host.boot == other.host.boot; }
  [[nodiscard]] bool same_process(const Facts& other) const {
    return same_host(other) && host.pid_namespace == other.host.pid_namespace && pid == other.pid;
  }
  [[nodiscard]] bool same_device(const Facts& other) const {
    return same_host(other) && std::memcmp(&uuid, &other.uuid, sizeof uuid) == 0;
  }
};

DeviceWorld::DeviceWorld(Control& control, const GroupPlace& place, const std::string& key,
                         int device, const DeviceTuning& tuning, const Options& options)
    : rank_(place.rank), device_(device) {
  const int timeout_ms = options.join_timeout_ms;
  Facts mine;
  const auto n = place.members.size();
  if (n > device::kMostRanks) {
    throw TopologyError(fmt::format(
        "a communicator has at most {} ranks on GPUs, and this one has {}: split it and use its "
        "parts",
        device::kMostRanks, n));
  }
  mine.settings = fmt::format("slots of {} bytes, tuning {} {} {} {} {}", options.slot_bytes,
                              tuning.words_bytes, tuning.direct_bytes, tuning.blocks,
                              tuning.instances, tuning.reach);
  const auto tell = [&](void (DeviceWorld::*step)(Facts&), const char* what) {
    try {
      (this->*step)(mine);
    } catch (const Error& error) {
      mine.failure = error.what();
    }
    return Facts::exchange(control, place, key + what, mine, timeout_ms);
  };
  std::vector<Facts> all = tell(&DeviceWorld::find_gpu, "/gpus");
  look_around(all);
  learn_wiring(control, place, key, all, options);
  choose_blocks(all, tuning);
  // Between hosts a thread carries the messages, and looks at every connection.
  const bool carried = places_.num_hosts() > 1 || !tuning.reach;
  shape_ = device::shape_for(n, options.slot_bytes, carried ? 0 : blocks_);
  all = tell(&DeviceWorld::make_arena, "/arenas");
  const Reasons reasons = find_ways(control, place, key, all, tuning.reach, timeout_ms);
  relay_the_rest(control, place, key, reasons, options);
  std::string failure;
  try {
    fill_table();
  } catch (const Error& error) {
    failure = error.what();
  }
  const auto outcomes = control.exchange(key + "/ready", place.members,
                                         std::as_bytes(std::span(failure)), timeout_ms);
  for (std::size_t r = 0; r < n; ++r) {
    if (outcomes[r].empty()) continue;
    const std::string text(reinterpret_cast<const char*>(outcomes[r].data()), outcomes[r].size());
    throw TopologyError(fmt::format("rank {}: {}", r, text));
  }
}

DeviceWorld::~DeviceWorld() {
  if (stuck_) abandon();
}

void DeviceWorld::find_gpu(Facts& mine) {
  const cuda::Api& api = cuda::driver();
  mine.host = HostIdentity::here();
  mine.pid = static_cast<std::uint64_t>(::getpid());
  mine.ordinal = static_cast<std::uint32_t>(device_);
  cuda::check(api.device_uuid(&mine.uuid, device_), "asking for a GPU's identity");
  stream_ = cuda::make_stream();
  kernels_ = &device::Kernels::of(device_);
  int multiprocessors = 1;
  cuda::check(api.device_attribute(&multiprocessors, cuda::kMultiprocessorCount, device_),
              "asking for the number of multiprocessors");
  mine.resident = static_cast<std::uint64_t>(multiprocessors) *
                  static_cast<std::uint64_t>(kernels_->blocks_per_multiprocessor());
}

void DeviceWorld::make_arena(Facts& mine) {
  const cuda::Api& api = cuda::driver();
  const std::uint64_t bytes = arena_bytes();
  arena_ = cuda::allocate_pages(bytes);
  cuda::check(api.set_bytes(arena_.get(), 0, bytes, stream_.get()), "clearing GPU memory");
  cuda::check(api.stream_synchronize(stream_.get()), "clearing GPU memory");
  mine.arena = arena_.get();
  // Not every system has it (WSL, some containers): then processes cannot share, threads can.
  mine.exported = api.ipc_export(&mine.handle, arena_.get()) == cuda::kSuccess;
  status_ = cuda::allocate_pinned(sizeof(device::HostStatus), status_address_);
}

std::size_t DeviceWorld::arena_bytes() const {
  return device::round_up(device::Arena::size(shape_), GpuDirect::kAlignment);
}

void DeviceWorld::look_around(const std::vector<Facts>& all) {
  const Facts& mine = all[static_cast<std::size_t>(rank_)];
  for (const Facts& peer : all) {
    same_process_.push_back(mine.same_process(peer));
    one_process_ = one_process_ && mine.same_process(peer);
    one_device_ = one_device_ && mine.same_device(peer);
    const auto first = std::find_if(all.begin(), all.end(),
                                    [&](const Facts& other) { return other.same_host(peer); });
    const auto number = static_cast<std::size_t>(first - all.begin());
    places_.host.push_back(number < places_.host.size() ? places_.host[number]
                                                        : places_.num_hosts());
  }
}

// As the first rank of each host finds it.
void DeviceWorld::learn_wiring(Control& control, const GroupPlace& place, const std::string& key,
                               const std::vector<Facts>& all, const Options& options) {
  const int own = places_.host[static_cast<std::size_t>(rank_)];
  const bool is_first = std::ranges::find(places_.host, own) - places_.host.begin() == rank_;
  const std::string mine = is_first ? gpu_facts(options) : "";
  const auto blobs = control.exchange(key + "/wiring", place.members,
                                      std::as_bytes(std::span(mine)), options.join_timeout_ms);
  std::vector<std::string> uuids;
  std::vector<std::string> said;
  for (std::size_t r = 0; r < all.size(); ++r) {
    uuids.push_back(cuda::uuid_text(all[r].uuid));
    said.emplace_back(reinterpret_cast<const char*>(blobs[r].data()), blobs[r].size());
  }
  learn_gpus(places_, uuids, said);
}

// The peer's arena as this rank's GPU reaches it. Throws TopologyError or DeviceError with the
// reason why not.
std::uint64_t DeviceWorld::reach(const Facts& peer, Rank rank) {
  if (same_process_[static_cast<std::size_t>(rank)]) {
    if (static_cast<std::uint32_t>(device_) == peer.ordinal) return peer.arena;
    int can = 0;
    cuda::check(cuda::driver().can_access_peer(&can, device_, static_cast<int>(peer.ordinal)),
                "asking whether a GPU reaches another");
    if (can == 0) {
      throw TopologyError(
          fmt::format("GPU {} has no peer access to GPU {}", device_, peer.ordinal));
    }
    peer_contexts_.emplace_back(static_cast<int>(peer.ordinal));
    const cuda::Result result = cuda::driver().enable_peer(peer_contexts_.back().get(), 0);
    if (result != cuda::kPeerAlreadyEnabled) {
      cuda::check(result, fmt::format("reaching GPU {}", peer.ordinal));
    }
    return peer.arena;
  }
  if (!peer.exported) {
    throw TopologyError("this system does not let processes share GPU memory");
  }
  cuda::Address address = 0;
  cuda::check(cuda::driver().ipc_open(&address, peer.handle, cuda::kIpcLazyPeerAccess),
              "opening GPU memory of another process");
  mapped_.emplace_back(address);
  return address;
}

// Finds the arenas that this rank reaches. Why it does not reach the others, by rank.
std::vector<std::string> DeviceWorld::reach_all(const std::vector<Facts>& all, bool may_reach,
                                                DeviceProof& proof) {
  const auto self = static_cast<std::size_t>(rank_);
  arenas_.resize(all.size());
  std::vector<std::string> reasons(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto peer = static_cast<Rank>(r);
    try {
      if (r == self) {
        arenas_[r] = arena_.get();
      } else if (!all[self].same_host(all[r])) {
        continue;  // as everybody knows
      } else if (!may_reach) {
        reasons[r] = "peer access is disabled";
      } else {
        arenas_[r] = reach(all[r], peer);
        if (!all[self].same_device(all[r])) reasons[r] = proof.write(peer, arenas_[r]);
      }
    } catch (const Error& error) {
      reasons[r] = error.what();
    }
  }
  return reasons;
}

DeviceWorld::Reasons DeviceWorld::find_ways(Control& control, const GroupPlace& place,
                                            const std::string& key, const std::vector<Facts>& all,
                                            bool may_reach, int timeout_ms) {
  const std::size_t n = all.size();
  const auto self = static_cast<std::size_t>(rank_);
  DeviceProof proof(shape_, rank_, arena_.get(), timeout_ms * 1e-3);
  Reasons reasons =
      tell_all(control, place, key + "/reached", reach_all(all, may_reach, proof), timeout_ms);
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) {
      if (!all[from].same_host(all[to])) reasons[from * n + to] = "they are on different hosts";
    }
  }
  if (one_device_) return reasons;
  std::vector<std::string> seen(n);
  for (std::size_t r = 0; r < n; ++r) {
    if (!reasons[r * n + self].empty() || all[self].same_device(all[r])) continue;
    try {
      seen[r] = proof.look(static_cast<Rank>(r));
    } catch (const Error& error) {
      seen[r] = error.what();
    }
  }
  stuck_ = proof.stuck();
  const auto by_reader = tell_all(control, place, key + "/proven", seen, timeout_ms);
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) {
      if (reasons[from * n + to].empty()) reasons[from * n + to] = by_reader[to * n + from];
    }
  }
  return reasons;
}

// A pair that cannot reach each other in both directions goes through host memory in both. All
// ranks learn of all pairs: the protocol of a call is the same on all of them.
void DeviceWorld::relay_the_rest(Control& control, const GroupPlace& place, const std::string& key,
                                 const Reasons& reasons, const Options& options) {
  const std::size_t n = place.members.size();
  const auto self = static_cast<std::size_t>(rank_);
  std::vector<Rank> relayed;
  std::string first;  // of those where access is offered and does not work, if there are any
  bool damaged = false;
  std::size_t pairs = 0;
  places_.reaches.assign(n * n, true);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      const std::string& one_way = reasons[a * n + b];
      const std::string& reason = one_way.empty() ? reasons[b * n + a] : one_way;
      if (reason.empty()) {
        any_reached_ = true;
        continue;
      }
      places_.reaches[a * n + b] = places_.reaches[b * n + a] = false;
      const bool worse = !damaged && reason.starts_with(DeviceProof::kOffered);
      damaged = damaged || worse;
      if (pairs++ == 0 || worse) first = fmt::format("ranks {} and {}: {}", a, b, reason);
      if (a != self && b != self) continue;
      relayed.push_back(static_cast<Rank>(a == self ? b : a));
      arenas_[a == self ? b : a] = 0;
    }
  }
  any_relayed_ = pairs > 0;
  one_device_ = one_device_ && !any_relayed_;
  if (!any_relayed_) return;
  if (rank_ == 0) {
    log(damaged ? LogLevel::warn : LogLevel::info, fmt::format("[rank 0/{}]", n),
        fmt::format("{} of {} pairs of GPUs exchange through their hosts ({})", pairs,
                    n * (n - 1) / 2, first));
  }
  const GroupPlace relay_place{.key = key + "/relay", .members = place.members, .rank = rank_};
  cuda::Context context = nullptr;
  cuda::check(cuda::driver().context_current(&context), "asking for the current context");
  relay_ = std::make_unique<DeviceRelay>(
      control, relay_place, options, shape_,
      DeviceRelay::Gpu{device_, context, arena_.get(), arena_bytes()}, relayed);
}

void DeviceWorld::choose_blocks(const std::vector<Facts>& all, const DeviceTuning& tuning) {
  if (tuning.blocks > 0) {
    blocks_ = static_cast<std::uint32_t>(tuning.blocks);
    return;
  }
  // The fewest that any rank has, so that all cut their calls alike. Half of what fits: another
  // communicator of the same ranks may run at the same time.
  std::uint64_t fewest = ~std::uint64_t{0};
  for (const Facts& facts : all) {
    const auto sharing = static_cast<std::uint64_t>(std::count_if(
        all.begin(), all.end(), [&](const Facts& other) { return other.same_device(facts); }));
    std::uint64_t blocks = std::max<std::uint64_t>(1, facts.resident / 2 / sharing);
    if (sharing == 1 && all.size() > 1) blocks = std::min<std::uint64_t>(blocks, kBlocksAlone);
    if (facts.resident < sharing) {
      throw TopologyError(fmt::format("{} on a GPU that holds {} at a time",
                                      counted(sharing, "rank"), counted(facts.resident, "block")));
    }
    fewest = std::min(fewest, blocks);
  }
  blocks_ = static_cast<std::uint32_t>(fewest);
}

// Kernels are loaded when first launched, which may have to wait for those that run: so each is
// launched once while nobody waits for anybody.
void DeviceWorld::fill_table() {
  const std::uint64_t bytes = device::table_bytes(shape_.ranks);
  std::vector<std::byte> memory(bytes);
  auto* const table = reinterpret_cast<device::RankTable*>(memory.data());
  table->shape = shape_;
  table->rank = static_cast<std::uint32_t>(rank_);
  // The scope of a GPU is defined among the threads of one program.
  table->beyond_device = one_device_ && one_process_ ? 0 : 1;
  table->status = status_address_;
  std::copy(arenas_.begin(), arenas_.end(), table->arenas);
  for (std::size_t r = 0; r < arenas_.size(); ++r) {
    const bool relayed = arenas_[r] == 0;
    const auto peer = static_cast<Rank>(r);
    table->incoming[r] =
        relayed ? relay_->incoming(peer)
                : arena_.get() + device::Arena::box(shape_, static_cast<std::uint32_t>(r));
    table->outgoing[r] =
        relayed ? relay_->outgoing(peer) : arenas_[r] + device::Arena::box(shape_, table->rank);
    table->incoming_slots[r] = relayed ? relay_->incoming_slots(peer) : table->incoming[r];
    table->outgoing_slots[r] = relayed ? relay_->outgoing_slots(peer) : table->outgoing[r];
  }
  const cuda::Api& api = cuda::driver();
  table_ = cuda::allocate(bytes);
  cuda::check(api.copy_to_device(table_.get(), memory.data(), bytes, stream_.get()),
              "copying to the GPU");
  cuda::check(api.stream_synchronize(stream_.get()), "copying to the GPU");
  kernels_->warm_up(table_.get(), stream_.get());
  cuda::check(api.stream_synchronize(stream_.get()), "running the GPU kernels");
}

void DeviceWorld::abandon() {
  if (relay_) relay_->stop();
  arena_.release();
  table_.release();
  status_.release();
  for (cuda::Mapped& mapped : mapped_) mapped.release();
}

}  // namespace chorus
