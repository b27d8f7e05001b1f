// Connecting to a peer.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "transports/tcp/hub.hpp"
#include "transports/tcp/paths.hpp"

namespace chorus {

/// One connection of a link on its way, on the lower rank's side: it connects, says hello, waits
/// for the welcome, and begins again when that fails. (The higher rank's side is the hub.)
class TcpDial {
 public:
  TcpDial(const TcpPath& path, Rank peer_rank, int socket, bool same_kernel,
          std::uint32_t incarnation = 0);

  /// Returns the connection once both ends have proved themselves.
  [[nodiscard]] Fd progress(const TcpHub& hub, const Nonce& listener);
  void append_wake_fds(std::vector<pollfd>& fds) const;
  void abandon() { fd_.reset(); }  ///< nobody calls progress() any more
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }
  [[nodiscard]] bool hopeless() const { return hopeless_; }  ///< nobody listens there any more
  /// The peer's kernel has answered; its process has yet to.
  [[nodiscard]] bool greeted() const { return state_ == State::greeted; }

 private:
  enum class State { idle, connecting, greeted };

  [[nodiscard]] bool connected();
  void say_hello(const TcpHub& hub, const Nonce& listener);
  [[nodiscard]] bool hear_welcome(const TcpHub& hub, const Nonce& listener);
  void retry(std::string why);

  TcpPath path_;
  Rank peer_rank_;
  int socket_;
  bool same_kernel_;
  std::uint32_t incarnation_;
  State state_ = State::idle;
  Fd fd_;
  TcpHello hello_;
  TcpWelcome welcome_;
  std::size_t received_ = 0;
  std::chrono::steady_clock::time_point not_before_{};
  std::string obstacle_ = "no answer";
  bool hopeless_ = false;
};

}  // namespace chorus
