#include "transports/shm/shm.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "base/check.hpp"
#include "base/copy.hpp"
#include "chorus/error.hpp"
#include "transports/shm/foreign_memory.hpp"
#include "transports/shm/put_ways.hpp"
#include "transports/shm/shared_window.hpp"
#include "transports/shm/shm_memory.hpp"

namespace chorus {
namespace {

/// This end writes into the peer's block and reads its own.
///
/// Memory ordering. A put writes payload (into the slot, or into the region), tag, length and
/// offset, then stores the slot's sequence; the receiver loads the sequence, and reads the rest
/// only when it is the expected one. That pair is a release and an acquire. A slot is written again
/// only after the receiver's consumed counter, stored after it read the slot, says so: release and
/// acquire again.
///
/// Both pairs are sequentially consistent because of sleeping. The sleeper stores sleeping = 1 and
/// then loads the sequences; the putter stores a sequence and then loads sleeping. Each could miss
/// the other's store if its own load ran ahead of its own store, and the sleeper would sleep for
/// ever; in the one total order of sequentially consistent operations at least one of the two sees
/// the other. On x86 this makes the store an xchg. It costs nothing measurable (62 against 58–65 ns
/// per hand-off); membarrier() on the sleeper's side, which would spare it, takes 9 µs and
/// interrupts every busy core.
///
/// Puts that are left to the kernel (PutWay::kernel) are copied once, by the receiver, from
/// where they lie to where they belong. What the kernel refuses, the putter brings into the region.
class ShmLink final : public Link, private PostedReceives {
 public:
  ShmLink(Rank rank, Rank peer, const ShmGeometry& geometry, ShmBlock own, ShmOpened opened,
          int peer_pid)
      : rank_(rank),
        peer_(peer),
        peer_pid_(peer_pid),
        mask_(geometry.ring_slots - 1),
        own_(std::move(own)),
        theirs_(opened.memory.get(), geometry, rank),
        peer_header_(std::move(opened.header)),
        peer_pipe_(std::move(opened.pipe)),
        own_region_(own_.region()),
        peer_region_(theirs_.region()),
        peer_sleeping_(reinterpret_cast<ShmHeader*>(peer_header_.span().data())->sleeping),
        eager_ring_(rank, peer, theirs_.eager_ring(), own_.eager_ring(), peer_sleeping_,
                    peer_pipe_->get()),
        peer_pipe_fd_(peer_pipe_->get()) {
    for (ChannelId channel = 0; channel < static_cast<ChannelId>(geometry.num_channels);
         ++channel) {
      outgoing_.push_back({theirs_.ring(channel).data(), &theirs_.consumed(channel)});
      incoming_.push_back({own_.ring(channel).data(), &own_.consumed(channel)});
      incoming_.back().tags.resize(geometry.ring_slots);
    }
  }

  void expect_copies(const MessageCopiesBySize& copies) override { ways_ = PutWays(copies); }
  void in_a_row(bool several) override { in_a_row_ = several; }
  // Only what the kernel copies goes past the region.
  PostedReceives* posted_receives() override { return ways_.any_by_kernel() ? this : nullptr; }

  bool try_put(std::span<const std::byte> src, std::size_t offset, ChannelId channel,
               std::uint32_t tag) override {
    CHORUS_CHECK(src.size() <= peer_region_.size() && offset <= peer_region_.size() - src.size(),
                 "put outside the peer's region");
    Outgoing& out = outgoing_[index_of(channel)];
    if (out.next == out.limit && !refresh(out)) return false;

    ShmSlot& slot = out.ring[out.next & mask_];
    const bool is_inline = src.size() <= ShmSlot::kInlineBytes;
    const PutWay way = is_inline ? PutWay::stage : ways_.next(src.size(), in_a_row_);
    if (is_inline) {
      if (!src.empty()) std::memcpy(slot.payload, src.data(), src.size());
      slot.length = static_cast<std::uint32_t>(src.size());
    } else if (way == PutWay::kernel && !peer_is_refused_) {
      const ShmElsewhere where{reinterpret_cast<std::uint64_t>(src.data()), src.size()};
      std::memcpy(slot.payload, &where, sizeof where);
      slot.length = ShmSlot::kElsewhere;
      out.left.push_back({.index = out.next, .src = src, .offset = offset});
    } else {
      ways_.copy(peer_region_.data() + offset, src,
                 way == PutWay::stream ? PutWay::stream : PutWay::stage);
      slot.length = ShmSlot::kInRegion;
    }
    slot.tag = tag;
    slot.offset = offset;
    slot.sequence.store(++out.next, std::memory_order_seq_cst);
    wake_if_sleeping();
    return true;
  }

  std::uint64_t released(ChannelId channel) const override {
    const Outgoing& out = outgoing_[index_of(channel)];
    return out.left.empty() ? out.next : serve(out);
  }

  std::uint64_t arrivals(ChannelId channel) override {
    Incoming& in = incoming_[index_of(channel)];
    // At most one lap: a peer that keeps putting cannot keep us here.
    for (std::uint64_t end = in.next + mask_ + 1; in.next != end;) {
      const ShmSlot& slot = in.ring[in.next & mask_];
      if (slot.sequence.load(std::memory_order_seq_cst) != in.next + 1) break;
      bool at_once = false;  // somebody waits for its memory
      if (!take(slot, in, at_once)) break;
      ++in.next;
      // By quarters, so that the counter's line seldom travels.
      if (at_once || in.next - in.published > mask_ / 4) publish(in);
    }
    return in.next;
  }

  std::uint32_t tag(ChannelId channel, std::uint64_t index) const override {
    const Incoming& in = incoming_[index_of(channel)];
    CHORUS_CHECK(index < in.next && in.next - index <= mask_ + 1, "tag of no recent arrival");
    return in.tags[index & mask_];
  }

  EagerRing* eager_ring() override { return &eager_ring_; }
  // A put that is not left to the kernel is complete when try_put() returns; others wait for their
  // receiver, who so takes what has come whether or not anybody asks for it.
  bool progress() override {
    if (!ways_.any_by_kernel()) return true;
    bool all = true;
    for (std::size_t c = 0; c < outgoing_.size(); ++c) {
      static_cast<void>(arrivals(static_cast<ChannelId>(c)));
      const Outgoing& out = outgoing_[c];
      all = (out.left.empty() || serve(out) == out.next) && all;
    }
    return all;
  }
  std::span<std::byte> region() override { return own_region_; }
  std::span<std::byte> peer_region() override { return peer_region_; }
  std::string_view transport() const override { return "shm"; }

 private:
  /// A put whose memory the receiver has not let go of yet.
  struct Left {
    std::uint64_t index;
    std::span<const std::byte> src;
    std::size_t offset;
  };
  struct Outgoing {
    ShmSlot* ring;
    ShmConsumed* consumed;
    std::uint64_t next = 0;
    std::uint64_t limit = 0;  ///< puts up to here have a free slot
    mutable std::deque<Left> left{};
  };
  struct Expected {
    std::uint64_t index = 0;
    PostedReceive posted{};
  };
  struct Incoming {
    ShmSlot* ring;
    ShmConsumed* consumed;
    std::uint64_t next = 0;
    std::uint64_t published = 0;
    std::deque<Expected> expected{};       ///< ascending
    std::deque<std::uint64_t> in_place{};  ///< of the last ring_slots arrivals
    std::vector<std::uint32_t> tags{};  ///< [ring_slots]; the slots themselves are soon rewritten
  };

  [[nodiscard]] std::size_t index_of(ChannelId channel) const {
    const auto index = static_cast<std::size_t>(channel);
    CHORUS_CHECK(index < outgoing_.size(), "no such channel");
    return index;
  }

  /// Looks again how far the receiver is; false if the ring is full.
  bool refresh(Outgoing& out) const {
    const std::uint64_t consumed = out.consumed->count.load(std::memory_order_seq_cst);
    if (consumed > out.next) complain("claims to have taken puts that were never made");
    out.limit = consumed + mask_ + 1;
    return out.next != out.limit;
  }

  void expect(ChannelId channel, std::uint64_t index, const PostedReceive& posted) override {
    Incoming& in = incoming_[index_of(channel)];
    if (index < in.next) return;
    in.expected.push_back({index, posted});
  }
  [[nodiscard]] bool in_place(ChannelId channel, std::uint64_t index) const override {
    const Incoming& in = incoming_[index_of(channel)];
    return std::ranges::find(in.in_place, index) != in.in_place.end();
  }
  void withdraw() override {
    for (Incoming& in : incoming_) in.expected.clear();
    for (Outgoing& out : outgoing_) out.left.clear();  // nor is memory read that was given back
  }

  /// Puts of `out` whose memory is free again. What the peer was refused is brought to it.
  std::uint64_t serve(const Outgoing& out) const {
    const std::uint64_t consumed = out.consumed->count.load(std::memory_order_seq_cst);
    while (!out.left.empty() && out.left.front().index < consumed) out.left.pop_front();
    if (out.left.empty()) return out.next;
    const Left& first = out.left.front();
    if (out.consumed->refused.load(std::memory_order_seq_cst) == first.index + 1 &&
        out.consumed->brought.load(std::memory_order_relaxed) != first.index + 1) {
      peer_is_refused_ = true;
      copy_bytes(peer_region_.data() + first.offset, first.src.data(), first.src.size());
      out.consumed->brought.store(first.index + 1, std::memory_order_seq_cst);
      wake_if_sleeping();
    }
    return first.index;
  }

  /// Reads one slot. The peer can write it at any time, so each field is read once and believed
  /// only after the check. False if it has to wait for what the kernel refused.
  [[nodiscard]] bool take(const ShmSlot& slot, Incoming& in, bool& at_once) {
    const std::uint32_t length = slot.length;
    const std::uint64_t offset = slot.offset;
    const std::uint32_t tag = slot.tag;
    in.tags[in.next & mask_] = tag;
    if (length == ShmSlot::kInRegion) return true;
    if (length == ShmSlot::kElsewhere) {
      at_once = true;
      return read_elsewhere(slot, in, offset, tag);
    }
    if (length > ShmSlot::kInlineBytes || length > own_region_.size() ||
        offset > own_region_.size() - length) {
      complain("wrote a put outside the region");
    }
    if (length > 0) std::memcpy(own_region_.data() + offset, slot.payload, length);
    return true;
  }

  [[nodiscard]] bool read_elsewhere(const ShmSlot& slot, Incoming& in, std::uint64_t offset,
                                    std::uint32_t tag) {
    ShmElsewhere where{};
    std::memcpy(&where, slot.payload, sizeof where);
    if (where.size > own_region_.size() || offset > own_region_.size() - where.size) {
      complain("wrote a put outside the region");
    }
    if (in.consumed->refused.load(std::memory_order_relaxed) == in.next + 1) {
      return in.consumed->brought.load(std::memory_order_seq_cst) == in.next + 1;
    }
    while (!in.expected.empty() && in.expected.front().index < in.next) in.expected.pop_front();
    std::byte* to = own_region_.data() + offset;
    const bool is_posted = !in.expected.empty() && in.expected.front().index == in.next &&
                           in.expected.front().posted.memory.size() == where.size &&
                           in.expected.front().posted.offset == offset &&
                           in.expected.front().posted.tag == tag;
    if (is_posted) to = in.expected.front().posted.memory.data();
    switch (read_process(peer_pid_, where.address, {to, where.size})) {
      case ForeignRead::done:
        break;
      case ForeignRead::gone:
        complain("has memory that cannot be read any more");
      default:
        in.consumed->refused.store(in.next + 1, std::memory_order_seq_cst);
        wake_if_sleeping();
        return false;
    }
    if (!is_posted) return true;
    if (in.in_place.size() > mask_) in.in_place.pop_front();
    in.in_place.push_back(in.next);
    return true;
  }

  void publish(Incoming& in) {
    in.published = in.next;
    in.consumed->count.store(in.next, std::memory_order_seq_cst);
    wake_if_sleeping();  // the peer may be waiting for a free slot
  }

  void wake_if_sleeping() const { chorus::wake_if_sleeping(peer_sleeping_, peer_pipe_fd_); }

  [[noreturn]] void complain(const char* what) const {
    throw LinkError(fmt::format("rank {}: shm: rank {} {}", rank_, peer_, what), peer_);
  }

  const Rank rank_;
  const Rank peer_;
  const int peer_pid_;
  const std::uint64_t mask_;
  const ShmBlock own_;
  const ShmBlock theirs_;
  const Mapping peer_header_;
  const std::shared_ptr<const Fd> peer_pipe_;
  const std::span<std::byte> own_region_;
  const std::span<std::byte> peer_region_;
  std::atomic<std::uint32_t>& peer_sleeping_;
  EagerRing eager_ring_;
  const int peer_pipe_fd_;
  std::vector<Outgoing> outgoing_;  // [num_channels]
  std::vector<Incoming> incoming_;  // [num_channels]
  PutWays ways_;
  bool in_a_row_ = false;
  mutable bool peer_is_refused_ = false;  // by the kernel, to read what is left to it
};

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const TransportContext& context)
      : secret_(shm_secret(context)), owned_(context) {}

  std::string_view name() const override { return "shm"; }

  std::vector<std::byte> address() const override {
    const auto bytes = owned_.address().bytes();
    return {bytes.begin(), bytes.end()};
  }

  std::optional<std::string> why_not(std::span<const std::byte> peer_address) const override {
    // Each look costs a dozen system calls, and a thousand ranks take a million of them: one peer
    // of each kind shows what is allowed here. Every peer proves itself when it is connected.
    const auto address = ShmAddress::parse(peer_address);
    if (address && std::ranges::any_of(opened_, [&](const ShmAddress& known) {
          return address->as_reachable_as(known);
        })) {
      return std::nullopt;
    }
    std::string reason;
    if (!open_peer(owned_.address(), secret_, peer_address, owned_.wakeups(), reason))
      return reason;
    opened_.push_back(*address);
    return std::nullopt;
  }

  std::unique_ptr<Link> connect(Rank peer, std::span<const std::byte> peer_address) override {
    const ShmAddress& own = owned_.address();
    CHORUS_CHECK(peer >= 0 && peer < static_cast<Rank>(own.geometry.world_size) && peer != own.rank,
                 "no such peer");
    std::string reason;
    auto opened = open_peer(own, secret_, peer_address, owned_.wakeups(), reason);
    if (opened && ShmAddress::parse(peer_address)->rank != peer) {
      reason = "the address is another rank's";
      opened.reset();
    }
    if (!opened) {
      throw LinkError(fmt::format("rank {}: shm cannot reach rank {}: {}", own.rank, peer, reason),
                      peer);
    }
    return std::make_unique<ShmLink>(own.rank, peer, own.geometry, owned_.block(peer),
                                     std::move(*opened), ShmAddress::parse(peer_address)->pid);
  }

  std::shared_ptr<SharedWindow> open_shared_window(
      std::span<const std::vector<std::byte>> addresses) override {
    const ShmAddress& own = owned_.address();
    std::vector<SharedWindow::Peer> peers(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const auto rank = static_cast<Rank>(i);
      SharedWindow::Peer& peer = peers[i];
      peer.pid = ::getpid();
      peer.same_process = true;
      if (rank == own.rank) {
        peer.memory = owned_.part();
        continue;
      }
      std::string reason;
      auto opened = open_peer(own, secret_, addresses[i], owned_.wakeups(), reason);
      const auto address = ShmAddress::parse(addresses[i]);
      if (!opened || address->rank != rank) {
        throw LinkError(fmt::format("rank {}: shm cannot reach rank {}: {}", own.rank, rank,
                                    opened ? "the address is another rank's" : reason),
                        rank);
      }
      peer.memory = Mapping(opened->memory.get(), own.geometry.part_offset(),
                            SharedWindow::part_bytes(own.geometry.slot_bytes));
      peer.pid = address->pid;
      peer.same_process = address->pid == ::getpid();
      peer.sleeping = &opened->sleeping();
      peer.header = std::move(opened->header);
      peer.pipe = std::move(opened->pipe);
      peer.pipe_fd = peer.pipe->get();
    }
    return std::make_unique<SharedWindow>(own.rank, own.geometry.slot_bytes, std::move(peers));
  }

  void progress() override {}

  void prepare_to_sleep() override {
    owned_.sleeper().begin();
    owned_.sleeping().store(1, std::memory_order_seq_cst);
  }
  void woke() override {
    owned_.sleeping().store(0, std::memory_order_relaxed);
    owned_.sleeper().end();
  }
  void append_wake_fds(std::vector<pollfd>& fds) const override {
    fds.push_back(wake_fd(owned_.sleeper().fd()));
  }

 private:
  const Secret secret_;
  ShmOwned owned_;
  mutable std::vector<ShmAddress> opened_;  ///< by why_not(), one of each kind of process
};

}  // namespace

std::unique_ptr<Transport> make_shm(const TransportContext& context) {
  return std::make_unique<ShmTransport>(context);
}

}  // namespace chorus
