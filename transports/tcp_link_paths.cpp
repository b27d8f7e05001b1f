// How a tcp link connects, and how the paths of one that has several share its bytes.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"
#include "transports/tcp_link.hpp"

namespace chorus {
namespace {

/// Pieces of a shared put: as much as all paths carry in so long, so that the last pieces on paths
/// of different rates end within that; each costs a header and calls of the kernel.
constexpr double kSharedPieceSeconds = 0.25e-3;
constexpr std::size_t kLeastSharedPiece = 16 * 1024;
constexpr std::size_t kFirstSharedPiece = 64 * 1024;  // while rates are unknown
constexpr std::size_t kMostSharedPiece = 1 << 20;
/// What the kernel takes for a path and has not sent: enough to be busy for so long, and little to
/// be bound to a path that turns out to be slow.
constexpr double kUnsentSeconds = 0.5e-3;
constexpr int kLeastUnsent = 16 * 1024;
constexpr int kMostUnsent = 512 * 1024;
/// What makes share() look for room before flush() is called.
constexpr std::size_t kMuchWaiting = 512 * 1024;
constexpr std::int64_t kBetweenRatesNs = 2'000'000;
constexpr std::size_t kLittleSharedOut = 64 * 1024;
constexpr std::size_t kSmallShared = 32 * 1024;

std::uint64_t bits_of(const TcpPath& path) {
  std::uint64_t bits = 0;
  for (int i = 0; i < path.num_sockets; ++i) bits |= std::uint64_t{1} << (path.first_socket + i);
  return bits;
}

}  // namespace

bool TcpLink::connect_step() {
  hub_->progress();
  if (!(dials() ? dial_all() : await_all())) {
    if (std::chrono::steady_clock::now() < deadline_) return false;
    failure_ = fmt::format("no connection within {} ms: {}", config_.timeout_ms, obstacle_);
    fail();
  }
  make_streams();
  return true;
}

bool TcpLink::dial_all() {
  bool all = true;
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (given_up_[p]) continue;
    bool stands = true;
    bool hopeless = false;
    std::string obstacle;
    for (int s = paths_[p].first_socket; paths_[p].has(s); ++s) {
      const auto socket = static_cast<std::size_t>(s);
      if (!ready_[socket]) ready_[socket] = dials_[socket].progress(*hub_, peer_.nonce);
      if (ready_[socket]) continue;
      stands = false;
      obstacle = dials_[socket].obstacle();
      hopeless = hopeless || dials_[socket].hopeless();
      if (p == 0 && hopeless) {
        failure_ = obstacle;
        fail();
      }
    }
    if (p == 0) {
      if (!stands) {
        obstacle_ = obstacle;
      } else if (first_stands_ == decltype(first_stands_){}) {
        first_stands_ = now;
      }
    } else if (!stands) {
      const bool first_stands = first_stands_ != decltype(first_stands_){};
      const bool late = first_stands && now - first_stands_ > hub_->patience(paths_[p].interface);
      if (hopeless || late) give_up(p, obstacle);
    }
    all = all && (stands || given_up_[p]);
  }
  return all && announce_paths();
}

bool TcpLink::announce_paths() {
  if (paths_.size() == 1) return true;
  announced_.sockets = 0;
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (!given_up_[p]) announced_.sockets |= bits_of(paths_[p]);
    if (!given_up_[p]) hub_->stands(paths_[p].interface);
  }
  // The socket is new and takes so little at once, or is broken.
  if (::send(ready_.front().get(), &announced_, sizeof announced_, MSG_DONTWAIT | MSG_NOSIGNAL) !=
      sizeof announced_) {
    failure_ = "it closed the connection at once";
    fail();
  }
  return true;
}

bool TcpLink::await_all() {
  const bool heard = paths_.size() == 1 || announced_bytes_ == sizeof announced_;
  for (std::size_t socket = 0; socket < (heard ? ready_.size() : 1); ++socket) {
    if (!ready_[socket]) ready_[socket] = hub_->take(peer_.rank, static_cast<int>(socket));
  }
  if (paths_.size() == 1) {
    return std::all_of(ready_.begin(), ready_.end(), [](const Fd& fd) { return bool(fd); });
  }
  return ready_.front() && hear_paths();
}

bool TcpLink::hear_paths() {
  obstacle_ = "it has not said which paths stand";
  // No byte more than that: frames may be right behind it.
  const ssize_t got =
      ::recv(ready_.front().get(), reinterpret_cast<char*>(&announced_) + announced_bytes_,
             sizeof announced_ - announced_bytes_, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    failure_ = "it closed the connection without a farewell";
    fail();
  }
  announced_bytes_ += static_cast<std::size_t>(got);
  if (announced_bytes_ < sizeof announced_) return false;
  bool honest = announced_.magic == TcpPaths::kMagic;
  std::uint64_t known = 0;
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    const std::uint64_t bits = bits_of(paths_[p]);
    const std::uint64_t of_path = announced_.sockets & bits;
    known |= bits;
    honest = honest && (of_path == bits || (of_path == 0 && p > 0));
    for (int s = paths_[p].first_socket; paths_[p].has(s); ++s) {
      const auto socket = static_cast<std::size_t>(s);
      if (!ready_[socket]) ready_[socket] = hub_->take(peer_.rank, s);
      // It was welcomed before that was said.
      honest = honest && (of_path == 0 || ready_[socket]);
    }
    if (of_path == 0) give_up(p, "the other end gave it up");
  }
  if (!honest || (announced_.sockets & ~known) != 0) {
    failure_ = "it sent paths that do not exist";
    fail();
  }
  return true;
}

void TcpLink::give_up(std::size_t path, const std::string& why) {
  given_up_[path] = true;
  for (int s = paths_[path].first_socket; paths_[path].has(s); ++s) {
    const auto socket = static_cast<std::size_t>(s);
    ready_[socket].reset();
    if (dials()) dials_[socket].abandon();
  }
  const TcpPath& lost = paths_[path];
  // One line for a cable, not one for every peer behind it.
  const bool first = hub_->given_up({.peer = peer_.rank,
                                     .interface = lost.interface,
                                     .own = lost.own.ip_text(),
                                     .peers = lost.peer.ip_text(),
                                     .why = why}) == 1;
  log(first ? LogLevel::warn : LogLevel::debug, fmt::format("[rank {}]", hub_->rank()),
      fmt::format(
          "tcp: no path from {} ({}) to rank {} at {}: {}; its bytes go by the other paths. "
          "CHORUS_SOCKET_IFNAME names the interfaces to use",
          lost.interface, lost.own.ip_text(), peer_.rank, lost.peer.ip_text(), why));
}

void TcpLink::make_streams() {
  const std::size_t frames =
      static_cast<std::size_t>(config_.num_channels) * static_cast<std::size_t>(window_);
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (given_up_[p]) continue;
    shares_ = p > 0;
    for (int s = paths_[p].first_socket; paths_[p].has(s); ++s) {
      Fd& fd = ready_[static_cast<std::size_t>(s)];
      tune(fd.get(), same_kernel_);
      const bool late = hub_->cores_to_spare() && same_kernel_;
      streams_.emplace_back(std::move(fd), frames, late);
      if (late) streams_.back().begin_with_filler();
      path_of_stream_.push_back(p);
    }
  }
  dials_.clear();
  quiet_turns_.resize(streams_.size());
  if (!shares_) return;
  waiting_.resize(std::bit_ceil(frames));
  rates_.resize(streams_.size() - express_streams());
  loads_.resize(rates_.size());
  unsent_limits_.assign(rates_.size(), kLeastUnsent);
  for (std::size_t i = express_streams(); i < streams_.size(); ++i) {
    limit_unsent(streams_[i].fd(), kLeastUnsent);
  }
  tell_paths();
}

void TcpLink::tell_paths() const {
  if (!log_enabled(LogLevel::debug)) return;
  std::string text;
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (given_up_[p]) continue;
    text += fmt::format("{}{} to {}", text.empty() ? "" : ", ", paths_[p].own.ip_text(),
                        paths_[p].peer.ip_text());
  }
  log(LogLevel::debug, fmt::format("[rank {}]", hub_->rank()),
      fmt::format("tcp: paths to rank {}: {}", peer_.rank, text));
}

void TcpLink::share(std::span<const std::byte> src, const TcpFrame& frame) {
  double rates = 0;
  for (const StreamRate& rate : rates_) rates += rate.steady_bytes_per_s();
  std::size_t piece = rates > 0 ? std::clamp(static_cast<std::size_t>(rates * kSharedPieceSeconds),
                                             kLeastSharedPiece, kMostSharedPiece)
                                : kFirstSharedPiece;
  piece = std::max(piece, (src.size() + TcpFrame::kMostPieces - 1) / TcpFrame::kMostPieces);
  Waiting& put = waiting_[waiting_tail_++ & (waiting_.size() - 1)];
  put = {.frame = frame, .payload = src.data(), .bytes = src.size(), .piece_bytes = piece};
  put.frame.pieces = static_cast<std::uint16_t>((src.size() + piece - 1) / piece);
  outgoing_[frame.channel].pieces_left[frame.sequence & (window_ - 1)] =
      static_cast<std::uint8_t>(put.frame.pieces);
  waiting_bytes_ += src.size();
  if (src.size() < kSmallShared || waiting_bytes_ >= kMuchWaiting) share_out_waiting();
}

void TcpLink::look_at_rate(std::size_t data_stream, std::size_t backlog_bytes) {
  const int fd = streams_[express_streams() + data_stream].fd();
  const auto progress = progress_of(fd);
  if (!progress) return;
  if (waiting_bytes_ > 0 && backlog_bytes < kLittleSharedOut) rates_[data_stream].passed_over();
  rates_[data_stream].sample(*progress, backlog_bytes);
  const double wanted = std::clamp<double>(
      rates_[data_stream].steady_bytes_per_s() * kUnsentSeconds, kLeastUnsent, kMostUnsent);
  int& limit = unsent_limits_[data_stream];
  if (wanted <= 1.5 * limit && wanted >= limit / 1.5) return;
  limit = static_cast<int>(wanted);
  limit_unsent(fd, limit);
}

/// Also when nothing waits: what is on its way shows the rates best when no more comes behind it.
void TcpLink::look_at_streams(std::int64_t now_ns) {
  const std::size_t express = express_streams();
  const bool look_at_rates = now_ns - rates_at_ns_ > kBetweenRatesNs;
  if (look_at_rates) rates_at_ns_ = now_ns;
  busy_ = false;
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    TcpStream& stream = streams_[express + i];
    stream.flush(*this);
    const std::size_t backlog = stream.queued_bytes() + unacknowledged(stream.fd());
    if (look_at_rates) look_at_rate(i, backlog);
    loads_[i] = {.bytes_per_s = rates_[i].bytes_per_s(),
                 .backlog_bytes = backlog,
                 .has_room = stream.queue_empty()};
    busy_ = busy_ || backlog > 0;
  }
}

void TcpLink::share_out_waiting() {
  if (waiting_bytes_ == 0 && !busy_) return;
  const std::int64_t now = steady_ns();
  if (waiting_bytes_ == 0 && now - rates_at_ns_ <= kBetweenRatesNs) return;
  look_at_streams(now);
  while (waiting_bytes_ > 0) {
    Waiting& put = waiting_[waiting_head_ & (waiting_.size() - 1)];
    const std::size_t piece = std::min(put.piece_bytes, put.bytes - put.shared_out);
    const auto chosen = share_out(loads_, piece, waiting_bytes_);
    if (!chosen) return;
    TcpFrame frame = put.frame;
    frame.offset += put.shared_out;
    frame.length = piece;
    const std::byte* const payload = put.payload + put.shared_out;
    put.shared_out += piece;
    waiting_bytes_ -= piece;
    if (put.shared_out == put.bytes) ++waiting_head_;
    TcpStream& stream = streams_[express_streams() + *chosen];
    stream.enqueue(frame, payload);
    stream.flush(*this);
    busy_ = true;
    loads_[*chosen].backlog_bytes += sizeof frame + piece;
    loads_[*chosen].has_room = stream.queue_empty();
  }
}

}  // namespace chorus
