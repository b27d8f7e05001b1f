// One connected socket that carries frames both ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"
#include "transports/tcp/readiness.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus {

/// The owner of a stream, as the stream sees it.
class FrameHandler {
 public:
  /// The kernel has taken the frame and its bytes; from a stream that keeps its frames: the peer's
  /// kernel has.
  virtual void taken(const TcpFrame& frame) = 0;
  /// Where the bytes of an announced frame belong, after all checks; nothing to leave the frame,
  /// and what is behind it, for later. Throws LinkError if no honest peer would send it.
  virtual std::optional<std::byte*> place(const TcpFrame& frame) = 0;
  /// The bytes of a placed frame are where they belong.
  virtual void arrived(const TcpFrame& frame) = 0;

  // Of streams that keep their frames only.
  /// Nobody reads the payload of this one any more. Before taken(), and not of copies.
  virtual void freed(const TcpFrame& /*frame*/) {}
  /// What is missing of a placed frame will not come by this stream.
  virtual void cut_off(const TcpFrame& /*frame*/) {}
  /// The peer tells of a connection that it has lost (TcpFrame::kLost).
  virtual void heard_of_loss(const TcpFrame& /*frame*/) {}

 protected:
  ~FrameHandler() = default;
};

/// Frames out of a queue into the socket, and out of the socket into the region. Never blocks, and
/// allocates nothing after its construction.
class TcpStream {
 public:
  /// Holds at most `queue_frames` frames that the kernel has not taken. `acknowledges_late`: small
  /// frames are taken out of the socket after they have been told, at the price of a further call.
  TcpStream(Fd fd, std::size_t queue_frames, bool acknowledges_late = false);

  /// The queue has room: the owner counts. `payload` (frame.length bytes) stays valid until taken.
  void enqueue(const TcpFrame& frame, const std::byte* payload);
  /// The same with a copy of `payload`: the frame counts as taken at once. False, having done
  /// nothing, if there is no room for the copy.
  [[nodiscard]] bool enqueue_copy(const TcpFrame& frame, const std::byte* payload);
  /// Has the peer's kernel acknowledge several frames at once (tcp.md): once, before all others.
  void begin_with_filler();
  /// From now on the kernel is asked only for what it may have (TcpReadiness); nullptr: always.
  void watch(TcpReadiness* readiness) {
    readiness_ = readiness;
    if (readiness_ != nullptr) readiness_->watch(fd_.get());
  }
  /// Sends what the kernel takes, several frames per call of it.
  void flush(FrameHandler& handler);
  /// Receives what is there, but not for ever. Returns the bytes received.
  std::size_t receive(FrameHandler& handler);
  /// Takes out of the socket what receive() has only looked at: before sleeping, or it would be
  /// readable all the time. False if something is left.
  bool take_out();
  /// What of a payload under way was to come to `from` comes to the same place behind `to`.
  void move_payload(std::span<const std::byte> from, std::byte* to);

  /// From now on, before the first frame, each frame is kept until the peer's kernel has it: what a
  /// connection loses can be sent again by another one. Frames have numbers, from 0.
  void keep_frames() { keeps_ = true; }
  /// Of the bytes sent the peer's kernel has acknowledged all but `unacknowledged`.
  void acknowledged(std::size_t unacknowledged, FrameHandler& handler);
  /// The same with `payload`, which becomes the stream's.
  void enqueue_own(const TcpFrame& frame, std::vector<std::byte> payload);
  /// Copies what kept frames still read of others' memory, which so is free.
  void make_own(FrameHandler& handler);
  struct Kept {
    TcpFrame frame;
    std::vector<std::byte> payload;
  };
  /// After make_own(): the peer has the frames before number `received` and no more. Returns those
  /// that it lacks, in their order. Throws LinkError if that cannot be.
  [[nodiscard]] std::vector<Kept> lacking(std::uint64_t received, FrameHandler& handler);
  /// Nothing more is received: forgets a frame that has come in part.
  void cut_off(FrameHandler& handler);
  /// Frames that have come whole.
  [[nodiscard]] std::uint64_t frames_received() const { return frames_received_; }
  /// How many frames still fit.
  [[nodiscard]] std::size_t room() const { return queue_.size() - (tail_ - done_); }
  /// Something was sent of which nobody knows whether the peer has it.
  [[nodiscard]] bool keeps_any() const { return done_ != tail_; }
  /// Something waits, and the kernel has no room for it.
  [[nodiscard]] bool lacks_room() const {
    return !queue_empty() && readiness_ != nullptr && !readiness_->may_write(fd_.get());
  }
  [[nodiscard]] bool between_frames() const { return payload_left_ == 0 && parsed_ == filled_; }

  /// Best effort: says that this end leaves in order.
  void say_goodbye();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  [[nodiscard]] bool queue_empty() const { return head_ == tail_; }
  /// True once after a flush(): whether a frame may go ahead of those that wait for the next.
  [[nodiscard]] bool may_go_ahead() { return queue_empty() && !std::exchange(sent_ahead_, true); }
  /// After a flush(): the next frame may go ahead again.
  void end_of_puts() { sent_ahead_ = false; }
  [[nodiscard]] bool goodbye() const { return goodbye_; }  ///< the peer has said it
  /// A frame is left for later: there is no use in polling for input.
  [[nodiscard]] bool stalled() const { return stalled_; }
  /// Why nothing more comes: an errno, or 0 if the peer closed. A failure to send shows here too,
  /// when all that the peer had sent before is read.
  [[nodiscard]] std::optional<int> broken() const { return broken_; }

 private:
  struct Queued {
    TcpFrame frame;
    const std::byte* payload = nullptr;
    const std::byte* copy = nullptr;  ///< of header and payload in one piece, in copies_; else null
    std::size_t copy_end = 0;         ///< in copies_, counted from the first copy ever made
    bool own = false;                 ///< the payload is a copy, or in own_
  };

  void forget_first(FrameHandler& handler);
  [[nodiscard]] Queued& queued(std::size_t index) { return queue_[index & (queue_.size() - 1)]; }

  [[nodiscard]] bool make_room_to_read();
  [[nodiscard]] bool skip_filler(const TcpFrame& frame);
  void vary_length();
  void parse(FrameHandler& handler);
  void advance_payload(std::size_t bytes, FrameHandler& handler);
  std::size_t receive_once(FrameHandler& handler, bool& more);

  Fd fd_;
  bool acknowledges_late_;
  TcpReadiness* readiness_ = nullptr;

  std::vector<Queued> queue_;  // ring; [done_, tail_) modulo its size, kept below head_
  bool keeps_ = false;
  std::size_t done_ = 0;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::size_t head_sent_ = 0;  // bytes of the first frame, header included
  std::size_t queued_bytes_ = 0;
  std::size_t last_sent_ = 0;      // bytes of the last call
  bool sent_ahead_ = false;        // of what was put since the last flush
  std::vector<std::byte> copies_;  // of queued frames; ring
  std::size_t copies_begin_ = 0;   // [copies_begin_, copies_end_) modulo its size is in use
  std::size_t copies_end_ = 0;
  std::deque<std::pair<std::size_t, std::vector<std::byte>>> own_;  // by the index of its frame
  std::uint64_t sent_bytes_ = 0;                                    // where frames are kept
  std::uint64_t done_bytes_ = 0;                                    // of frames below done_
  std::uint64_t frames_received_ = 0;

  // Received and not yet looked at: [parsed_, filled_). Empty while a payload is incomplete.
  std::vector<std::byte> staging_;
  std::size_t parsed_ = 0;
  std::size_t filled_ = 0;
  bool peeks_on_ = false;      // one look after another sees what is behind the last
  std::size_t peeked_ = 0;     // of what was received, still in the socket
  int looks_ = 0;              // that brought it
  bool has_answered_ = false;  // something was sent since the last bytes came
  TcpFrame current_;
  std::byte* payload_ = nullptr;
  std::size_t payload_left_ = 0;

  bool goodbye_ = false;
  bool stalled_ = false;
  std::optional<int> broken_;
  int send_error_ = 0;
};

}  // namespace chorus
