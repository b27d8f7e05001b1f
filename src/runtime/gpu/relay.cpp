#include "runtime/gpu/relay.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "device/host_words.hpp"
#include "runtime/executors/ports.hpp"

namespace chorus {
namespace {

using Clock = std::chrono::steady_clock;
using device::Box;
using device::Protocol;
using device::Ring;
using device::seen;
using device::show;

// How long the thread asks without a pause after something has moved, then with short sleeps, then
// with long ones. A kernel that is under way keeps it from the long ones.
constexpr auto kAwake = std::chrono::milliseconds(1);
constexpr auto kDozing = std::chrono::milliseconds(100);
constexpr auto kShortSleep = std::chrono::microseconds(10);
constexpr auto kLongSleep = std::chrono::microseconds(500);
constexpr auto kDrain = std::chrono::seconds(2);

}  // namespace

struct DeviceRelay::Peer {
  /// `sent_from`, `landing`: boxes in GPU memory whose slots adapters read and write, or 0.
  Peer(Rank peer, Link& link_to_it, const device::Shape& shape, cuda::Address sent_from,
       cuda::Address landing)
      : rank(peer),
        link(link_to_it),
        lands(landing != 0),
        out_memory(cuda::allocate_pinned(pinned_bytes(shape, sent_from), out_address)),
        out(static_cast<std::byte*>(out_memory.get())),
        in(link.region().data()),
        in_memory(cuda::register_pinned(in, pinned_bytes(shape, landing), in_address)),
        out_slots(sent_from == 0 ? out_address : sent_from),
        in_slots(landing == 0 ? in_address : landing),
        // CUDA's addresses are numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
        source(sent_from == 0 ? out : reinterpret_cast<const std::byte*>(sent_from)),
        connections(shape.connections) {}

  /// Rings alone where the slots are elsewhere.
  static std::size_t pinned_bytes(const device::Shape& shape, cuda::Address slots) {
    return slots == 0 ? Box::size(shape) : Box::all_slots(shape);
  }

  Rank rank;
  Link& link;
  bool lands;  ///< messages, in GPU memory
  cuda::Address out_address = 0;
  cuda::PinnedMemory out_memory;
  std::byte* out;
  std::byte* in;
  cuda::Address in_address = 0;
  cuda::RegisteredMemory in_memory;
  cuda::Address out_slots;
  cuda::Address in_slots;
  const std::byte* source;  ///< the box of out_slots as the link is to name it

  struct Connection {
    std::uint64_t sent = 0;      ///< messages of the kernel's that the link has
    std::uint64_t consumed = 0;  ///< of these, taken by the peer's kernel
    std::uint64_t freed = 0;     ///< of these, that the kernel knows of
    std::uint64_t shown = 0;     ///< messages of the peer's that the kernel may take
    std::uint64_t told = 0;      ///< of these, taken: as far as the peer was told
    std::uint64_t credits = 0;   ///< arrivals on the credit channel that were read
  };
  std::vector<Connection> connections;
};

DeviceRelay::DeviceRelay(Control& control, const GroupPlace& place, const Options& options,
                         const device::Shape& shape, const Gpu& gpu, const std::vector<Rank>& peers)
    : shape_(shape), gpu_(gpu), sent_from_(peers.size()), landing_(peers.size()) {
  const std::size_t box_bytes = Box::size(shape);
  // Every connection has a channel for messages and one for credits; where a message lies in the
  // region is the box's business.
  const SlotLayout layout{.data_channels = static_cast<int>(shape.connections),
                          .slots = 1,
                          .slot_bytes = (box_bytes + shape.connections - 1) / shape.connections};
  connections_ = std::make_unique<Connections>(
      control, place, options, layout, "relay of GPU messages", Connections::Memory::of_links);
  join_adapters(place, options.rdma_gpu, peers);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    peers_.push_back(std::make_unique<Peer>(peers[i], connections_->link(peers[i]), shape,
                                            sent_from_[i], landing_[i]));
  }
}

/// Lends GPU memory to the links whose adapters take it.
void DeviceRelay::join_adapters(const GroupPlace& place, int wanted,
                                const std::vector<Rank>& peers) {
  std::vector<std::pair<std::size_t, ReachesOutside*>> links;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    auto* const link = dynamic_cast<ReachesOutside*>(&connections_->link(peers[i]));
    if (link != nullptr) links.emplace_back(i, link);
  }
  if (links.empty()) return;
  const std::size_t box = Box::size(shape_);
  const auto lend = [&](bool allowed, const auto& attempt) -> std::string {
    if (!allowed) return "by CHORUS_RDMA_GPU";
    try {
      attempt();
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string not_out = lend(wanted >= 1, [&] {
    const std::size_t bytes = device::round_up(links.size() * box, GpuDirect::kAlignment);
    source_ = cuda::allocate_pages(bytes);
    const auto memory = std::make_shared<GpuMemory>(gpu_.device, source_.get(), bytes);
    cuda::Address at = source_.get();
    for (const auto& [i, link] : links) {
      link->send_from(memory, at, box);
      sent_from_[i] = std::exchange(at, at + box);
    }
  });
  if (std::ranges::all_of(sent_from_, [](auto at) { return at == 0; })) source_.reset();
  const std::string not_in = lend(wanted >= 2, [&] {
    writes_ = GpuDirect::writes_of(gpu_.device);
    if (writes_ == GpuDirect::Writes::unordered) {
      throw DeviceError("this GPU cannot say when it sees what adapters have written");
    }
    const auto memory = std::make_shared<GpuMemory>(gpu_.device, gpu_.arena, gpu_.bytes);
    for (const auto& [i, link] : links) {
      const cuda::Address at =
          gpu_.arena + device::Arena::box(shape_, static_cast<std::uint32_t>(peers[i]));
      link->land_in(memory, at, box);
      landing_[i] = at;
    }
  });
  const auto way = [](const std::string& why_not) {
    return why_not.empty() ? "directly" : fmt::format("through host memory ({})", why_not);
  };
  log(LogLevel::info, fmt::format("[rank {}/{}]", place.rank, place.members.size()),
      fmt::format("rdma adapters read messages of GPU memory {} and write them {}{}", way(not_out),
                  way(not_in),
                  writes_ == GpuDirect::Writes::flushed && not_in.empty() ? ", flushed" : ""));
}

DeviceRelay::~DeviceRelay() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void DeviceRelay::stop() {
  hurry_ = true;
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

const DeviceRelay::Peer& DeviceRelay::at(Rank rank) const {
  return **std::find_if(peers_.begin(), peers_.end(),
                        [rank](const auto& peer) { return peer->rank == rank; });
}
std::uint64_t DeviceRelay::incoming(Rank peer) const { return at(peer).in_address; }
std::uint64_t DeviceRelay::outgoing(Rank peer) const { return at(peer).out_address; }
std::uint64_t DeviceRelay::incoming_slots(Rank peer) const { return at(peer).in_slots; }
std::uint64_t DeviceRelay::outgoing_slots(Rank peer) const { return at(peer).out_slots; }

void DeviceRelay::start(const device::HostStatus& status,
                        std::function<void(const std::string&)> on_failure) {
  status_ = &status;
  on_failure_ = std::move(on_failure);
  thread_ = std::thread([this] { run(); });
}

void DeviceRelay::run() {
  try {
    const cuda::Current current(gpu_.context);
    Clock::time_point moved_at = Clock::now();
    while (!stop_) {
      bool moved = expected_.exchange(false, std::memory_order_relaxed);
      connections_->progress();
      for (const auto& peer : peers_) moved |= carry(*peer);
      const auto now = Clock::now();
      if (moved) moved_at = now;
      rest(now - moved_at);
    }
    if (!hurry_) drain();
  } catch (const Error& error) {
    if (!stop_) on_failure_(error.what());
  }
}

void DeviceRelay::rest(Clock::duration quiet) const {
  if (quiet < kAwake) {
    ::sched_yield();
    return;
  }
  const bool under_way = seen(status_->begun) != seen(status_->ended);
  std::this_thread::sleep_for(under_way || quiet < kDozing ? kShortSleep : kLongSleep);
}

// What others' kernels wait for has been taken before this rank may leave; but they may not have
// been told yet that there is room.
void DeviceRelay::drain() {
  const auto until = Clock::now() + kDrain;
  bool busy = true;
  while (busy && Clock::now() < until) {
    busy = false;
    connections_->progress();
    for (const auto& peer : peers_) busy |= carry(*peer) || !peer->link.progress();
    if (busy) ::sched_yield();
  }
}

bool DeviceRelay::carry(Peer& peer) {
  peer.link.progress();
  bool moved = false;
  for (std::uint32_t c = 0; c < shape_.connections; ++c) {
    moved |= take_messages(peer, c);
    moved |= send_messages(peer, c);
    take_credits(peer, c);
    moved |= send_credits(peer, c);
  }
  return moved;
}

// Kernel to link. The slot belongs to the link until it has released it; take_credits() sees to it.
bool DeviceRelay::send_messages(Peer& peer, std::uint32_t c) {
  Peer::Connection& connection = peer.connections[c];
  const Ring& ring = *reinterpret_cast<Ring*>(peer.out + Box::ring(shape_, c, Protocol::bulk));
  bool moved = false;
  for (;; ++connection.sent) {
    const std::uint64_t slot = connection.sent % shape_.slots;
    const std::uint64_t arrived = seen(ring.arrived[slot]);
    if (static_cast<std::uint32_t>(arrived) != static_cast<std::uint32_t>(connection.sent + 1)) {
      return moved;
    }
    const std::size_t offset = Box::slot(shape_, c, Protocol::bulk, connection.sent);
    const std::size_t bytes = std::min<std::size_t>(
        ring.bytes[slot], shape_.slot_bytes[static_cast<std::size_t>(device::Protocol::bulk)]);
    if (!peer.link.try_put({peer.source + offset, bytes}, offset, static_cast<ChannelId>(c),
                           static_cast<std::uint32_t>(arrived >> 32))) {
      return moved;
    }
    moved = true;
  }
}

// Link to kernel.
bool DeviceRelay::take_messages(Peer& peer, std::uint32_t c) {
  Peer::Connection& connection = peer.connections[c];
  const auto channel = static_cast<ChannelId>(c);
  const std::uint64_t arrivals = peer.link.arrivals(channel);
  if (arrivals == connection.shown) return false;
  if (arrivals > connection.told + shape_.slots) {
    throw LinkError(fmt::format("rank {} sent more messages of GPU memory than fit", peer.rank));
  }
  if (peer.lands && writes_ == GpuDirect::Writes::flushed) GpuDirect::flush();
  Ring& ring = *reinterpret_cast<Ring*>(peer.in + Box::ring(shape_, c, Protocol::bulk));
  for (; connection.shown < arrivals; ++connection.shown) {
    const std::uint64_t tag = peer.link.tag(channel, connection.shown);
    show(ring.arrived[connection.shown % shape_.slots],
         tag << 32 | static_cast<std::uint32_t>(connection.shown + 1));
  }
  return true;
}

void DeviceRelay::take_credits(Peer& peer, std::uint32_t c) {
  Peer::Connection& connection = peer.connections[c];
  const auto channel = static_cast<ChannelId>(shape_.connections + c);
  const std::uint64_t arrivals = peer.link.arrivals(channel);
  if (arrivals != connection.credits) {
    connection.credits = arrivals;
    connection.consumed = whole_total(connection.consumed, peer.link.tag(channel, arrivals - 1));
    if (connection.consumed > connection.sent) {
      throw LinkError(
          fmt::format("rank {} took more messages of GPU memory than were sent", peer.rank));
    }
  }
  if (connection.freed == connection.consumed) return;
  const std::uint64_t freed =
      std::min(connection.consumed, peer.link.released(static_cast<ChannelId>(c)));
  if (freed == connection.freed) return;
  connection.freed = freed;
  Ring& ring = *reinterpret_cast<Ring*>(peer.in + Box::ring(shape_, c, Protocol::bulk));
  show(ring.credit, freed);
}

bool DeviceRelay::send_credits(Peer& peer, std::uint32_t c) {
  Peer::Connection& connection = peer.connections[c];
  const Ring& ring = *reinterpret_cast<Ring*>(peer.out + Box::ring(shape_, c, Protocol::bulk));
  const std::uint64_t taken = seen(ring.credit);
  if (taken == connection.told ||
      !peer.link.try_put({}, 0, static_cast<ChannelId>(shape_.connections + c),
                         static_cast<std::uint32_t>(taken))) {
    return false;
  }
  connection.told = taken;
  return true;
}

}  // namespace chorus
