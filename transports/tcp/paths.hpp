// The paths of a link between two hosts with several cables, and who carries what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transports/tcp/endpoint.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus {

/// One way from an interface of this rank to one of a peer's, with the sockets that take it.
struct TcpPath {
  Endpoint own;
  Endpoint peer;
  std::string interface = {};  ///< that its sockets are bound to; empty: routes decide
  std::string network = {};    ///< as NetworkShare has it
  int first_socket = 0;
  int num_sockets = 1;

  [[nodiscard]] bool has(int socket) const {
    return socket >= first_socket && socket < first_socket + num_sockets;
  }
};

/// The paths between the rank of `own` interfaces and `peer`, the same on both ends. The first
/// joins the first addresses of both and has `num_sockets` sockets. Each further one joins two
/// interfaces, of which each serves one path, in the same network; it has as many sockets as the
/// first has for data. `same_network`: the ranks share one network namespace and so its cables:
/// only further addresses of loopback, which somebody asked for, make further paths there.
[[nodiscard]] std::vector<TcpPath> paths_between(std::span<const Rail> own, const TcpAddress& peer,
                                                 int num_sockets, bool same_network,
                                                 bool peer_is_higher);

/// How fast the network takes a stream's bytes while it has some to send.
class StreamRate {
 public:
  /// What the kernel has counted by now, while `backlog_bytes` were on their way or waited to be.
  /// Counts if it has counted more since the last time; of a stream with little to do if that is
  /// more than was known.
  void sample(const StreamProgress& now, std::size_t backlog_bytes);
  /// The stream had little to do for a while though there was something: perhaps it is faster than
  /// it is taken for.
  void passed_over();
  /// 0 as long as it is unknown.
  [[nodiscard]] double bytes_per_s() const { return bytes_per_s_ * doubt_; }
  /// 0 until it was seen for long enough that what queues take at once does not flatter it.
  [[nodiscard]] double steady_bytes_per_s() const;

 private:
  std::uint64_t acknowledged_bytes_ = 0;  // at the last sample
  int samples_ = 0;
  double bytes_per_s_ = 0;
  double doubt_ = 1;
};

/// A stream as share_out() and divided_out() see it.
struct StreamLoad {
  double bytes_per_s = 0;         ///< 0: unknown
  std::size_t backlog_bytes = 0;  ///< given to it and not acknowledged
  bool has_room = false;          ///< it can take a piece now
};

/// The stream that is to carry the next `piece_bytes` of the `waiting_bytes` that all of them have
/// yet to carry: the one that would be done first, if it has room; else one that has next to
/// nothing to do and whose piece would not arrive after everything else could have. Nothing: better
/// wait.
[[nodiscard]] std::optional<std::size_t> share_out(std::span<const StreamLoad> streams,
                                                   std::size_t piece_bytes,
                                                   std::size_t waiting_bytes);

/// What part of the bytes of a call a path is to carry, and what it has been given of them.
struct PathShare {
  double share = 0;
  double expected_bytes_per_s = 0;  ///< 0: nobody knows
  double given_bytes = 0;

  /// All bytes of which it has its share with `more_bytes` of its own. `share` > 0.
  [[nodiscard]] double covers(std::size_t more_bytes = 0) const {
    return (given_bytes + static_cast<double>(more_bytes)) / share;
  }
};

/// The same where the paths [path_of_stream[i]] of the streams have shares: the stream with the
/// least to do, of the path that is most behind its share; not one that would still carry the piece
/// when the others could have carried all that waits. Where that one has no room another may run
/// ahead by a little. Nothing: better wait.
[[nodiscard]] std::optional<std::size_t> divided_out(std::span<const StreamLoad> streams,
                                                     std::span<const std::size_t> path_of_stream,
                                                     std::span<const PathShare> paths,
                                                     std::size_t piece_bytes,
                                                     std::size_t waiting_bytes);

/// The path that is to carry a message whole: the first to have done so, by what they were given.
/// Nothing: none has a share.
[[nodiscard]] std::optional<std::size_t> path_of_whole(std::span<const PathShare> paths,
                                                       std::size_t size_bytes);

}  // namespace chorus
