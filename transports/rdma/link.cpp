#include "transports/rdma/link.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

constexpr std::size_t kRdmaPage = 4096;
/// Puts from this size on take turns over the rails; smaller ones take the first.
constexpr std::size_t kSpreadBytes = 16 * 1024;
/// Puts from this size on are cut into one piece per rail.
constexpr std::size_t kRdmaStripeBytes = 64 * 1024;
constexpr std::size_t kRdmaPieceAlignment = 4096;
/// Puts from this size on go straight out of the caller's memory, if that can be registered. Its
/// release waits for the adapter's word: a round trip, of the order of 2 µs, against a copy that
/// takes 1.6 µs at 10 GB/s.
constexpr std::size_t kDirectBytes = 16 * 1024;
/// A look at the control connection is a call of the kernel; nothing on it is urgent, as long as
/// the rails work. The transport asks for one every millisecond, if anybody calls it.
constexpr std::uint64_t kControlTurns = 1024;
constexpr auto kLinger = std::chrono::seconds(5);

std::size_t pages(std::size_t bytes) { return (bytes + kRdmaPage - 1) / kRdmaPage * kRdmaPage; }

std::size_t piece_bytes(std::size_t length, std::size_t pieces) {
  if (pieces == 1) return length;
  const std::size_t even = (length + pieces - 1) / pieces;
  return (even + kRdmaPieceAlignment - 1) / kRdmaPieceAlignment * kRdmaPieceAlignment;
}

}  // namespace

RdmaLink::RdmaLink(std::shared_ptr<RdmaHub> hub, const LinkConfig& config, const RdmaAddress& own,
                   const RdmaAddress& peer, bool same_kernel)
    : hub_(std::move(hub)),
      config_(config),
      window_(std::bit_ceil(2 * static_cast<std::size_t>(config.max_outstanding))),
      peer_(peer),
      same_kernel_(same_kernel),
      deadline_(Clock::now() + std::chrono::milliseconds(config.timeout_ms)),
      slots_bytes_(
          pages(static_cast<std::size_t>(config.num_channels) * window_ * RdmaSlot::kBytes)),
      inbox_memory_(Mapping::anonymous(slots_bytes_ + config.region_bytes)),
      outbox_memory_(Mapping::anonymous(slots_bytes_ + config.region_bytes)),
      inbox_(inbox_memory_.span()),
      outbox_(outbox_memory_.span()),
      region_(inbox_.subspan(slots_bytes_)),
      outgoing_(static_cast<std::size_t>(config.num_channels)),
      incoming_(static_cast<std::size_t>(config.num_channels)) {
  for (Outgoing& out : outgoing_) out.puts.resize(window_);
  for (Incoming& in : incoming_) in.entries.resize(2 * window_);
  make_rails(own);
  if (hub_->control->rank() < peer_.control.rank) {  // the lower rank connects to the higher
    dial_.emplace(TcpPath{.own = hub_->control->endpoint(), .peer = Endpoint::from(peer_.control)},
                  peer_.control.rank, 0, same_kernel_);
  }
  hub_->links.push_back(this);
}

RdmaLink::~RdmaLink() {
  std::erase(hub_->links, this);
  if (!connected_ || !failure_.empty()) return;  // the peer shall see a broken connection
  if (!peer_left_) linger();
  if (failure_.empty()) control_->say_goodbye();
}

/// Small puts are released as soon as they are posted. So that the peer gets them all the same, a
/// link that is taken away waits for their acknowledgement: microseconds, unless a rail is failing.
void RdmaLink::linger() {
  const auto end = Clock::now() + kLinger;
  try {
    while (!peer_left_ && Clock::now() < end) {
      look_now_ = true;
      bool clear = progress();
      for (const std::size_t i : live_) {
        RdmaRail& rail = *tracks_[i].rail;
        rail.request_acknowledgement();
        clear = clear && rail.unacknowledged() == 0;
      }
      if (clear) return;
      ::sched_yield();
    }
  } catch (const LinkError&) {  // it dies while we leave: nobody is left to tell
  }
}

std::size_t RdmaLink::index_of(ChannelId channel) const {
  const auto index = static_cast<std::size_t>(channel);
  CHORUS_CHECK(index < outgoing_.size(), "no such channel");
  return index;
}

RdmaSlot* RdmaLink::slot_in(std::span<std::byte> box, std::size_t channel,
                            std::uint64_t put) const {
  const std::size_t index = channel * window_ + (put & (window_ - 1));
  return reinterpret_cast<RdmaSlot*>(box.data() + index * RdmaSlot::kBytes);
}

RdmaLink::Part RdmaLink::part_of(const Put& put, std::size_t piece) {
  const std::size_t size = piece_bytes(put.length, put.pieces);
  const std::size_t begin = piece * size;
  return {put.offset + begin, std::min(size, put.length - begin)};
}

std::span<const std::byte> RdmaLink::bytes_of(const Put& put, std::size_t piece) const {
  const Part part = part_of(put, piece);
  if (put.src != nullptr && (put.copied >> piece & 1) == 0) {
    return {put.src + (part.offset - put.offset), part.size};
  }
  return outbox_.subspan(slots_bytes_ + part.offset, part.size);
}

bool RdmaLink::try_put(std::span<const std::byte> src, std::size_t offset, ChannelId channel,
                       std::uint32_t tag) {
  CHORUS_CHECK(src.size() <= region_.size() && offset <= region_.size() - src.size(),
               "put outside the peer's region");
  const std::size_t index = index_of(channel);
  Outgoing& out = outgoing_[index];
  if (!failure_.empty()) fail();
  if (!connected_) return false;
  if (src.size() > connect_in_.region_bytes || offset > connect_in_.region_bytes - src.size()) {
    failure_ = "it has less memory than it takes puts for";
    fail();
  }
  if (peer_left_) {
    out.taken = ++out.made;
    return true;
  }
  if (out.made - std::min(out.taken, out.released) >= window_) return false;

  Put put;
  put.offset = offset;
  put.length = src.size();
  const bool outside = source_.holds(src);
  const bool both_here = !outside && connect_in_.outside == 0;
  put.small = src.empty() || (both_here && src.size() <= RdmaSlot::kPayloadBytes);
  put.bare = !put.small && out.made > 0 && out.last_tag == tag;
  const auto pieces = choose_rails(put);
  if (!pieces) return false;
  put.pieces = static_cast<std::uint8_t>(*pieces);
  put.bare = put.bare && put.pieces == 1;
  if (outside && !live_.empty()) {
    put.src = src.data();
    put.keys = source_.keys.data();
  } else if (!outside && src.size() >= kDirectBytes && !live_.empty()) {
    const auto keys = hub_->registrations.find(src, hub_->devices, hub_->control->rank());
    if (!keys.empty()) {
      put.src = src.data();
      put.keys = keys.data();
    }
  }

  // A copy frees the caller's memory at once, and is there to be sent again should a rail fail.
  // Nothing needs it longer than the peer needs to take the put, and before that the caller cannot
  // put to the same place again.
  RdmaSlot& slot = *slot_in(outbox_, index, out.made);
  slot.offset = offset;
  slot.tag = tag;
  slot.length = put.small ? static_cast<std::uint32_t>(src.size()) : RdmaSlot::kInRegion;
  slot.pieces = put.pieces;
  slot.total = out.total;
  if (!put.bare && put.rail[0] != kOverControl) out.told = out.total;
  if (put.src != nullptr) {
    counters_.direct_bytes += src.size();
  } else if (!src.empty()) {
    copy(src, put.small ? slot.payload : outbox_.data() + slots_bytes_ + offset);
    if (!failure_.empty()) fail();
  }
  const std::uint64_t number = out.made++;
  out.last_tag = tag;
  out.puts[number & (window_ - 1)] = put;
  if (put.src == nullptr && out.released == number) {
    ++out.released;
  } else {
    ++unreleased_;
  }
  for (std::size_t piece = 0; piece < put.pieces; ++piece) send_piece(index, number, piece);
  return true;
}

std::size_t RdmaLink::requests_for(const Put& put, std::size_t piece) const {
  if (put.small) return 1;
  const bool with_slot = piece == 0 && !put.bare;
  return RdmaRail::requests_for(bytes_of(put, piece).size()) + (with_slot ? 1 : 0);
}

/// Which rail takes which piece of `put`; nothing if one of them is full.
std::optional<std::size_t> RdmaLink::choose_rails(Put& put) {
  if (live_.empty()) {
    put.rail[0] = kOverControl;
    return 1;
  }
  std::size_t pieces = 1;
  if (put.length >= kRdmaStripeBytes && live_.size() > 1) {
    const std::size_t size = piece_bytes(put.length, live_.size());
    pieces = (put.length + size - 1) / size;
    put.pieces = static_cast<std::uint8_t>(pieces);
  }
  const std::size_t first =
      pieces == 1 && put.length >= kSpreadBytes ? turn_of_rail_ % live_.size() : 0;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t rail = live_[first + piece];
    put.rail[piece] = static_cast<std::uint8_t>(rail);
    if (!tracks_[rail].rail->room(requests_for(put, piece))) return std::nullopt;
  }
  if (put.length >= kSpreadBytes) ++turn_of_rail_;
  return pieces;
}

void RdmaLink::send_piece(std::size_t channel, std::uint64_t number, std::size_t piece) {
  Put& put = outgoing_[channel].puts[number & (window_ - 1)];
  if (put.rail[piece] == kOverControl) return send_over_control(channel, number, piece);
  const Track& track = tracks_[put.rail[piece]];
  RdmaRail& rail = *track.rail;
  const bool direct = put.src != nullptr && (put.copied >> piece & 1) == 0;
  Immediate immediate;
  immediate.channel = static_cast<std::uint32_t>(channel);
  immediate.sequence = static_cast<std::uint32_t>(number & (Immediate::kSequences - 1));
  immediate.piece = static_cast<std::uint32_t>(piece);
  const bool with_slot = put.small || (piece == 0 && !put.bare);
  if (!put.small) {
    immediate.kind = put.bare ? Immediate::Kind::bare : Immediate::Kind::piece;
    RdmaRail::Write write{
        .bytes = bytes_of(put, piece), .offset = part_of(put, piece).offset, .region = true};
    if (!with_slot) write.immediate = immediate.pack();
    if (direct) write.key = put.keys[track.port].lkey();
    write.tell = direct && !with_slot;
    rail.write(write);
  }
  if (with_slot) {
    immediate.kind = Immediate::Kind::slot;
    const auto* slot = reinterpret_cast<const std::byte*>(slot_in(outbox_, channel, number));
    const std::size_t header = offsetof(RdmaSlot, payload);
    rail.write({.bytes = {slot, header + (put.small ? put.length : 0)},
                .offset = static_cast<std::uint64_t>(slot - outbox_.data()),
                .immediate = immediate.pack(),
                .tell = direct});
  }
  rail.ring();
  if (direct) put.until[piece] = rail.posted();
}

/// What the immediate data of an honest peer cannot say ends the link.
void RdmaLink::on_immediate(std::uint32_t bits) {
  if (peer_lies_) return;
  const Immediate said = Immediate::unpack(bits);
  if (said.channel >= incoming_.size()) {
    peer_lies_ = true;
    failure_ = "it sent a put of no channel";
    return;
  }
  if (said.kind == Immediate::Kind::credit) {
    Outgoing& out = outgoing_[said.channel];
    const std::uint64_t more = (said.sequence - out.taken) & (Immediate::kSequences - 1);
    // What a rail that failed since has brought late says less than is known already.
    if (more <= out.made - out.taken) out.taken += more;
    return;
  }
  Incoming& in = incoming_[said.channel];
  const std::uint64_t ahead = (said.sequence - in.arrivals) & (Immediate::kSequences - 1);
  if (ahead >= window_) {
    peer_lies_ = true;
    failure_ = "it sent a put out of order";
    return;
  }
  const std::uint64_t put = in.arrivals + ahead;
  Entry& entry = in.entries[put & (2 * window_ - 1)];
  if (said.kind == Immediate::Kind::slot) on_slot(said.channel, put);
  if (said.kind == Immediate::Kind::bare) {
    entry.pieces = 1;
    entry.bare = true;
  }
  got_piece(said.channel, put, said.piece);
}

void RdmaLink::on_slot(std::size_t channel, std::uint64_t put) {
  const RdmaSlot& slot = *slot_in(inbox_, channel, put);
  const std::uint64_t offset = slot.offset;
  const std::uint32_t length = slot.length;
  const std::uint32_t pieces = slot.pieces;
  const bool here = length != RdmaSlot::kInRegion;
  if (pieces < 1 || pieces > kMaxRails ||
      (here && (length > RdmaSlot::kPayloadBytes || length > region_bytes() ||
                offset > region_bytes() - length))) {
    peer_lies_ = true;
    failure_ = "it sent a put outside the region";
    return;
  }
  if (here && length > 0 && !bring_out(offset, {slot.payload, length})) return;
  on_total(channel, slot.total);
  Entry& entry = incoming_[channel].entries[put & (2 * window_ - 1)];
  entry.tag = slot.tag;
  entry.pieces = static_cast<std::uint8_t>(pieces);
  entry.bare = false;
}

void RdmaLink::got_piece(std::size_t channel, std::uint64_t put, std::uint32_t piece) {
  Incoming& in = incoming_[channel];
  const auto entry_of = [&](std::uint64_t number) -> Entry& {
    return in.entries[number & (2 * window_ - 1)];
  };
  entry_of(put).got |= static_cast<std::uint16_t>(1u << piece);
  while (entry_of(in.arrivals).pieces > 0 &&
         entry_of(in.arrivals).got == (1u << entry_of(in.arrivals).pieces) - 1) {
    Entry& entry = entry_of(in.arrivals);
    if (entry.bare && in.arrivals > 0) entry.tag = entry_of(in.arrivals - 1).tag;
    ++in.arrivals;
    entry_of(in.arrivals + window_ - 1) = {};  // ready for the next put to come
    if (in.arrivals - in.told >= window_ / 2) credits_owed_ = true;
  }
}

/// Tells the peer how many of its puts have been taken, by halves of the window. False if some of
/// it has to wait.
bool RdmaLink::send_credits() {
  if (!credits_owed_) return true;
  for (std::size_t channel = 0; channel < incoming_.size(); ++channel) {
    Incoming& in = incoming_[channel];
    if (in.arrivals - in.told < window_ / 2) continue;
    Immediate credit;
    credit.kind = Immediate::Kind::credit;
    credit.channel = static_cast<std::uint32_t>(channel);
    credit.sequence = static_cast<std::uint32_t>(in.arrivals & (Immediate::kSequences - 1));
    if (live_.empty()) {
      if (control_->queued_bytes() > kRdmaPage) return false;
      enqueue(RdmaFrame::kCredit, channel, {}, credit.sequence);
    } else {
      RdmaRail& rail = *tracks_[live_.front()].rail;
      if (!rail.room(1)) return false;
      rail.write({.immediate = credit.pack()});
      rail.ring();
    }
    in.told = in.arrivals;
  }
  credits_owed_ = false;
  return true;
}

void RdmaLink::tell(ChannelId channel, std::uint32_t total) {
  outgoing_[index_of(channel)].total = total;
}

std::uint32_t RdmaLink::told(ChannelId channel) const { return outgoing_[index_of(channel)].told; }

std::uint32_t RdmaLink::heard(ChannelId channel) const {
  return incoming_[index_of(channel)].heard;
}

/// Slots come in any order where rails are several.
void RdmaLink::on_total(std::size_t channel, std::uint32_t total) {
  std::uint32_t& heard = incoming_[channel].heard;
  if (static_cast<std::int32_t>(total - heard) > 0) heard = total;
}

std::size_t RdmaLink::poll_rails() {
  std::size_t received = 0;
  const auto arrived = [this](std::uint32_t bits) { on_immediate(bits); };
  for (std::size_t n = 0; n < live_.size(); ++n) {
    const std::size_t i = live_[n];
    RdmaRail& rail = *tracks_[i].rail;
    received += rail.poll(arrived);
    if (rail.failure().empty() && rail.device().fault().empty()) continue;
    hub_->devices[tracks_[i].port]->hear();  // a port that went down has requests fail, too
    // A peer that left, or died, takes its ends of the rails with it: the control connection knows.
    received += hear_control();
    if (peer_left_ || !failure_.empty()) {
      rail.shut();
      std::erase(live_, i);
    } else {
      const std::string& fault = rail.device().fault();
      take_down(i, fault.empty() ? rail.failure() : fault, false);
    }
    --n;
  }
  return received;
}

/// What came and what may go; returns how much came. `flush`: the control connection takes bytes.
std::size_t RdmaLink::advance(bool flush) {
  std::size_t received = poll_rails();
  if (recovering_) recover();
  if (away_ > 0) bring_back();
  if (look_now_ || live_.empty() || recovering_ || !control_->queue_empty() ||
      ++turn_ % kControlTurns == 0) {
    if (flush) control_->flush(*this);
    received += hear_control();
  }
  if (unreleased_ > 0) release();
  return received;
}

bool RdmaLink::acknowledged(const Put& put) const {
  if (put.src == nullptr) return true;
  for (std::size_t piece = 0; piece < put.pieces; ++piece) {
    const std::uint64_t until = put.until[piece];
    if (until > 0 && tracks_[put.rail[piece]].rail->acknowledged() < until) return false;
  }
  return true;
}

void RdmaLink::release() {
  for (Outgoing& out : outgoing_) {
    while (out.released < out.made && acknowledged(out.puts[out.released & (window_ - 1)])) {
      ++out.released;
      --unreleased_;
    }
  }
}

bool RdmaLink::progress() {
  if (!connected_) {
    if (!failure_.empty()) fail();
    if (!connect_step()) return false;
  }
  const bool failed = !failure_.empty() && !std::exchange(failed_while_unused_, false);
  const std::size_t received = advance(failure_.empty());
  // The bad news is told when all that came before it has been received, and was countable.
  if (failed && received == 0) fail();
  if (peer_left_) return true;
  if (!failure_.empty()) return false;
  const bool all_told = send_credits();
  const bool all_resent = resend();
  return all_told && all_resent && !recovering_ && unreleased_ == 0 && control_->queue_empty();
}

void RdmaLink::service() {
  if (!connected_ || peer_left_ || !failure_.empty()) return;
  advance(true);
  failed_while_unused_ = !failure_.empty();
  if (peer_left_ || failed_while_unused_) return;
  // What has to wait is taken up with the next call.
  std::ignore = send_credits();
  std::ignore = resend();
}

std::uint64_t RdmaLink::released(ChannelId channel) const {
  const Outgoing& out = outgoing_[index_of(channel)];
  return peer_left_ ? out.made : out.released;
}

std::uint64_t RdmaLink::arrivals(ChannelId channel) {
  return incoming_[index_of(channel)].arrivals;
}

std::uint32_t RdmaLink::tag(ChannelId channel, std::uint64_t index) const {
  const Incoming& in = incoming_[index_of(channel)];
  CHORUS_CHECK(index < in.arrivals && in.arrivals - index <= window_, "tag of no recent arrival");
  return in.entries[index & (2 * window_ - 1)].tag;
}

void RdmaLink::arm() {
  for (Track& track : tracks_) {
    if (track.rail && !track.told) track.rail->arm();
    if (track.returning.rail) track.returning.rail->arm();
  }
}

void RdmaLink::append_wake_fds(std::vector<pollfd>& fds) const {
  if (dial_) dial_->append_wake_fds(fds);
  if (!control_ || peer_left_) return;
  const bool output = !control_->queue_empty();
  const bool silent = control_->goodbye() || control_->stalled();
  if (!silent || output || !failure_.empty()) fds.push_back(wake_fd(control_->fd(), output));
}

void RdmaLink::fail() const {
  throw LinkError(fmt::format("rank {}: rdma: rank {} at {}: {}", hub_->control->rank(),
                              peer_.control.rank, Endpoint::from(peer_.control).text(), failure_),
                  static_cast<int>(peer_.control.rank));
}

}  // namespace chorus
