// How a tcp link connects, and how the paths of one that has several share its bytes.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/clock.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "transports/tcp/link.hpp"

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
/// A message of no more is a credit, a signal, or so short that only its latency counts.
constexpr std::size_t kSignalBytes = 512;
/// Of acknowledgements, where somebody waits for his memory.
constexpr std::int64_t kBetweenLooksNs = 50'000;
constexpr std::size_t kSpareFrames = 256;
/// Of a stream's queue: pieces that the kernel has and the peer's has not, beside all small puts
/// under way, and words of losses.
constexpr std::size_t kPiecesUnderWay = 1024;

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
    failure_ = "it closed the connection without a goodbye";
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
  frames_ = static_cast<std::size_t>(config_.num_channels) * static_cast<std::size_t>(window_);
  dials_.clear();
  if (!shares_) {
    for (Fd& fd : ready_) {
      tune(fd.get(), same_kernel_);
      const bool late = hub_->cores_to_spare() && same_kernel_;
      streams_.emplace_back(std::move(fd), frames_, late);
      streams_.back().watch(&hub_->readiness());
      if (late) streams_.back().begin_with_filler();
      path_of_stream_.push_back(0);
    }
    return;
  }
  waiting_.resize(std::bit_ceil(frames_));
  rates_.resize(ready_.size() - express_streams());
  unsent_limits_.resize(rates_.size());
  watches_.resize(ready_.size());
  owed_.resize(ready_.size());
  states_.resize(paths_.size());
  const std::int64_t now = steady_ns();
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    states_[p].changed_at_ns = now;
    std::vector<Fd> sockets;
    for (int s = paths_[p].first_socket; paths_[p].has(s); ++s) {
      streams_.emplace_back(Fd(), 0);
      path_of_stream_.push_back(p);
      sockets.push_back(std::move(ready_[static_cast<std::size_t>(s)]));
    }
    if (!given_up_[p]) start_streams(p, std::move(sockets));
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

void TcpLink::start_streams(std::size_t path, std::vector<Fd> sockets) {
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    const std::size_t stream = static_cast<std::size_t>(paths_[path].first_socket) + i;
    tune(sockets[i].get(), same_kernel_);
    streams_[stream] = TcpStream(std::move(sockets[i]), 2 * frames_ + kPiecesUnderWay);
    streams_[stream].keep_frames();
    streams_[stream].watch(&hub_->readiness());
    watches_[stream] = {.moved_at_ns = steady_ns()};
    owed_[stream] = {};
    if (stream < express_streams()) continue;
    const std::size_t data = stream - express_streams();
    rates_[data] = {};
    unsent_limits_[data] = kLeastUnsent;
    limit_unsent(streams_[stream].fd(), kLeastUnsent);
  }
  states_[path].up = true;
  states_[path].lived.push_back(states_[path].incarnation);
  choose_express();
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
  outgoing_[frame.channel].pieces_read[frame.sequence & (window_ - 1)] =
      static_cast<std::uint8_t>(put.frame.pieces);
  waiting_bytes_ += src.size();
  if (src.size() < kSmallShared || waiting_bytes_ >= kMuchWaiting) share_out_waiting();
}

// As a call begins. What earlier ones gave a path is carried by now, or soon, and of a short call
// nothing shall go by a slow path only because that is behind.
void TcpLink::divide(const std::shared_ptr<const NetworkShares>& shares) {
  if (!shares_) return;
  for (PathShare& path : path_shares_) path.given_bytes = 0;
  if (shares == division_) return;
  division_ = shares;
  path_shares_.clear();
  if (!division_) return;
  std::vector<PathShare> by_path(paths_.size());
  for (const NetworkShare& part : *division_) {
    if (part.share <= 0) continue;
    const auto path = std::ranges::find(paths_, part.network, &TcpPath::network);
    if (path == paths_.end()) {
      if (!std::exchange(told_of_no_path_, true)) {
        log(LogLevel::warn, fmt::format("[rank {}]", hub_->rank()),
            fmt::format(
                "tcp: network {} joins this host with that of rank {} and was measured, but this "
                "link has no path by it: did an interface get its carrier or address only after "
                "the ranks had met? Its bytes go by the other paths, slower than predicted",
                part.network, peer_.rank));
      }
      return;
    }
    by_path[static_cast<std::size_t>(path - paths_.begin())] = {
        .share = part.share, .expected_bytes_per_s = part.bytes_per_s};
  }
  path_shares_ = std::move(by_path);
}

bool TcpLink::joined_by(std::string_view network) const {
  if (!shares_) return Link::joined_by(network);
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (paths_[p].network == network) return p < states_.size() && states_[p].up;
  }
  return false;
}

/// Not by a path that is away, nor by one that carries far less than it was expected to: then each
/// takes what it can, until there is a plan that knows.
bool TcpLink::holds_to_shares(const std::vector<bool>& carry) const {
  constexpr double kFarLess = 0.25;
  for (std::size_t p = 0; p < path_shares_.size(); ++p) {
    if (path_shares_[p].share <= 0) continue;
    if (!carry[p]) return false;
    double rate = 0;
    for (std::size_t data = 0; data < rates_.size(); ++data) {
      if (path_of_stream_[express_streams() + data] != p) continue;
      const double known = rates_[data].steady_bytes_per_s();
      rate += known > 0 ? known : path_shares_[p].expected_bytes_per_s;
    }
    if (rate < kFarLess * path_shares_[p].expected_bytes_per_s) return false;
  }
  return !path_shares_.empty();
}

// By the first path alone, a call of many small messages would wait for it and leave the others
// idle. Credits and signals are too few bytes for that, and must not queue behind data.
std::size_t TcpLink::stream_of_small(std::size_t size_bytes) {
  if (!divides_ || size_bytes <= kSignalBytes) return express_;
  const auto path = path_of_whole(path_shares_, size_bytes);
  if (!path || !states_[*path].up) return express_;
  path_shares_[*path].given_bytes += static_cast<double>(size_bytes);
  std::optional<std::size_t> chosen;
  for (std::size_t i = express_streams(); i < streams_.size(); ++i) {
    if (path_of_stream_[i] != *path) continue;
    if (!chosen || streams_[i].queued_bytes() < streams_[*chosen].queued_bytes()) chosen = i;
  }
  return chosen.value_or(express_);
}

std::optional<std::size_t> TcpLink::next_load(std::size_t piece_bytes) const {
  return divides_ ? divided_out(loads_, load_paths_, path_shares_, piece_bytes, waiting_bytes_)
                  : share_out(loads_, piece_bytes, waiting_bytes_);
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

/// The peer's memory is not free before it has the acknowledgement, for which the kernel waits up
/// to 40 ms in case there are bytes to send it with. What is small was copied.
void TcpLink::note_received(std::size_t stream) {
  Owed& owed = owed_[stream];
  if (!owed.any) owed = {.any = true, .since_frames = frames_arrived_};
  owed.large = std::exchange(brought_large_, false) || owed.large;
  if (!owed.large || !streams_[stream].between_frames()) return;
  acknowledge_at_once(streams_[stream].fd());
  owed = {};
}

/// A credit alone on its stream, not acknowledged for up to 40 ms, holds the peer's window however
/// many later puts other streams have brought. At most one acknowledgement more for every few puts.
void TcpLink::acknowledge_overdue() {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!owed_[i].any || frames_arrived_ - owed_[i].since_frames < window_ / 4) continue;
    if (stands(i)) acknowledge_at_once(streams_[i].fd());
    owed_[i] = {};
  }
}

/// Also when nothing waits: what is on its way shows the rates best when no more comes behind it.
void TcpLink::look_at_streams(std::int64_t now_ns) {
  const std::size_t express = express_streams();
  const bool look_at_rates = now_ns - rates_at_ns_ > kBetweenRatesNs;
  if (look_at_rates) rates_at_ns_ = now_ns;
  looked_at_ns_ = now_ns;
  busy_ = false;
  loads_.clear();
  load_streams_.clear();
  load_paths_.clear();
  wait_ns_ = 0;
  const std::vector<bool> carry = carrying(now_ns);
  divides_ = holds_to_shares(carry);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!stands(i)) continue;
    TcpStream& stream = streams_[i];
    stream.flush(*this);
    // Most streams of many have nothing on its way, and to ask is a call of the kernel.
    const auto unacked = stream.keeps_any() ? unacknowledged(stream.fd()) : std::size_t{0};
    // A broken one's count means nothing.
    if (unacked && !stream.broken()) stream.acknowledged(*unacked, *this);
    if (i < express) continue;
    const std::size_t data = i - express;
    const std::size_t backlog = stream.queued_bytes() + unacked.value_or(0);
    if (look_at_rates) look_at_rate(data, backlog);
    const double rate = rates_[data].bytes_per_s();
    busy_ = busy_ || backlog > 0;
    if (rate > 0) wait_ns_ = std::max(wait_ns_, 1e9 * static_cast<double>(backlog) / rate);
    if (!carry[path_of_stream_[i]]) continue;
    loads_.push_back({.bytes_per_s = rate,
                      .backlog_bytes = backlog,
                      .has_room = stream.queue_empty() && stream.room() > frames_ + kSpareFrames});
    load_streams_.push_back(i);
    load_paths_.push_back(path_of_stream_[i]);
  }
  if (look_at_rates) choose_express();
}

void TcpLink::share_out_waiting() {
  const bool waits = waiting_bytes_ > 0 || !resend_.empty();
  if (!waits && unsettled_ == 0 && !busy_) return;
  const std::int64_t now = steady_ns();
  const bool hurry = unreleased_ > 0 || tight_;
  if (!waits && now - looked_at_ns_ <= (hurry ? kBetweenLooksNs : kBetweenRatesNs)) return;
  tight_ = false;
  look_at_streams(now);
  if (!send_again()) return;
  while (waiting_bytes_ > 0) {
    Waiting& put = waiting_[waiting_head_ & (waiting_.size() - 1)];
    const std::size_t piece = std::min(put.piece_bytes, put.bytes - put.shared_out);
    const auto chosen = next_load(piece);
    if (!chosen) return;
    if (divides_) path_shares_[load_paths_[*chosen]].given_bytes += static_cast<double>(piece);
    TcpFrame frame = put.frame;
    frame.offset += put.shared_out;
    frame.length = piece;
    const std::byte* const payload = put.payload + put.shared_out;
    put.shared_out += piece;
    waiting_bytes_ -= piece;
    if (put.shared_out == put.bytes) ++waiting_head_;
    streams_[load_streams_[*chosen]].enqueue(frame, payload);
    count_load(*chosen, sizeof frame + piece);
  }
}

void TcpLink::count_load(std::size_t load, std::size_t bytes) {
  TcpStream& stream = streams_[load_streams_[load]];
  stream.flush(*this);
  busy_ = true;
  loads_[load].backlog_bytes += bytes;
  loads_[load].has_room = stream.queue_empty() && stream.room() > frames_ + kSpareFrames;
}

/// What other connections have lost goes before all else. False if some of it has to wait.
bool TcpLink::send_again() {
  while (!resend_.empty()) {
    TcpStream::Kept& kept = resend_.front();
    const std::size_t bytes = sizeof kept.frame + kept.payload.size();
    if (kept.payload.size() <= express_bytes_) {
      if (streams_[express_].room() <= frames_ + kSpareFrames) return false;
      streams_[express_].enqueue_own(kept.frame, std::move(kept.payload));
      streams_[express_].flush(*this);
    } else {
      const auto chosen = share_out(loads_, bytes, bytes);
      if (!chosen) return false;
      streams_[load_streams_[*chosen]].enqueue_own(kept.frame, std::move(kept.payload));
      count_load(*chosen, bytes);
    }
    resend_.pop_front();
  }
  return true;
}

}  // namespace chorus
