#include "transports/tcp/stream.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "base/copy.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

/// Small frames are copied twice, through here; of a large one only what came with its header is.
constexpr std::size_t kStagingBytes = 34 * 1024;
constexpr std::size_t kReadAheadBytes = 16 * 1024;
constexpr std::size_t kLargePayload = 64 * 1024;
constexpr std::size_t kPiecesPerSend = 32;
/// Of frames that wait to leave together.
constexpr std::size_t kCopiedBytes = 128 * 1024;
/// One call must not keep the other links waiting.
constexpr std::size_t kBytesPerSend = 1 << 20;
constexpr int kCallsPerTurn = 4;
/// Behind a frame of this size or less another small one is expected.
constexpr std::size_t kSmallPayload = 16 * 1024;
/// What was looked at only is taken out of the socket after so many looks, or bytes: a sender that
/// has been silent may have 10 packets under way that nobody has acknowledged (RFC 6928), and no
/// more. Sooner if that costs no acknowledgement.
constexpr int kLooksUntaken = 8;
constexpr int kLooksUntakenAnswered = 4;
constexpr std::size_t kBytesUntaken = 32 * 1024;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

TcpStream::TcpStream(Fd fd, std::size_t queue_frames, bool acknowledges_late)
    : fd_(std::move(fd)),
      acknowledges_late_(acknowledges_late),
      queue_(std::bit_ceil(queue_frames + 1)),  // a filler
      copies_(kCopiedBytes),
      staging_(kStagingBytes) {
  // socket(7); for TCP since Linux 6.9. Without it the next look first takes out what the last saw.
  const int from = 0;
  peeks_on_ = acknowledges_late &&
              ::setsockopt(fd_.get(), SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from) == 0;
}

void TcpStream::enqueue(const TcpFrame& frame, const std::byte* payload) {
  CHORUS_CHECK(room() > 0, "more frames than a link may have under way");
  queued(tail_++) = {.frame = frame, .payload = payload};
  queued_bytes_ += sizeof frame + frame.length;
}

bool TcpStream::enqueue_copy(const TcpFrame& frame, const std::byte* payload) {
  if (copies_begin_ == copies_end_) copies_begin_ = copies_end_ = 0;
  const std::size_t bytes = sizeof frame + frame.length;
  std::size_t at = copies_end_ % kCopiedBytes;
  std::size_t end = copies_end_ + bytes;
  if (at + bytes > copies_.size()) {  // in one piece: the rest of the ring stays unused
    end += copies_.size() - at;
    at = 0;
  }
  if (end - copies_begin_ > copies_.size()) return false;
  std::byte* const copy = copies_.data() + at;
  std::memcpy(copy, &frame, sizeof frame);
  if (frame.length > 0) std::memcpy(copy + sizeof frame, payload, frame.length);
  copies_end_ = end;
  enqueue(frame, nullptr);
  Queued& last = queued(tail_ - 1);
  last.copy = copy;
  last.copy_end = end;
  last.own = true;
  return true;
}

void TcpStream::enqueue_own(const TcpFrame& frame, std::vector<std::byte> payload) {
  own_.emplace_back(tail_, std::move(payload));
  enqueue(frame, own_.back().second.data());
  queued(tail_ - 1).own = true;
}

void TcpStream::forget_first(FrameHandler& handler) {
  const Queued& first = queued(done_);
  const TcpFrame frame = first.frame;
  const bool own = first.own;
  if (first.copy != nullptr) copies_begin_ = first.copy_end;
  while (!own_.empty() && own_.front().first == done_) own_.pop_front();
  done_bytes_ += sizeof frame + frame.length;
  ++done_;
  if (!keeps_) {
    if (!own) handler.taken(frame);
  } else if (frame.magic == TcpFrame::kPut) {
    if (!own) handler.freed(frame);
    handler.taken(frame);
  }
}

void TcpStream::acknowledged(std::size_t unacknowledged, FrameHandler& handler) {
  // What was sent before the first frame counts as not acknowledged for a while, which is harmless.
  const std::uint64_t has = sent_bytes_ - std::min<std::uint64_t>(sent_bytes_, unacknowledged);
  while (done_ != head_) {
    const TcpFrame& frame = queued(done_).frame;
    if (done_bytes_ + sizeof frame + frame.length > has) return;
    forget_first(handler);
  }
}

void TcpStream::make_own(FrameHandler& handler) {
  std::deque<std::pair<std::size_t, std::vector<std::byte>>> own;
  for (std::size_t i = done_; i != tail_; ++i) {
    Queued& each = queued(i);
    if (!own_.empty() && own_.front().first == i) {
      own.push_back(std::move(own_.front()));
      own_.pop_front();
    } else if (!each.own) {
      own.emplace_back(i, std::vector<std::byte>(each.payload, each.payload + each.frame.length));
      each.own = true;
      if (each.frame.magic == TcpFrame::kPut) handler.freed(each.frame);
    } else {
      continue;
    }
    each.payload = own.back().second.data();
  }
  own_ = std::move(own);
}

std::vector<TcpStream::Kept> TcpStream::lacking(std::uint64_t received, FrameHandler& handler) {
  // What is partly sent cannot have come whole.
  if (received < done_ || received > head_) {
    throw LinkError("a count of frames that cannot have come");
  }
  while (done_ != received) forget_first(handler);
  std::vector<Kept> kept;
  for (std::size_t i = done_; i != tail_; ++i) {
    const Queued& each = queued(i);
    if (each.frame.magic == TcpFrame::kFiller) continue;
    const std::byte* const payload =
        each.copy != nullptr ? each.copy + sizeof each.frame : each.payload;
    kept.push_back({each.frame, {payload, payload + each.frame.length}});
  }
  return kept;
}

void TcpStream::cut_off(FrameHandler& handler) {
  if (payload_left_ > 0) handler.cut_off(current_);
  payload_left_ = 0;
}

void TcpStream::begin_with_filler() {
  static constexpr std::byte kNothing[TcpFrame::kMostFiller] = {};
  const TcpFrame frame{.magic = TcpFrame::kFiller, .length = sizeof kNothing};
  CHORUS_CHECK(queue_empty() && enqueue_copy(frame, kNothing), "a filler behind other frames");
}

/// Two packets of one length in a row, of those above some 500 bytes, make the peer's kernel
/// believe that packets are never longer, and it acknowledges whatever is more than that.
void TcpStream::vary_length() {
  constexpr std::size_t kLeast = 400;
  if (!acknowledges_late_ || queued_bytes_ != last_sent_ || queued_bytes_ < kLeast || room() == 0) {
    return;
  }
  static_cast<void>(enqueue_copy({.magic = TcpFrame::kFiller}, nullptr));
}

void TcpStream::flush(FrameHandler& handler) {
  if (queue_empty() || lacks_room()) return;
  vary_length();
  for (int call = 0; call < kCallsPerTurn && !queue_empty() && send_error_ == 0; ++call) {
    iovec pieces[kPiecesPerSend];
    std::size_t count = 0;
    std::size_t total = 0;
    std::size_t skip = head_sent_;
    const auto add = [&](const void* at, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes == skipped) return;
      char* const begin = const_cast<char*>(static_cast<const char*>(at)) + skipped;
      const std::size_t length = std::min(bytes - skipped, kBytesPerSend);
      total += length;
      if (count > 0 &&
          static_cast<char*>(pieces[count - 1].iov_base) + pieces[count - 1].iov_len == begin) {
        pieces[count - 1].iov_len += length;
      } else {
        pieces[count++] = {begin, length};
      }
    };
    for (std::size_t i = head_; i != tail_ && count + 2 <= kPiecesPerSend; ++i) {
      if (total >= kBytesPerSend) break;
      const Queued& each = queued(i);
      if (each.copy != nullptr) {
        add(each.copy, sizeof each.frame + each.frame.length);
        continue;
      }
      add(&each.frame, sizeof each.frame);
      add(each.payload, each.frame.length);
    }
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // One piece takes less time by the simpler call.
    const ssize_t sent = count == 1
                             ? ::send(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, kFlags)
                             : ::sendmsg(fd_.get(), &message, kFlags);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (!would_block(errno)) {
        send_error_ = errno;
      } else if (readiness_ != nullptr) {
        readiness_->is_full(fd_.get());
      }
      return;
    }
    has_answered_ = true;
    last_sent_ = static_cast<std::size_t>(sent);
    sent_bytes_ += last_sent_;
    queued_bytes_ -= static_cast<std::size_t>(sent);
    head_sent_ += static_cast<std::size_t>(sent);
    while (!queue_empty()) {
      const TcpFrame& frame = queued(head_).frame;
      if (head_sent_ < sizeof frame + frame.length) break;
      head_sent_ -= sizeof frame + frame.length;
      ++head_;
      if (!keeps_) forget_first(handler);
    }
    if (static_cast<std::size_t>(sent) == total) continue;
    if (readiness_ != nullptr) readiness_->is_full(fd_.get());
    return;
  }
}

std::size_t TcpStream::receive(FrameHandler& handler) {
  if (stalled_) {
    stalled_ = false;
    parse(handler);
  }
  if (readiness_ != nullptr && !readiness_->may_read(fd_.get())) return 0;
  std::size_t received = 0;
  bool more = true;
  for (int call = 0; call < kCallsPerTurn && more && !stalled_ && !goodbye_ && !broken_; ++call) {
    received += receive_once(handler, more);
  }
  return received;
}

/// One call of the kernel: the rest of the current payload goes straight to its place, and what
/// comes behind it to staging, so that a stream of large frames costs one call each.
std::size_t TcpStream::receive_once(FrameHandler& handler, bool& more) {
  if (!make_room_to_read()) {
    more = false;
    return 0;
  }
  if (parsed_ == filled_) parsed_ = filled_ = 0;
  if (parsed_ > 0) {  // a part of a header
    std::memmove(staging_.data(), staging_.data() + parsed_, filled_ - parsed_);
    filled_ -= parsed_;
    parsed_ = 0;
  }
  // What is read with a header is copied again: behind a large payload comes another one.
  const std::size_t behind = payload_left_ >= kLargePayload ? sizeof current_
                             : current_.length <= kSmallPayload
                                 ? staging_.size() - filled_
                                 : std::min(kReadAheadBytes, staging_.size() - filled_);
  iovec pieces[2] = {{payload_, payload_left_}, {staging_.data() + filled_, behind}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  // Who takes the last bytes out of a socket sends the acknowledgement, before the call returns,
  // unless it rides with data of its own: 2.3 µs on loopback, of 5.7 that a small frame takes. So
  // what comes without an answer is copied only, and taken out when several have come so.
  const bool peek = acknowledges_late_ && payload_left_ == 0 && (!has_answered_ || peeked_ > 0) &&
                    current_.length <= kSmallPayload;
  const int flags = MSG_DONTWAIT | (peek ? MSG_PEEK : 0);
  const ssize_t got = payload_left_ > 0
                          ? ::recvmsg(fd_.get(), &message, flags)
                          : ::recv(fd_.get(), pieces[1].iov_base, pieces[1].iov_len, flags);
  if (got <= 0) {
    more = got < 0 && errno == EINTR;
    if (got == 0) broken_ = send_error_;
    if (got < 0 && errno != EINTR && !would_block(errno)) broken_ = errno;
    if (readiness_ != nullptr && !more && !broken_) readiness_->is_empty(fd_.get());
    return 0;
  }
  auto bytes = static_cast<std::size_t>(got);
  more = bytes == payload_left_ + pieces[1].iov_len;
  if (readiness_ != nullptr && !more) readiness_->is_empty(fd_.get());
  has_answered_ = false;
  if (peek) {
    peeked_ += bytes;
    ++looks_;
  }
  const std::size_t direct = std::min(bytes, payload_left_);
  filled_ += bytes - direct;
  if (direct > 0) advance_payload(direct, handler);
  parse(handler);
  if (goodbye_) take_out();  // nobody will look again, and closing over unread bytes is a reset
  return bytes;
}

/// Takes out what earlier looks have seen where it has become much, or where what comes next is not
/// to be looked at only.
bool TcpStream::make_room_to_read() {
  if (peeked_ == 0) return true;
  const int most = has_answered_ ? kLooksUntakenAnswered : kLooksUntaken;
  const bool stays = peeks_on_ && payload_left_ == 0 && current_.length <= kSmallPayload &&
                     looks_ < most && peeked_ < kBytesUntaken;
  return stays || take_out();
}

bool TcpStream::take_out() {
  if (peeked_ == 0) return true;
  looks_ = 0;
  while (peeked_ > 0) {
    // Discarded, not written (tcp(7)); a place of our own all the same, where thread sanitizers
    // believe in a write.
    const ssize_t dropped = ::recv(fd_.get(), staging_.data(), std::min(peeked_, staging_.size()),
                                   MSG_DONTWAIT | MSG_TRUNC);
    if (dropped <= 0) {
      if (dropped < 0 && errno != EINTR && !would_block(errno)) broken_ = errno;
      return false;
    }
    peeked_ -= static_cast<std::size_t>(dropped);
  }
  return true;
}

void TcpStream::advance_payload(std::size_t bytes, FrameHandler& handler) {
  payload_ += bytes;
  payload_left_ -= bytes;
  if (payload_left_ > 0) return;
  ++frames_received_;
  handler.arrived(current_);
}

/// False while a part of it is still to come.
bool TcpStream::skip_filler(const TcpFrame& frame) {
  if (frame.length > TcpFrame::kMostFiller) throw LinkError("a filler of too many bytes");
  if (filled_ - parsed_ < sizeof frame + frame.length) return false;
  parsed_ += sizeof frame + frame.length;
  ++frames_received_;
  return true;
}

void TcpStream::parse(FrameHandler& handler) {
  while (payload_left_ == 0 && filled_ - parsed_ >= sizeof current_) {
    TcpFrame frame;
    std::memcpy(&frame, staging_.data() + parsed_, sizeof frame);
    if (frame.magic == TcpFrame::kGoodbye) {
      goodbye_ = true;
      parsed_ = filled_;  // nothing follows
      return;
    }
    if (frame.magic == TcpFrame::kFiller) {
      if (!skip_filler(frame)) return;
      continue;
    }
    if (frame.magic == TcpFrame::kLost && keeps_) {
      if (frame.length > 0) throw LinkError("word of a lost path with bytes behind it");
      parsed_ += sizeof frame;
      ++frames_received_;
      handler.heard_of_loss(frame);
      continue;
    }
    const std::optional<std::byte*> place = handler.place(frame);
    if (!place) {
      stalled_ = true;
      return;
    }
    parsed_ += sizeof frame;
    current_ = frame;
    payload_ = *place;
    payload_left_ = frame.length;
    if (payload_left_ == 0) {
      ++frames_received_;
      handler.arrived(current_);
      continue;
    }
    const std::size_t here = std::min(payload_left_, filled_ - parsed_);
    copy_bytes(payload_, staging_.data() + parsed_, here);
    parsed_ += here;
    if (here > 0) advance_payload(here, handler);
  }
}

void TcpStream::move_payload(std::span<const std::byte> from, std::byte* to) {
  if (payload_left_ == 0 || payload_ < from.data() || payload_ >= from.data() + from.size()) return;
  payload_ = to + (payload_ - from.data());
}

void TcpStream::say_goodbye() {
  if (broken_ || send_error_ != 0 || !queue_empty()) return;
  TcpFrame frame;
  frame.magic = TcpFrame::kGoodbye;
  if (::send(fd_.get(), &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof frame) return;
  ::shutdown(fd_.get(), SHUT_WR);
  // Closing over unread bytes would send a reset, which could overtake what the peer still has to
  // read on its side.
  for (int i = 0; i < 64; ++i) {
    if (::recv(fd_.get(), staging_.data(), staging_.size(), MSG_DONTWAIT) <= 0) break;
  }
}

}  // namespace chorus
