#include "transports/tcp/link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

/// Puts up to this size go through the first socket, which carries nothing else where there are
/// several. Signals and credits among them must not queue behind data that the kernel has taken and
/// the wire has not: where both directions of a slow wire are busy, credits behind data halve both
/// (200 Mb/s cable, all-gather: 72 % of the cable against 95 %).
constexpr std::size_t kExpressBytes = 8 * 1024;
/// Where both ends are in one network namespace nothing queues between them, and one socket less to
/// look at is a call of the kernel less.
constexpr std::size_t kExpressBytesHere = 16 * 1024;
/// Puts from this size on are cut into one piece per data socket; those between go whole to the
/// data socket with the least to send.
constexpr std::size_t kStripeBytes = 512 * 1024;

/// Puts from this size on wait for flush(), up to so many bytes of a socket: several frames in one
/// call of the kernel fill whole packets, where each alone ends with a small one that costs as much
/// as a full one.
constexpr std::size_t kLargeBytes = 32 * 1024;
/// Puts up to this size wait for flush() too, as copies, which count as released: a call of the
/// kernel costs 3 µs and more, a copy of so much 0.5.
constexpr std::size_t kCopyBytes = 16 * 1024;
/// Above this size the first put after a flush() leaves at once, without a copy.
constexpr std::size_t kTinyBytes = 2 * 1024;
constexpr std::size_t kBatchBytes = 512 * 1024;

constexpr std::size_t kPieceAlignment = 4096;

/// Whether the bytes of `frame` lie within those of the put that `posted` waits for.
bool within(const TcpFrame& frame, const PostedReceives::PostedReceive& posted) {
  const std::uint64_t size = posted.memory.size();
  return frame.offset >= posted.offset && frame.offset - posted.offset <= size &&
         frame.length <= size - (frame.offset - posted.offset) &&
         (frame.pieces > 1 || frame.length == size);
}

// What a link that is paced sends as fast as it can after a rest: so many bytes, or what takes so
// long at its pace.
constexpr double kHarmlessBytes = 128 * 1024;
constexpr double kHarmlessSeconds = 4e-3;

}  // namespace

TcpLink::TcpLink(std::shared_ptr<TcpHub> hub, const LinkConfig& config, int num_sockets,
                 bool same_kernel, const TcpAddress& peer)
    : hub_(std::move(hub)),
      config_(config),
      window_(std::bit_ceil(static_cast<std::size_t>(config.max_outstanding))),
      peer_(peer),
      same_kernel_(same_kernel),
      express_bytes_(same_kernel ? kExpressBytesHere : kExpressBytes),
      deadline_(std::chrono::steady_clock::now() + std::chrono::milliseconds(config.timeout_ms)),
      memory_(Mapping::anonymous(config.region_bytes)),
      region_(memory_.span()),
      paths_(paths_between(hub_->rails(), peer, num_sockets, same_kernel, dials())),
      given_up_(paths_.size(), false),
      outgoing_(static_cast<std::size_t>(config.num_channels)),
      incoming_(static_cast<std::size_t>(config.num_channels)) {
  shares_ = paths_.size() > 1;
  for (Outgoing& out : outgoing_) {
    out.pieces_left.resize(window_);
    if (shares_) out.pieces_read.resize(window_);
  }
  for (Incoming& in : incoming_) in.slots.resize(2 * window_);
  // The lower rank connects to the higher.
  int socket = 0;
  for (const TcpPath& path : paths_) {
    for (int i = 0; i < path.num_sockets && dials(); ++i) {
      dials_.emplace_back(path, peer.rank, socket++, same_kernel);
    }
  }
  const int sockets = paths_.back().first_socket + paths_.back().num_sockets;
  ready_.resize(static_cast<std::size_t>(sockets));
  hub_->add(this);
}

TcpLink::~TcpLink() {
  hub_->remove(this);
  // A call has failed, and the memory that is not released is its caller's again.
  if (withdrawn_ && (shares_ ? unreleased_ : unsettled_) > 0) return;
  hub_->readiness().refresh();
  static_cast<void>(flush());  // puts that were copied count as released
  if (shares_) wait_for_settlement();
  if (!failure_.empty() || !all_taken()) return;  // the peer shall see a broken connection
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (stands(i)) streams_[i].say_goodbye();
  }
}

std::size_t TcpLink::index_of(ChannelId channel) const {
  const auto index = static_cast<std::size_t>(channel);
  CHORUS_CHECK(index < outgoing_.size(), "no such channel");
  return index;
}

bool TcpLink::try_put(std::span<const std::byte> src, std::size_t offset, ChannelId channel,
                      std::uint32_t tag) {
  CHORUS_CHECK(src.size() <= region_.size() && offset <= region_.size() - src.size(),
               "put outside the peer's region");
  Outgoing& out = outgoing_[index_of(channel)];
  if (!failure_.empty()) fail();
  if (streams_.empty()) return false;
  const std::uint64_t settled = shares_ ? out.settled : out.released;
  if (out.made - settled >= static_cast<std::uint64_t>(config_.max_outstanding)) {
    tight_ = true;
    return false;
  }
  TcpFrame frame;
  frame.channel = static_cast<std::uint16_t>(channel);
  frame.tag = tag;
  frame.offset = offset;
  frame.sequence = static_cast<std::uint32_t>(out.made++);
  frame.total = out.told = out.total;
  if (peer_left_) {
    out.released = out.settled = out.made;
  } else {
    if (shares_) ++unreleased_;
    ++unsettled_;
    send(src, frame);
  }
  return true;
}

void TcpLink::send(std::span<const std::byte> src, TcpFrame frame) {
  if (shares_ && src.size() > express_bytes_) return share(src, frame);
  count_burst(src.size());
  const std::size_t express = express_streams();
  const std::size_t sockets = streams_.size() - express;  // for data
  const bool striped = !shares_ && sockets > 1 && src.size() >= kStripeBytes;
  frame.pieces = static_cast<std::uint16_t>(striped ? sockets : 1);
  outgoing_[frame.channel].pieces_left[frame.sequence & (window_ - 1)] =
      static_cast<std::uint8_t>(frame.pieces);
  if (shares_) outgoing_[frame.channel].pieces_read[frame.sequence & (window_ - 1)] = 1;
  if (!striped) {
    const auto data = streams_.begin() + static_cast<std::ptrdiff_t>(express);
    TcpStream& stream =
        src.size() <= express_bytes_
            ? streams_[stream_of_small(src.size())]
            : *std::min_element(data, streams_.end(), [](const TcpStream& a, const TcpStream& b) {
                return a.queued_bytes() < b.queued_bytes();
              });
    frame.length = src.size();
    if (src.size() <= kCopyBytes &&
        (shares_ || src.size() <= kTinyBytes || !stream.may_go_ahead()) &&
        stream.enqueue_copy(frame, src.data())) {
      shares_ ? freed(frame) : taken(frame);
      return;
    }
    const bool idle = stream.queue_empty();
    stream.enqueue(frame, src.data());
    // Behind others it waits for flush() or progress(), and then goes with them in one call.
    if (src.size() < kLargeBytes ? idle : stream.queued_bytes() >= kBatchBytes) {
      stream.flush(*this);
    }
    return;
  }
  const std::size_t piece =
      (src.size() / sockets + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  const std::uint64_t start = frame.offset;
  for (std::size_t i = 0; i < sockets; ++i) {
    const std::size_t at = i * piece;
    frame.offset = start + at;
    frame.length = std::min(piece, src.size() - at);
    streams_[express + i].enqueue(frame, src.data() + at);
    streams_[express + i].flush(*this);
  }
}

void TcpLink::taken(const TcpFrame& frame) {
  Outgoing& out = outgoing_[frame.channel];
  --out.pieces_left[frame.sequence & (window_ - 1)];
  std::uint64_t& settled = shares_ ? out.settled : out.released;
  while (settled < out.made && out.pieces_left[settled & (window_ - 1)] == 0) {
    ++settled;
    --unsettled_;
  }
}

void TcpLink::freed(const TcpFrame& frame) {
  Outgoing& out = outgoing_[frame.channel];
  --out.pieces_read[frame.sequence & (window_ - 1)];
  while (out.released < out.made && out.pieces_read[out.released & (window_ - 1)] == 0) {
    ++out.released;
    --unreleased_;
  }
}

std::optional<std::byte*> TcpLink::place(const TcpFrame& frame) {
  if (frame.magic != TcpFrame::kPut) throw LinkError("something that is no frame");
  if (frame.channel >= incoming_.size()) throw LinkError("a frame of no channel");
  if (frame.length > region_.size() || frame.offset > region_.size() - frame.length) {
    throw LinkError("a frame outside the region");
  }
  const std::size_t most_pieces = shares_ ? TcpFrame::kMostPieces : streams_.size();
  if (frame.pieces == 0 || frame.pieces > most_pieces) throw LinkError("a put of too many pieces");
  Incoming& in = incoming_[frame.channel];
  const std::uint32_t ahead = frame.sequence - static_cast<std::uint32_t>(in.arrivals);
  if (ahead >= 1u << 31) throw LinkError("a put that has arrived before");
  if (ahead >= window_) {
    // One socket is ahead of the others, which bring what is missing. They cannot all wait for one
    // another: each carries its frames in the order of their puts, and the oldest put that is
    // missing anywhere waits for none.
    if (streams_.size() == 1) throw LinkError("puts out of order");
    return std::nullopt;
  }
  Slot& slot = in.slots[(in.arrivals + ahead) & (2 * window_ - 1)];
  if (slot.announced == 0) {
    slot.tag = frame.tag;
    slot.pieces = frame.pieces;
    slot.in_place =
        slot.posted.tag == frame.tag && !slot.posted.memory.empty() && within(frame, slot.posted);
  }
  ++slot.announced;
  slot.bytes += frame.length;
  const bool last = slot.announced == slot.pieces;
  const bool lands_whole =
      within(frame, slot.posted) && (!last || slot.bytes == slot.posted.memory.size());
  if (slot.tag != frame.tag || slot.pieces != frame.pieces || slot.announced > slot.pieces ||
      (slot.in_place && !lands_whole)) {
    throw LinkError("pieces of a put that do not fit together");
  }
  if (slot.in_place) return slot.posted.memory.data() + (frame.offset - slot.posted.offset);
  return region_.data() + frame.offset;
}

void TcpLink::arrived(const TcpFrame& frame) {
  Incoming& in = incoming_[frame.channel];
  ++frames_arrived_;
  if (frame.pieces > 1 || frame.length > express_bytes_) brought_large_ = true;
  // Frames of several sockets overtake one another.
  if (static_cast<std::int32_t>(frame.total - in.heard) > 0) in.heard = frame.total;
  const auto slot_of = [&](std::uint64_t put) -> Slot& {
    return in.slots[put & (2 * window_ - 1)];
  };
  const std::uint32_t ahead = frame.sequence - static_cast<std::uint32_t>(in.arrivals);
  ++slot_of(in.arrivals + ahead).arrived;
  while (slot_of(in.arrivals).pieces > 0 &&
         slot_of(in.arrivals).arrived == slot_of(in.arrivals).pieces) {
    // Its tag stays; the slot that the next put to come will use is made ready.
    ++in.arrivals;
    Slot& next = slot_of(in.arrivals + window_ - 1);
    next = Slot();
  }
}

void TcpLink::cut_off(const TcpFrame& frame) {
  Incoming& in = incoming_[frame.channel];
  const std::uint32_t ahead = frame.sequence - static_cast<std::uint32_t>(in.arrivals);
  Slot& slot = in.slots[(in.arrivals + ahead) & (2 * window_ - 1)];
  slot.bytes -= frame.length;
  if (--slot.announced > 0) return;
  slot.pieces = 0;
  slot.in_place = false;
}

void TcpLink::pace(double bytes_per_s) {
  if (bytes_per_s == paced_at_) return;  // what it has found out since stays
  paced_at_ = bytes_per_s;
  pace_ = Pace(bytes_per_s);
  if (std::exchange(paced_, false)) pace_streams(0);
}

// A queue takes a little without harm, and the kernel's timers take long for it: an all-reduce of
// 64 KiB over trunks of 200 Mb/s took 6.5 to 7.7 ms, each message paced, in place of 2.3 to 2.7.
void TcpLink::count_burst(std::size_t size_bytes) {
  if (!pace_.limits() || shares_) return;  // what it would be of each path, nobody knows
  const std::int64_t now = steady_ns();
  const double gone = pace_.rate() * 1e-9 * static_cast<double>(now - burst_at_ns_);
  burst_bytes_ = std::max(0.0, burst_bytes_ - gone) + static_cast<double>(size_bytes);
  burst_at_ns_ = now;
  const double harmless = std::max(kHarmlessBytes, kHarmlessSeconds * pace_.bytes_per_s());
  const bool wanted = burst_bytes_ > (paced_ ? harmless / 4 : harmless);
  bool changed = wanted != paced_;
  paced_ = wanted;
  if (paced_) {
    changed = pace_.look(now, [this] { return acknowledged_data(); }) || changed;
  } else if (changed) {
    pace_.rest(now);
  }
  if (changed) pace_streams(paced_ ? pace_.rate() : 0);
}

std::uint64_t TcpLink::acknowledged_data() const {
  std::uint64_t sum = 0;
  for (std::size_t i = express_streams(); i < streams_.size(); ++i) {
    if (const auto progress = progress_of(streams_[i].fd())) sum += progress->acknowledged_bytes;
  }
  return sum;
}

// Credits and signals need not wait for their turn.
void TcpLink::pace_streams(double bytes_per_s) {
  const std::size_t express = express_streams();
  const auto sockets = static_cast<double>(streams_.size() - express);
  for (std::size_t i = express; i < streams_.size(); ++i) {
    limit_rate(streams_[i].fd(), bytes_per_s / sockets);
  }
}

bool TcpLink::flush() {
  const auto lacks_room = [](const TcpStream& stream) { return stream.lacks_room(); };
  if (std::ranges::any_of(streams_, lacks_room)) hub_->readiness().look_for_room(sends_);
  return send_queued();
}

bool TcpLink::send_queued() {
  if (peer_left_ || !failure_.empty()) return true;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!stands(i)) continue;
    streams_[i].flush(*this);
    streams_[i].end_of_puts();
  }
  if (shares_) share_out_waiting();
  return all_taken();
}

bool TcpLink::progress() {
  if (streams_.empty()) {
    if (!failure_.empty()) fail();
    if (!connect_step()) return false;
  }
  if (peer_left_) return true;
  const bool failed = !failure_.empty();
  looked_ = true;
  hub_->readiness().look(reads_, streams_.size());
  if (failed) hub_->readiness().refresh();
  static_cast<void>(send_queued());
  const std::size_t received = receive_all();
  if (shares_ && failure_.empty()) look_after_paths();
  judge();
  // The bad news is told when all that came before it has been received, and was countable.
  if (failed && received == 0) fail();
  return failure_.empty() && all_taken();
}

std::size_t TcpLink::receive_all() {
  std::size_t received = 0;
  if (peer_lies_) return 0;
  try {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (!stands(i)) continue;
      const std::size_t bytes = streams_[i].receive(*this);
      if (shares_ && bytes > 0) note_received(i);
      received += bytes;
    }
    if (shares_ && received > 0) acknowledge_overdue();
  } catch (const LinkError& error) {
    peer_lies_ = true;
    failure_ = fmt::format("it sent {}", error.what());
    return received;
  }
  return received;
}

/// Finds out whether the peer has left, or died.
void TcpLink::judge() {
  if (!failure_.empty()) return;
  if (shares_) return judge_paths();
  std::size_t goodbyes = 0;
  for (const TcpStream& stream : streams_) {
    if (stream.goodbye()) {
      ++goodbyes;
    } else if (stream.broken()) {
      failure_ = why_broken(stream);
      return;
    }
  }
  if (goodbyes < streams_.size()) return;
  take_leave();
}

std::string TcpLink::why_broken(const TcpStream& stream) {
  return *stream.broken() == 0 ? "it closed the connection without a goodbye"
                               : std::strerror(*stream.broken());
}

void TcpLink::take_leave() {
  peer_left_ = true;
  for (Outgoing& out : outgoing_) out.released = out.settled = out.made;
  unreleased_ = unsettled_ = 0;
  lost_.clear();
  resend_.clear();
  for (PathState& state : states_) state.dials.clear();
}

bool TcpLink::all_taken() const {
  if (peer_left_) return true;
  if (shares_ && !all_free()) return false;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (stands(i) && !streams_[i].queue_empty()) return false;
  }
  return true;
}

std::uint64_t TcpLink::released(ChannelId channel) const {
  return outgoing_[index_of(channel)].released;
}

std::uint64_t TcpLink::arrivals(ChannelId channel) { return incoming_[index_of(channel)].arrivals; }

const TcpLink::Slot& TcpLink::recent(ChannelId channel, std::uint64_t index) const {
  const Incoming& in = incoming_[index_of(channel)];
  CHORUS_CHECK(index < in.arrivals && in.arrivals - index <= window_, "no recent arrival");
  return in.slots[index & (2 * window_ - 1)];
}

std::uint32_t TcpLink::tag(ChannelId channel, std::uint64_t index) const {
  return recent(channel, index).tag;
}

void TcpLink::expect(ChannelId channel, std::uint64_t index, const PostedReceive& posted) {
  Incoming& in = incoming_[index_of(channel)];
  const std::size_t size = posted.memory.size();
  CHORUS_CHECK(size <= region_.size() && posted.offset <= region_.size() - size,
               "a put outside the region is expected");
  if (index < in.arrivals) return;
  CHORUS_CHECK(index - in.arrivals < window_, "a put is expected too early");
  Slot& slot = in.slots[index & (2 * window_ - 1)];
  if (slot.announced == 0) slot.posted = posted;
}

bool TcpLink::in_place(ChannelId channel, std::uint64_t index) const {
  return recent(channel, index).in_place;
}

void TcpLink::tell(ChannelId channel, std::uint32_t total) {
  outgoing_[index_of(channel)].total = total;
}

std::uint32_t TcpLink::told(ChannelId channel) const { return outgoing_[index_of(channel)].told; }

std::uint32_t TcpLink::heard(ChannelId channel) const { return incoming_[index_of(channel)].heard; }

void TcpLink::withdraw() {
  withdrawn_ = true;
  for (Incoming& in : incoming_) {
    for (std::uint64_t put = in.arrivals; put != in.arrivals + window_; ++put) {
      Slot& slot = in.slots[put & (2 * window_ - 1)];
      const std::span<std::byte> memory = slot.posted.memory;
      if (slot.in_place) {
        std::byte* const place = region_.data() + slot.posted.offset;
        std::memcpy(place, memory.data(), memory.size());
        for (TcpStream& stream : streams_) stream.move_payload(memory, place);
        for (LostConnection& lost : lost_) lost.stream.move_payload(memory, place);
      }
      slot.in_place = false;
      slot.posted = {};
    }
  }
}

void TcpLink::append_wake_fds(std::vector<pollfd>& fds, bool each) const {
  for (const TcpDial& dial : dials_) dial.append_wake_fds(fds);
  // The peer says by it which paths stand.
  if (streams_.empty() && !dials() && ready_.front()) fds.push_back(wake_fd(ready_.front().get()));
  if (peer_left_) return;
  for (const PathState& state : states_) {
    for (const TcpDial& dial : state.dials) dial.append_wake_fds(fds);
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!stands(i)) continue;
    const TcpStream& stream = streams_[i];
    const bool output = !stream.queue_empty();
    // What is left for later would be readable all the time.
    const bool silent = stream.goodbye() || stream.stalled();
    if (silent && !output && failure_.empty()) continue;
    if (!each && failure_.empty() && wakes_by_readiness(stream)) continue;
    fds.push_back(wake_fd(stream.fd(), output));
  }
}

// A change is told once. Where this link has looked since prepare_to_sleep(), bytes may have been
// told of after the look, and only the socket itself still shows them; where it has not, no call
// waits for them.
bool TcpLink::wakes_by_readiness(const TcpStream& stream) const {
  const TcpReadiness& readiness = hub_->readiness();
  const int fd = stream.fd();
  return readiness.watches(fd) && !(looked_ && readiness.was_readable(fd)) &&
         (stream.queue_empty() || !readiness.may_write(fd));
}

void TcpLink::fail() const {
  throw LinkError(fmt::format("rank {}: tcp: rank {} at {}: {}", hub_->rank(), peer_.rank,
                              Endpoint::from(peer_).text(), failure_),
                  static_cast<int>(peer_.rank));
}

}  // namespace chorus
