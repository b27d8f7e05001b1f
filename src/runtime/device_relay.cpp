#include "runtime/device_relay.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "chorus/error.hpp"
#include "device/host_words.hpp"
#include "runtime/ports.hpp"

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
  Peer(Rank peer, Link& link_to_it, const device::Shape& shape)
      : rank(peer),
        link(link_to_it),
        out_memory(cuda::allocate_pinned(Box::size(shape), out_address)),
        out(static_cast<std::byte*>(out_memory.get())),
        in(link.region().data()),
        in_memory(cuda::register_pinned(in, Box::size(shape), in_address)),
        connections(shape.connections) {}

  Rank rank;
  Link& link;
  cuda::Address out_address = 0;
  cuda::PinnedMemory out_memory;
  std::byte* out;
  std::byte* in;
  cuda::Address in_address = 0;
  cuda::RegisteredMemory in_memory;

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
                         const device::Shape& shape, const std::vector<Rank>& peers)
    : shape_(shape) {
  const std::size_t box_bytes = Box::size(shape);
  // Every connection has a channel for messages and one for credits; where a message lies in the
  // region is the box's business.
  const SlotLayout layout{.data_channels = static_cast<int>(shape.connections),
                          .slots = 1,
                          .slot_bytes = (box_bytes + shape.connections - 1) / shape.connections};
  wiring_ = std::make_unique<Wiring>(control, place, options, layout, "relay of GPU messages",
                                     Wiring::Memory::of_links);
  for (const Rank rank : peers) {
    peers_.push_back(std::make_unique<Peer>(rank, wiring_->link(rank), shape));
  }
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

void DeviceRelay::start(const device::HostStatus& status,
                        std::function<void(const std::string&)> on_failure) {
  status_ = &status;
  on_failure_ = std::move(on_failure);
  thread_ = std::thread([this] { run(); });
}

void DeviceRelay::run() {
  try {
    Clock::time_point moved_at = Clock::now();
    while (!stop_) {
      bool moved = expected_.exchange(false, std::memory_order_relaxed);
      wiring_->progress();
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
    wiring_->progress();
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
    const std::size_t bytes = std::min<std::size_t>(ring.bytes[slot], shape_.slot_bytes[2]);
    if (!peer.link.try_put({peer.out + offset, bytes}, offset, static_cast<ChannelId>(c),
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
