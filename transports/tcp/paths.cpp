#include "transports/tcp/paths.hpp"

#include <algorithm>
#include <limits>

namespace chorus {
namespace {

/// The kernel tells the rate of about one round trip: a mean of several is needed, of few at first.
constexpr int kEarlySamples = 8;
constexpr double kEarlyWeight = 0.6;
constexpr double kWeight = 0.2;
constexpr double kMostChange = 3;
/// The last bytes of a few wait for an acknowledgement that takes its time, up to 40 ms: less than
/// this on its way shows no rate.
constexpr std::size_t kLittleBacklog = 32 * 1024;
/// A stream that little is given to is not measured: it is believed to be faster by so much with
/// each look, and tried again; not if it would have to be far faster, since a piece on a path of a
/// hundredth of the others' rate costs more than ever to know.
constexpr double kDoubt = 1.02;
constexpr double kMostDoubt = 2;
/// A little at once is soon through whatever the path's rate.
constexpr double kSlowRise = 1.02;

/// The published addresses of a rank, the first of them too.
std::vector<Rail> rails_of(const TcpAddress& address) {
  std::vector<Rail> rails = {
      {.interface = {}, .address = Endpoint::from(address), .prefix = address.prefix}};
  for (std::size_t i = 0; i < address.num_rails; ++i) {
    rails.push_back({.interface = {},
                     .address = Endpoint::from(address.rails[i]),
                     .prefix = address.rails[i].prefix});
  }
  return rails;
}

bool joined(const Rail& a, const Rail& b, bool same_network) {
  if (a.prefix != b.prefix || !a.address.same_network(b.address, a.prefix)) return false;
  if (same_network) return a.address.loopback() && b.address.loopback();
  // The same private address on both: each would find itself.
  return !a.address.loopback() && !a.address.same_ip(b.address);
}

}  // namespace

std::vector<TcpPath> paths_between(std::span<const Rail> own, const TcpAddress& peer,
                                   int num_sockets, bool same_network, bool peer_is_higher) {
  const std::vector<Rail> theirs = rails_of(peer);
  std::vector<TcpPath> paths = {{.own = own.front().address,
                                 .peer = theirs.front().address,
                                 .first_socket = 0,
                                 .num_sockets = num_sockets}};
  // Both ends go through the pairs in one order: the lower rank's interfaces, the higher one's.
  const std::span<const Rail> low = peer_is_higher ? own : std::span<const Rail>(theirs);
  const std::span<const Rail> high = peer_is_higher ? std::span<const Rail>(theirs) : own;
  std::vector<bool> taken(high.size(), false);
  for (std::size_t i = 1; i < low.size(); ++i) {
    for (std::size_t j = 1; j < high.size(); ++j) {
      if (taken[j] || !joined(low[i], high[j], same_network)) continue;
      taken[j] = true;
      const Rail& here = peer_is_higher ? low[i] : high[j];
      const Rail& there = peer_is_higher ? high[j] : low[i];
      paths.push_back({.own = here.address,
                       .peer = there.address,
                       .interface = here.interface,
                       .network = here.network()});
      break;
    }
  }
  const auto further = static_cast<int>(paths.size()) - 1;
  const int each = further == 0 ? 0
                                : std::min(std::max(1, num_sockets - 1),
                                           (kMaxLinkSockets - num_sockets) / further);
  for (int i = 0; i < further; ++i) {
    paths[static_cast<std::size_t>(i) + 1].first_socket = num_sockets + i * each;
    paths[static_cast<std::size_t>(i) + 1].num_sockets = each;
  }
  return paths;
}

void StreamRate::sample(const StreamProgress& now, std::size_t backlog_bytes) {
  if (now.last_bytes_per_s == 0 || now.acknowledged_bytes == acknowledged_bytes_) return;
  acknowledged_bytes_ = now.acknowledged_bytes;
  const auto seen = static_cast<double>(now.last_bytes_per_s);
  const bool loaded = now.had_enough_to_send && backlog_bytes >= kLittleBacklog;
  if (!loaded) {
    if (bytes_per_s_ > 0 && seen > bytes_per_s_) bytes_per_s_ *= kSlowRise;
    return;
  }
  doubt_ = 1;
  const bool early = samples_++ < kEarlySamples;
  if (bytes_per_s_ == 0) bytes_per_s_ = seen;
  // What a bucket or a queue lets through at once, or a late look, is many times off.
  const double likely = std::clamp(seen, bytes_per_s_ / kMostChange, bytes_per_s_ * kMostChange);
  bytes_per_s_ += (early ? kEarlyWeight : kWeight) * (likely - bytes_per_s_);
}

void StreamRate::passed_over() { doubt_ = std::min(doubt_ * kDoubt, kMostDoubt); }

double StreamRate::steady_bytes_per_s() const {
  return samples_ > kEarlySamples ? bytes_per_s_ : 0;
}

std::optional<std::size_t> share_out(std::span<const StreamLoad> streams, std::size_t piece_bytes,
                                     std::size_t waiting_bytes) {
  double known = 0, sum = 0;
  for (const StreamLoad& stream : streams) {
    sum += stream.bytes_per_s;
    known += stream.bytes_per_s > 0 ? 1 : 0;
  }
  const double typical = known > 0 ? sum / known : 1;
  double rates = 0;
  auto backlog = static_cast<double>(waiting_bytes);
  std::size_t first = 0;
  std::optional<std::size_t> first_idle;
  double least = std::numeric_limits<double>::infinity();
  double least_idle = least;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const double rate = streams[i].bytes_per_s > 0 ? streams[i].bytes_per_s : typical;
    rates += rate;
    backlog += static_cast<double>(streams[i].backlog_bytes);
    const double done = static_cast<double>(streams[i].backlog_bytes + piece_bytes) / rate;
    if (done < least) {
      least = done;
      first = i;
    }
    if (streams[i].has_room && streams[i].backlog_bytes <= piece_bytes && done < least_idle) {
      least_idle = done;
      first_idle = i;
    }
  }
  if (streams[first].has_room) return first;
  return least_idle <= backlog / rates ? first_idle : std::nullopt;
}

std::optional<std::size_t> divided_out(std::span<const StreamLoad> streams,
                                       std::span<const std::size_t> path_of_stream,
                                       std::span<const PathShare> paths, std::size_t piece_bytes,
                                       std::size_t waiting_bytes) {
  // Of all bytes: what a path that sends without a pause gets through while another one's bytes
  // wait for acknowledgements. In the end it changes the shares of a call of megabytes by little.
  constexpr double kAheadBytes = 256 * 1024;
  const auto path = [&](std::size_t stream) -> const PathShare& {
    return paths[path_of_stream[stream]];
  };
  double least = std::numeric_limits<double>::infinity();
  double soonest = least;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (path(i).share <= 0) continue;
    least = std::min(least, path(i).covers());
    soonest = std::min(soonest, path(i).covers(piece_bytes));
  }
  // The path that ends the piece first always serves; another one only if it has carried the piece
  // by the time that all that waits could be.
  const double in_time = std::max(soonest, least + static_cast<double>(waiting_bytes));
  const auto serves = [&](std::size_t i) {
    return path(i).share > 0 && path(i).covers(piece_bytes) <= in_time;
  };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (!serves(i) || !streams[i].has_room || path(i).covers() > soonest + kAheadBytes) {
      continue;
    }
    if (!best || path(i).covers() < path(*best).covers() ||
        (path(i).covers() == path(*best).covers() &&
         streams[i].backlog_bytes < streams[*best].backlog_bytes)) {
      best = i;
    }
  }
  return best;
}

std::optional<std::size_t> path_of_whole(std::span<const PathShare> paths, std::size_t size_bytes) {
  std::optional<std::size_t> first;
  for (std::size_t p = 0; p < paths.size(); ++p) {
    if (paths[p].share <= 0) continue;
    if (!first || paths[p].covers(size_bytes) < paths[*first].covers(size_bytes)) first = p;
  }
  return first;
}

}  // namespace chorus
