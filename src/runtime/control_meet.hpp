// One attempt to meet a coordinator: connect, and prove the secret to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/secret.hpp"
#include "runtime/control_net.hpp"
#include "runtime/control_wire.hpp"

namespace chorus::net {

using Deadline = std::chrono::steady_clock::time_point;

/// A connected socket, or none and the cause in `error` (errno).
Socket connect_to(const Endpoint& endpoint, Deadline deadline, int& error);

/// Who comes, and where.
struct Caller {
  Rank rank = 0;
  int world_size = 1;
  Secret secret;
  std::uint64_t session = 0;  ///< wire::Hello::session
};

/// A connection over which both have proved the secret.
struct Meeting {
  Socket socket;
  wire::Inbox inbox{wire::kMaxHandshake};
  std::string host_text;  ///< the coordinator's process, "pid 12 on host"
  bool launcher = false;  ///< it lives in a launcher
  bool hosting = false;   ///< it lives in this process
};

enum class Handshake : std::uint8_t { done, broken, later };

/// Over the connection `meeting.socket` to the coordinator at `place`. `why` says why one has to
/// try again: it broke before the answer, or the answer is to come later. Throws wire::Malformed;
/// BootstrapError if the coordinator refuses this rank, or does not know the secret.
Handshake shake_hands(Meeting& meeting, const Caller& caller, const std::string& place,
                      Deadline deadline, std::string& why);

}  // namespace chorus::net
