// The one contract behind which every transport lives.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "transports/link/message_copies.hpp"

namespace chorus {

/// What part of a link's bytes one of the networks that join its ends is to carry.
struct NetworkShare {
  std::string network;     ///< "10.1.0.0/16"; empty: that of the first addresses of both ends
  double share = 0;        ///< of all bytes
  double bytes_per_s = 0;  ///< that it is expected to carry of them; 0: nobody knows
};
using NetworkShares = std::vector<NetworkShare>;

/// To be polled for what comes, and where `for_output` for room as well.
[[nodiscard]] inline pollfd wake_fd(int fd, bool for_output = false) {
  return {fd, static_cast<short>(for_output ? POLLIN | POLLOUT : POLLIN), 0};
}

/// An ordered lane of a link, [0, LinkConfig::num_channels).
using ChannelId = int;

/// The same on both ends of every link of a communicator.
struct LinkConfig {
  std::size_t region_bytes = 0;  ///< memory of each end that the other end writes into
  int num_channels = 1;
  /// Arrivals of one channel whose tags are kept, and puts of one channel that always find room:
  /// the owner's protocol never has more under way on a channel than this.
  int max_outstanding = 32;
  int timeout_ms = 60'000;     ///< for connecting
  std::size_t slot_bytes = 0;  ///< of the slots of the SharedWindow
};

/// Receiving straight into the owner's memory, without a copy out of the region: what a link can
/// whose bytes pass through this process.
class PostedReceives {
 public:
  /// A put that is to come.
  struct PostedReceive {
    std::span<std::byte> memory;  ///< of exactly its size
    std::size_t offset = 0;       ///< in the region, that it names
    std::uint32_t tag = 0;        ///< that it carries
  };

  /// Arrival `index` of `channel`, one of the max_outstanding next, is to be written to
  /// posted.memory and not to the region. The memory is the link's until the put has arrived. A
  /// wish: a put that has begun to come, or is not the one described, goes to the region.
  virtual void expect(ChannelId channel, std::uint64_t index, const PostedReceive& posted) = 0;

  /// Whether arrival `index`, one that tag() knows, lies in the memory posted for it, and not in
  /// the region.
  [[nodiscard]] virtual bool in_place(ChannelId channel, std::uint64_t index) const = 0;

  /// Forgets all that is expected and has not arrived: it goes to the region, also what has come of
  /// it so far. After this the link writes into no memory posted before, whatever the peer does.
  virtual void withdraw() = 0;

 protected:
  ~PostedReceives() = default;
};

/// Credits that travel with puts, where a put of their own would cost as much as one of bytes.
class PiggybackedCredits {
 public:
  /// From now on puts on `channel` that have room tell the peer this total, which only grows.
  virtual void tell(ChannelId channel, std::uint32_t total) = 0;

  /// Of what tell() was given, how much is on its way to the peer, and gets there as puts do.
  [[nodiscard]] virtual std::uint32_t told(ChannelId channel) const = 0;

  /// The latest total of the peer's for `channel` that has come; 0 before the first.
  [[nodiscard]] virtual std::uint32_t heard(ChannelId channel) const = 0;

 protected:
  ~PiggybackedCredits() = default;
};

class EagerRing;

/// A connection between this rank and one peer, carrying independent ordered channels.
///
/// Each end owns a region that the other end writes into with one-sided puts. A link never blocks,
/// starts no thread and calls nothing back: the executor that owns it makes all progress, from one
/// thread. Waiting, deadlines and their messages are the executor's.
///
/// A link whose puts are all released and flushed may be destroyed while the peer's lives on: the
/// peer still gets all that was put, and what it puts from then on vanishes without an error. A
/// peer that died is another matter: rdma and tcp throw LinkError; shm notices nothing, and its
/// puts vanish.
class Link {
 public:
  virtual ~Link() = default;

  /// What this link can do if its bytes pass through this process; else null.
  [[nodiscard]] virtual PostedReceives* posted_receives() { return nullptr; }

  /// What this link can whose puts carry a header of its own anyway; else null.
  [[nodiscard]] virtual PiggybackedCredits* piggybacked_credits() { return nullptr; }

  /// Where short messages can go beside the channels, in an order of their own; else null.
  [[nodiscard]] virtual EagerRing* eager_ring() { return nullptr; }

  /// Starts writing `src` at `offset` bytes into the peer's region. When the bytes can be read
  /// there, and not before, the peer's arrivals(channel) goes up by one and tag() gives `tag`.
  /// An empty `src` is a signal.
  ///
  /// Returns false, having done nothing, when the send queue is full (or the link is not yet
  /// connected): progress(), then try again. `src` belongs to the link until released(channel) has
  /// counted this put. Throws LinkError, naming the peer and the cause, once the peer can no longer
  /// be reached, and ever after. Puts under way at the same time must not overlap at the peer.
  [[nodiscard]] virtual bool try_put(std::span<const std::byte> src, std::size_t offset,
                                     ChannelId channel, std::uint32_t tag) = 0;

  /// Puts made on `channel` whose src is free again, since the link was made; in their order.
  [[nodiscard]] virtual std::uint64_t released(ChannelId channel) const = 0;

  /// Puts from the peer on `channel` that have arrived, since the link was made, in their order.
  /// Cheap: a look at one cache line or at what progress() has received.
  [[nodiscard]] virtual std::uint64_t arrivals(ChannelId channel) = 0;

  /// Tag of arrival `index` (0-based) of `channel`; among the last max_outstanding ones.
  [[nodiscard]] virtual std::uint32_t tag(ChannelId channel, std::uint64_t index) const = 0;

  /// In the long run puts leave no faster than this, in bytes per second, as long as nothing else
  /// is said; 0: as fast as they can. A wish, heard by transports that a network's queues slow
  /// down.
  virtual void pace(double /*bytes_per_s*/) {}

  /// From now on large puts take the networks in these shares, and no others; null: as the link
  /// sees fit, as also where it has no path by one of them, or one that carries far less than
  /// expected. A wish, heard by transports that know several networks.
  virtual void divide(const std::shared_ptr<const NetworkShares>& /*shares*/) {}

  /// Whether puts can take this network, named as above.
  [[nodiscard]] virtual bool joined_by(std::string_view network) const { return network.empty(); }

  /// What copies are expected to take, by which puts from now on go the way that brings them there
  /// first. Until then none is left to the kernel. Heard by transports of one host.
  virtual void expect_copies(const MessageCopiesBySize& /*copies*/) {}

  /// Whether each put from now on is one of several in a row: what counts then is how many pass,
  /// and not how soon the first arrives. A hint.
  virtual void in_a_row(bool /*several*/) {}

  /// Sends what try_put() has kept back so that several puts leave together, released or not. Who
  /// makes puts calls this, or progress(), before it turns to anything else. False if something
  /// stays back for want of room.
  virtual bool flush() { return true; }

  /// Moves outstanding work forward (connecting, sending, receiving); true when the link is
  /// connected and every src given to try_put() is free again. Until then keep calling it: what is
  /// not released may still wait here. Throws LinkError as try_put does, but never in the call that
  /// made the last arrivals countable.
  virtual bool progress() = 0;

  /// This end's region: LinkConfig::region_bytes, aligned to a page, that the peer's puts write
  /// into.
  [[nodiscard]] virtual std::span<std::byte> region() = 0;

  /// The peer's region mapped into this process, if this transport can: write there, then put an
  /// empty src to publish. Empty if not.
  [[nodiscard]] virtual std::span<std::byte> peer_region() = 0;

  [[nodiscard]] virtual std::string_view transport() const = 0;  ///< "shm", "rdma", "tcp"
};

class SharedWindow;

/// A way to reach peers: one object per rank and communicator, which makes the links.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;

  /// What a peer needs to reach this rank, at most 1 KiB; opaque. Exchanged by the bootstrap.
  [[nodiscard]] virtual std::vector<std::byte> address() const = 0;

  /// Why this transport cannot reach the rank that published `peer_address` (checked before it is
  /// believed), as a clause: "other host"; nothing if it can.
  [[nodiscard]] virtual std::optional<std::string> why_not(
      std::span<const std::byte> peer_address) const = 0;

  /// Whether the settings name an adapter, say, that is not there, or this process is kept from
  /// those that are: a mistyped name, a missing permission. Neither must show by the speed alone.
  [[nodiscard]] virtual bool misconfigured() const { return false; }

  /// Makes the link to `peer`, another rank; both ends call it. Links may outlive their transport
  /// once connected. Does not block: the link connects as both ends make progress. Throws LinkError
  /// if it can be known at once that it cannot be made.
  [[nodiscard]] virtual std::unique_ptr<Link> connect(Rank peer,
                                                      std::span<const std::byte> peer_address) = 0;

  /// Where all ranks can share memory: what they have in common, given the addresses of all
  /// [world_size]; else null. Who sleeps in prepare_to_sleep() is woken by
  /// SharedWindow::wake_sleepers(). Throws LinkError if a peer that why_not() found reachable is no
  /// longer.
  [[nodiscard]] virtual std::shared_ptr<SharedWindow> open_shared_window(
      std::span<const std::vector<std::byte>> addresses);

  /// Accepts connections and the like. Called by the executor now and then and after wake-ups.
  virtual void progress() = 0;

  /// Sleeping. prepare_to_sleep() asks peers to make one of the wake descriptors readable with
  /// their next put, or when a full queue has room again; the executor then once more makes
  /// progress, looks at all arrivals and tries all puts that it waits for (nothing may slip
  /// between), polls the descriptors, and calls woke(). Spurious wake-ups are fine. A link that is
  /// still connecting wants progress every 50 ms or so besides.
  virtual void prepare_to_sleep() = 0;
  virtual void woke() = 0;
  /// Appends the descriptors to poll, each made by wake_fd().
  virtual void append_wake_fds(std::vector<pollfd>& fds) const = 0;
};

}  // namespace chorus
