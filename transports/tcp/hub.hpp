// The listening end of a tcp transport, and what its links share.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"
#include "base/secret.hpp"
#include "transports/link/link.hpp"
#include "transports/tcp/endpoint.hpp"
#include "transports/tcp/readiness.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus {

class TcpLink;

/// A path to a peer that does not stand, of several; addresses as people write them.
struct LostPath {
  Rank peer = 0;
  std::string interface;
  std::string own;
  std::string peers;
  std::string why;
};

/// Accepts connections and keeps those whose hello proves the secret until their link asks for
/// them. Unauthenticated peers cost one descriptor and 56 bytes each, for a few seconds, and there
/// is a limit to how many are borne at once.
class TcpHub {
 public:
  TcpHub(const Endpoint& address, const Secret& secret, Rank rank, int world_size);
  /// Listens on each of `rails`; peers know the first as the address of this rank.
  TcpHub(std::vector<Rail> rails, const Secret& secret, Rank rank, int world_size);

  [[nodiscard]] const Nonce& nonce() const { return nonce_; }
  [[nodiscard]] const Secret& secret() const { return secret_; }
  [[nodiscard]] const std::vector<Rail>& rails() const { return rails_; }  ///< with their ports
  [[nodiscard]] const Endpoint& endpoint() const { return rails_.front().address; }
  /// Where this hub listens, and its nonce.
  void fill(TcpAddress& address) const;
  [[nodiscard]] Rank rank() const { return rank_; }
  /// As many cores as ranks, were they all on this machine: what a call of the kernel costs in
  /// place of a wait is not taken from another rank.
  [[nodiscard]] bool cores_to_spare() const { return cores_to_spare_; }

  /// Accepts, reads hellos, answers them, and forgets who says nothing.
  void progress();
  /// The connection that `peer` has made for its socket number `socket`, if it has and no later
  /// incarnation has come.
  [[nodiscard]] Fd take(Rank peer, int socket, std::uint32_t incarnation = 0);
  /// The latest incarnation of that socket that has come; 0 if none has.
  [[nodiscard]] std::uint32_t incarnation(Rank peer, int socket) const;
  /// Stops listening and forgets everybody; the links that are connected live on.
  void close();

  /// How long a path over `interface` is waited for once the first path of its link stands, and
  /// what came of it: where one was given up the next are waited for less.
  [[nodiscard]] std::chrono::milliseconds patience(const std::string& interface) const;
  /// Returns how many over its interface that makes, since one stood.
  int given_up(LostPath path) {
    lost_.push_back(std::move(path));
    return ++given_up_[lost_.back().interface];
  }
  [[nodiscard]] const std::vector<LostPath>& lost() const { return lost_; }
  /// Whether one over it had been given up.
  bool stands(const std::string& interface) { return given_up_.erase(interface) > 0; }

  void add(TcpLink* link) { links_.push_back(link); }
  void remove(TcpLink* link) { std::erase(links_, link); }

  /// Of the sockets of all links.
  [[nodiscard]] TcpReadiness& readiness() { return readiness_; }

  void prepare_to_sleep();
  void append_wake_fds(std::vector<pollfd>& fds);

 private:
  using Clock = std::chrono::steady_clock;

  /// Somebody who has connected and not yet proved anything.
  struct UnauthenticatedPeer {
    Fd fd;
    Clock::time_point patience_ends;
    std::size_t received = 0;
    TcpHello hello;
  };

  /// The latest connection of a rank's socket; its place stays taken when it is given away.
  struct Known {
    Fd fd;
    std::uint32_t incarnation = 0;
  };

  [[nodiscard]] std::size_t most_connections() const;
  /// Their sockets are polled one by one: to ask for all of them would take longer.
  [[nodiscard]] bool polls_each() const;
  [[nodiscard]] bool has_callers();
  void accept_all(const Fd& listener);
  /// False when the connection is of no more use as an unauthenticated peer's: proved, or to be
  /// dropped.
  bool hear(UnauthenticatedPeer& peer);
  void welcome(UnauthenticatedPeer& peer);

  const Secret secret_;
  const Nonce nonce_;
  const Rank rank_;
  const int world_size_;
  const bool cores_to_spare_;
  std::vector<Rail> rails_;
  std::vector<Fd> listeners_;  // [rails]; none once closed
  std::vector<LostPath> lost_;
  std::map<std::string, int> given_up_;               // paths, by interface
  std::vector<UnauthenticatedPeer> unauthenticated_;  // oldest first
  std::map<std::pair<Rank, int>, Known> known_;
  std::vector<TcpLink*> links_;
  TcpReadiness readiness_;
  std::vector<pollfd> polled_listeners_;
  Fd timer_;  // for links that nothing else wakes, once one has wanted it
};

}  // namespace chorus
