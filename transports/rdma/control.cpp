// The control connection of a link: how its rails are joined, and what happens when one ends.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "chorus/error.hpp"
#include "transports/rdma/link.hpp"

namespace chorus {
namespace {

constexpr int kSendDepth = 256;
/// Credits under way on a channel, at most: one per half window of two windows, and one in doubt.
constexpr std::size_t kCreditsPerChannel = 4;
/// A rail that ends gives back all its receives, which a link that is looked at now and then takes
/// in a few turns.
constexpr int kDrainPolls = 64;

}  // namespace

/// Both ends count the rails alike: as many as the better provided has ports, times the queue
/// pairs; rail i joins port (s + i) mod n of each, with s from both ranks, so that pairs of ranks
/// spread over the ports and rail-wired networks join like with like.
void RdmaLink::make_rails(const RdmaAddress& own) {
  const std::size_t here = own.num_ports;
  const std::size_t there = peer_.num_ports;
  const std::size_t pairs = std::max(here, there);
  const std::size_t rails =
      std::min<std::size_t>(kMaxRails, pairs * std::min(own.queue_pairs, peer_.queue_pairs));
  const auto shift =
      static_cast<std::size_t>(own.control.rank) + static_cast<std::size_t>(peer_.control.rank);
  for (std::size_t i = 0; i < rails; ++i) {
    const std::size_t at = (shift + i % pairs) % here;
    Track& track = tracks_.emplace_back();
    track.port = at;
    track.peer_port = (shift + i % pairs) % there;
    if (own.ports[at].ethernet != peer_.ports[track.peer_port].ethernet) continue;
    const auto& device = hub_->devices[at];
    try {
      if (!device->fault().empty()) {
        throw LinkError(fmt::format("{}: {}", device->port().name(), device->fault()));
      }
      track.rail = std::make_unique<RdmaRail>(device, hub_->settings, depths_for(*device), inbox_,
                                              outbox_, counters_);
    } catch (const LinkError& error) {
      track.absent = error.what();
    }
  }
  for (Track& track : tracks_) {
    track.table_out.resize(table_bytes());
    track.table_in.resize(table_bytes());
  }
}

RdmaRail::Depths RdmaLink::depths_for(const RdmaDevice& device) const {
  return {std::min(kSendDepth, device.max_queue()),
          static_cast<int>(outgoing_.size() * (window_ + kCreditsPerChannel))};
}

bool RdmaLink::connect_step() {
  hub_->control->progress();
  std::string obstacle = "it has not connected";
  if (!control_) {
    Fd fd;
    if (dial_) {
      fd = dial_->progress(*hub_->control, peer_.control.nonce);
      obstacle = dial_->obstacle();
      if (dial_->hopeless()) {
        failure_ = obstacle;
        fail();
      }
    } else {
      fd = hub_->control->take(peer_.control.rank, 0);
    }
    if (fd) {
      tune(fd.get(), same_kernel_);
      dial_.reset();
      control_.emplace(std::move(fd),
                       outgoing_.size() * window_ * std::max<std::size_t>(1, tracks_.size()) + 512);
      connect_out_.slots = reinterpret_cast<std::uint64_t>(inbox_.data());
      connect_out_.region =
          landing_.memory ? landing_.at : reinterpret_cast<std::uint64_t>(region_.data());
      connect_out_.region_bytes = region_bytes();
      connect_out_.outside = landing_.memory ? 1 : 0;
      for (std::size_t i = 0; i < tracks_.size(); ++i) {
        const Track& track = tracks_[i];
        if (track.rail) connect_out_.rails[i] = end_of(*track.rail, track.port);
      }
      enqueue(RdmaFrame::kConnect, 0, std::as_bytes(std::span(&connect_out_, 1)));
    }
  }
  if (control_) {
    obstacle = "it does not say how to reach its memory";
    control_->flush(*this);
    hear_control();
    if (!failure_.empty()) fail();
    if (ready_mask_ && peer_mask_) {
      on_ready(*ready_mask_ & *peer_mask_);
      return true;
    }
  }
  if (Clock::now() < deadline_) return false;
  failure_ = fmt::format("no connection within {} ms: {}", config_.timeout_ms, obstacle);
  fail();
}

void RdmaLink::on_connect() {
  connect_heard_ = true;
  believe(connect_in_);
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    Track& track = tracks_[i];
    if (!track.rail) continue;
    track.rail->connect(peer_.ports[track.peer_port], connect_in_.rails[i], connect_in_);
    if (track.rail->failure().empty()) mask |= 1u << i;
  }
  ready_mask_ = mask;
  enqueue(RdmaFrame::kReady, 0, {}, mask);
}

/// Both ends know now which rails stand.
void RdmaLink::on_ready(std::uint32_t mask) {
  connected_ = true;
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    Track& track = tracks_[i];
    track.once_up = (mask >> i & 1) != 0;
    if (track.once_up) continue;
    track.down = track.told = track.heard = track.settled = true;
    if (track.rail) track.rail->shut();
  }
  find_live();
  say_absent(*peer_mask_);
}

void RdmaLink::find_live() {
  live_.clear();
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    if (tracks_[i].rail && !tracks_[i].down) live_.push_back(i);
  }
}

void RdmaLink::taken(const TcpFrame&) {}  // all payloads lie in memory that stays

void RdmaLink::enqueue(std::uint16_t magic, std::size_t channel, std::span<const std::byte> payload,
                       std::uint32_t tag) {
  TcpFrame frame;
  frame.magic = magic;
  frame.channel = static_cast<std::uint16_t>(channel);
  frame.tag = tag;
  frame.length = payload.size();
  control_->enqueue(frame, payload.data());
  control_->flush(*this);
}

void RdmaLink::send_over_control(std::size_t channel, std::uint64_t number, std::size_t piece) {
  const Put& put = outgoing_[channel].puts[number & (window_ - 1)];
  const RdmaSlot& slot = *slot_in(outbox_, channel, number);
  const auto bytes =
      put.small ? std::span<const std::byte>(slot.payload, put.length) : bytes_of(put, piece);
  TcpFrame frame;
  frame.channel = static_cast<std::uint16_t>(channel);
  frame.tag = slot.tag;
  frame.length = bytes.size();
  frame.offset = put.small
                     ? put.offset
                     : static_cast<std::uint64_t>(bytes.data() - outbox_.data()) - slots_bytes_;
  frame.sequence = static_cast<std::uint32_t>(number);
  frame.pieces = put.pieces;
  frame.reserved = static_cast<std::uint16_t>(piece);
  const bool idle = control_->queue_empty();
  control_->enqueue(frame, bytes.data());
  if (idle) control_->flush(*this);
}

std::optional<std::byte*> RdmaLink::place(const TcpFrame& frame) {
  const auto expect = [&](bool good, const char* what) {
    if (!good) throw LinkError(what);
  };
  switch (frame.magic) {
    case RdmaFrame::kConnect:
      expect(!connect_heard_ && frame.length == sizeof connect_in_, "a connect that does not fit");
      return reinterpret_cast<std::byte*>(&connect_in_);
    case RdmaFrame::kReady:
      expect(frame.length == 0 && !peer_mask_, "a ready that does not fit");
      return region_.data();
    case RdmaFrame::kCredit:
      expect(frame.length == 0 && frame.channel < outgoing_.size(), "a credit of no channel");
      return region_.data();
    case RdmaFrame::kTotal:
      expect(frame.length == 0 && frame.channel < incoming_.size(), "a total of no channel");
      return region_.data();
    case RdmaFrame::kResume:
      expect(frame.channel < tracks_.size() && frame.length == table_bytes() && frame.tag <= 1 &&
                 !tracks_[frame.channel].heard && peer_mask_,
             "a report on no rail");
      return tracks_[frame.channel].table_in.data();
    case RdmaFrame::kOffer: {
      expect(frame.channel < tracks_.size() && frame.length == sizeof(RdmaConnect::Rail),
             "an offer of no rail");
      Track& track = tracks_[frame.channel];
      expect(track.once_up && track.told && track.heard && !track.returning.heard,
             "an offer of a rail that is in use");
      return reinterpret_cast<std::byte*>(&track.returning.offer_in);
    }
    case RdmaFrame::kJoined:
    case RdmaFrame::kVerdict: {
      expect(frame.channel < tracks_.size() && frame.length == 0 && frame.tag <= 1,
             "a verdict on no rail");
      const Return& back = tracks_[frame.channel].returning;
      const bool again =
          frame.magic == RdmaFrame::kJoined ? back.peer_joined : back.peer.has_value();
      expect(back.rail && back.heard && !again, "a verdict on what was not offered");
      return region_.data();
    }
    case TcpFrame::kPut:
      break;
    default:
      throw LinkError("something that is no frame");
  }
  expect(frame.channel < incoming_.size(), "a frame of no channel");
  expect(frame.length <= region_bytes() && frame.offset <= region_bytes() - frame.length,
         "a frame outside the region");
  const Incoming& in = incoming_[frame.channel];
  expect(frame.sequence - static_cast<std::uint32_t>(in.arrivals) < window_, "a put out of order");
  expect(frame.pieces >= 1 && frame.pieces <= kMaxRails && frame.reserved < frame.pieces,
         "a put of too many pieces");
  return region_.data() + frame.offset;
}

void RdmaLink::arrived(const TcpFrame& frame) {
  switch (frame.magic) {
    case RdmaFrame::kConnect:
      return on_connect();
    case RdmaFrame::kReady:
      peer_mask_ = frame.tag;
      return;
    case RdmaFrame::kCredit:
      on_immediate(Immediate{Immediate::Kind::credit, 0, frame.channel, frame.tag}.pack());
      return;
    case RdmaFrame::kTotal:
      return on_total(frame.channel, frame.tag);
    case RdmaFrame::kResume: {
      Track& track = tracks_[frame.channel];
      track.heard = true;
      if (!track.down) take_down(frame.channel, "the peer reports it down", true);
      warn_down(track, frame.tag == 1 ? LogLevel::info : LogLevel::warn);
      return;
    }
    case RdmaFrame::kOffer:
      tracks_[frame.channel].returning.heard = true;
      return;
    case RdmaFrame::kJoined:
      tracks_[frame.channel].returning.peer_joined = true;
      return;
    case RdmaFrame::kVerdict:
      tracks_[frame.channel].returning.peer = frame.tag == 1;
      return conclude(frame.channel);
    default:
      break;
  }
  // Where the region is outside, the bytes are no further than the room that stands in for it.
  if (landing_.memory && frame.length > 0 &&
      !bring_out(frame.offset, region_.subspan(frame.offset, frame.length))) {
    return;
  }
  Incoming& in = incoming_[frame.channel];
  const std::uint64_t put =
      in.arrivals + (frame.sequence - static_cast<std::uint32_t>(in.arrivals));
  Entry& entry = in.entries[put & (2 * window_ - 1)];
  entry.tag = frame.tag;
  entry.pieces = static_cast<std::uint8_t>(frame.pieces);
  entry.bare = false;
  got_piece(frame.channel, put, frame.reserved);
}

/// Receives what the control connection has, and finds out whether the peer has left, or died.
std::size_t RdmaLink::hear_control() {
  look_now_ = false;
  std::size_t received = 0;
  if (peer_lies_ || peer_left_) return 0;
  try {
    received = control_->receive(*this);
  } catch (const LinkError& error) {
    peer_lies_ = true;
    failure_ = fmt::format("it sent {}", error.what());
    return received;
  }
  if (!failure_.empty()) return received;
  if (control_->goodbye()) {
    peer_left_ = true;
    lost_.clear();
    for (Outgoing& out : outgoing_) out.taken = out.made;
  } else if (control_->broken()) {
    failure_ = *control_->broken() == 0 ? "it closed the control connection without a goodbye"
                                        : std::strerror(*control_->broken());
  }
  return received;
}

void RdmaLink::take_down(std::size_t rail, const std::string& why, bool by_peer) {
  Track& track = tracks_[rail];
  if (track.down) return;  // the peer's report came first
  track.down = true;
  track.rail->shut();
  plan_return(track);
  find_live();
  recovering_ = true;
  say_down(track, why, by_peer);
}

/// Rails that are down: hears out what they still bring, tells the peer what has come, and once the
/// peer has told the same, sends again what was lost.
void RdmaLink::recover() {
  recovering_ = false;
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    Track& track = tracks_[i];
    if (!track.down || track.settled) continue;
    warn_late(track);
    if (!track.told) {
      for (int polls = 0; polls < kDrainPolls && !track.rail->drained(); ++polls) {
        track.rail->poll([this](std::uint32_t bits) { on_immediate(bits); });
      }
      if (track.rail->drained()) tell_what_came(track, i);
    }
    if (track.told && track.heard) {
      find_lost(i);
      track.settled = true;
      ++away_;
    } else {
      recovering_ = true;
    }
  }
}

std::size_t RdmaLink::table_bytes() const {
  return incoming_.size() * (sizeof(std::uint64_t) + window_ * sizeof(std::uint16_t));
}

/// By channel: its arrivals, and for each put that may have come in part the mask of its pieces.
void RdmaLink::tell_what_came(Track& track, std::size_t rail) {
  std::byte* to = track.table_out.data();
  for (Incoming& in : incoming_) {
    std::memcpy(to, &in.arrivals, sizeof in.arrivals);
    to += sizeof in.arrivals;
    for (std::size_t ahead = 0; ahead < window_; ++ahead) {
      const std::uint16_t got = in.entries[(in.arrivals + ahead) & (2 * window_ - 1)].got;
      std::memcpy(to, &got, sizeof got);
      to += sizeof got;
    }
    in.told = in.arrivals;
  }
  track.told = true;
  enqueue(RdmaFrame::kResume, rail, track.table_out, track.noticed ? 1 : 0);
}

void RdmaLink::find_lost(std::size_t rail) {
  const std::byte* from = tracks_[rail].table_in.data();
  for (std::size_t channel = 0; channel < outgoing_.size(); ++channel) {
    Outgoing& out = outgoing_[channel];
    std::uint64_t arrivals = 0;
    std::memcpy(&arrivals, from, sizeof arrivals);
    const std::byte* masks = from + sizeof arrivals;
    from = masks + window_ * sizeof(std::uint16_t);
    if (arrivals > out.made) {
      peer_lies_ = true;
      failure_ = "it reports arrivals that cannot be";
      return;
    }
    out.taken = std::max(out.taken, arrivals);
    // In slots that were lost, perhaps, and may be sent again without theirs.
    if (out.told != 0) enqueue(RdmaFrame::kTotal, channel, {}, out.told);
    for (std::uint64_t put = out.taken; put < out.made; ++put) {
      // The report may be older than the latest credits; what lies beyond it has not come.
      std::uint16_t got = 0;
      if (put - arrivals < window_) {
        std::memcpy(&got, masks + (put - arrivals) * sizeof got, sizeof got);
      }
      const Put& made = out.puts[put & (window_ - 1)];
      for (std::uint8_t piece = 0; piece < made.pieces; ++piece) {
        const bool lost = made.rail[piece] == rail && (got >> piece & 1) == 0;
        if (!lost) continue;
        save(out.puts[put & (window_ - 1)], piece);
        lost_.push_back({channel, put, piece});
      }
    }
  }
  let_go(rail);
}

/// What is to be sent again shall not need the caller's memory any longer.
void RdmaLink::save(Put& put, std::size_t piece) {
  if (put.src == nullptr || (put.copied >> piece & 1) != 0) return;
  const auto from = bytes_of(put, piece);
  // Given back before it was released: its call has failed, and nobody waits for it.
  const bool there = source_.holds(from) ||
                     !hub_->registrations.find(from, hub_->devices, hub_->control->rank()).empty();
  if (there) copy(from, outbox_.data() + slots_bytes_ + part_of(put, piece).offset);
  put.copied |= static_cast<std::uint16_t>(1u << piece);
}

/// A rail that is settled reads nothing any more: its pieces have come, or lie in the outbox.
void RdmaLink::let_go(std::size_t rail) {
  for (Outgoing& out : outgoing_) {
    for (std::uint64_t number = out.released; number < out.made; ++number) {
      Put& put = out.puts[number & (window_ - 1)];
      for (std::size_t piece = 0; piece < put.pieces; ++piece) {
        if (put.rail[piece] == rail) put.until[piece] = 0;
      }
    }
  }
}

/// Sends again what a rail lost; false while some of it has to wait.
bool RdmaLink::resend() {
  while (!lost_.empty()) {
    const Lost lost = lost_.back();
    Put& put = outgoing_[lost.channel].puts[lost.put & (window_ - 1)];
    if (live_.empty()) {
      put.rail[lost.piece] = kOverControl;
    } else {
      const std::size_t rail = live_[turn_of_rail_++ % live_.size()];
      if (!tracks_[rail].rail->room(requests_for(put, lost.piece))) return false;
      put.rail[lost.piece] = static_cast<std::uint8_t>(rail);
    }
    lost_.pop_back();
    send_piece(lost.channel, lost.put, lost.piece);
  }
  return true;
}

}  // namespace chorus
