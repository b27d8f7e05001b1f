#include "transports/tcp_stream.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
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
  CHORUS_CHECK(tail_ - head_ < queue_.size(), "more frames than a link may have under way");
  queue_[tail_++ & (queue_.size() - 1)] = {.frame = frame, .payload = payload};
  queued_bytes_ += sizeof frame + frame.length;
}

bool TcpStream::enqueue_copy(const TcpFrame& frame, const std::byte* payload) {
  if (queue_empty()) copied_ = 0;
  if (copies_.size() - copied_ < sizeof frame + frame.length) return false;
  std::byte* const copy = copies_.data() + copied_;
  std::memcpy(copy, &frame, sizeof frame);
  if (frame.length > 0) std::memcpy(copy + sizeof frame, payload, frame.length);
  copied_ += sizeof frame + frame.length;
  enqueue(frame, nullptr);
  queue_[(tail_ - 1) & (queue_.size() - 1)].copy = copy;
  return true;
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
  if (!acknowledges_late_ || queued_bytes_ != last_sent_ || queued_bytes_ < kLeast ||
      tail_ - head_ == queue_.size()) {
    return;
  }
  static_cast<void>(enqueue_copy({.magic = TcpFrame::kFiller}, nullptr));
}

void TcpStream::flush(FrameHandler& handler) {
  if (!queue_empty()) vary_length();
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
      const Queued& queued = queue_[i & (queue_.size() - 1)];
      if (queued.copy != nullptr) {
        add(queued.copy, sizeof queued.frame + queued.frame.length);
        continue;
      }
      add(&queued.frame, sizeof queued.frame);
      add(queued.payload, queued.frame.length);
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
      if (!would_block(errno)) send_error_ = errno;
      return;
    }
    has_answered_ = true;
    last_sent_ = static_cast<std::size_t>(sent);
    queued_bytes_ -= static_cast<std::size_t>(sent);
    head_sent_ += static_cast<std::size_t>(sent);
    while (!queue_empty()) {
      const Queued& first = queue_[head_ & (queue_.size() - 1)];
      const TcpFrame frame = first.frame;
      const bool counted = first.copy != nullptr;
      if (head_sent_ < sizeof frame + frame.length) break;
      head_sent_ -= sizeof frame + frame.length;
      ++head_;
      if (!counted) handler.taken(frame);
    }
    if (static_cast<std::size_t>(sent) < total) return;  // the kernel is full
  }
}

std::size_t TcpStream::receive(FrameHandler& handler) {
  if (stalled_) {
    stalled_ = false;
    parse(handler);
  }
  std::size_t received = 0;
  bool more = true;
  for (int call = 0; call < kCallsPerTurn && more && !stalled_ && !farewell_ && !broken_; ++call) {
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
    return 0;
  }
  auto bytes = static_cast<std::size_t>(got);
  more = bytes == payload_left_ + pieces[1].iov_len;
  has_answered_ = false;
  if (peek) {
    peeked_ += bytes;
    ++looks_;
  }
  const std::size_t direct = std::min(bytes, payload_left_);
  filled_ += bytes - direct;
  if (direct > 0) advance_payload(direct, handler);
  parse(handler);
  if (farewell_) take_out();  // nobody will look again, and closing over unread bytes is a reset
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
  if (payload_left_ == 0) handler.arrived(current_);
}

/// False while a part of it is still to come.
bool TcpStream::skip_filler(const TcpFrame& frame) {
  if (frame.length > TcpFrame::kMostFiller) throw LinkError("a filler of too many bytes");
  if (filled_ - parsed_ < sizeof frame + frame.length) return false;
  parsed_ += sizeof frame + frame.length;
  return true;
}

void TcpStream::parse(FrameHandler& handler) {
  while (payload_left_ == 0 && filled_ - parsed_ >= sizeof current_) {
    TcpFrame frame;
    std::memcpy(&frame, staging_.data() + parsed_, sizeof frame);
    if (frame.magic == TcpFrame::kFarewell) {
      farewell_ = true;
      parsed_ = filled_;  // nothing follows
      return;
    }
    if (frame.magic == TcpFrame::kFiller) {
      if (!skip_filler(frame)) return;
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
      handler.arrived(current_);
      continue;
    }
    const std::size_t here = std::min(payload_left_, filled_ - parsed_);
    std::memcpy(payload_, staging_.data() + parsed_, here);
    parsed_ += here;
    if (here > 0) advance_payload(here, handler);
  }
}

void TcpStream::move_payload(std::span<const std::byte> from, std::byte* to) {
  if (payload_left_ == 0 || payload_ < from.data() || payload_ >= from.data() + from.size()) return;
  payload_ = to + (payload_ - from.data());
}

void TcpStream::say_farewell() {
  if (broken_ || send_error_ != 0 || !queue_empty()) return;
  TcpFrame frame;
  frame.magic = TcpFrame::kFarewell;
  if (::send(fd_.get(), &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof frame) return;
  ::shutdown(fd_.get(), SHUT_WR);
  // Closing over unread bytes would send a reset, which could overtake what the peer still has to
  // read on its side.
  for (int i = 0; i < 64; ++i) {
    if (::recv(fd_.get(), staging_.data(), staging_.size(), MSG_DONTWAIT) <= 0) break;
  }
}

}  // namespace chorus
