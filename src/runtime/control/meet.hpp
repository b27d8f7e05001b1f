// One attempt to meet a coordinator: connect, and prove the secret to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/secret.hpp"
#include "chorus/error.hpp"
#include "runtime/control/net.hpp"
#include "runtime/control/wire.hpp"

namespace chorus {
class Relay;
}  // namespace chorus

namespace chorus::net {

using Deadline = std::chrono::steady_clock::time_point;

/// A connected socket, or none and the cause in `error` (errno).
Socket connect_to(const Endpoint& endpoint, Deadline deadline, int& error);

/// A socket that is being connected.
struct Connecting {
  Socket socket;
  Endpoint endpoint;
};
/// To all of these at once: of paths that are cut the network says nothing.
std::vector<Connecting> start_connecting(std::span<const wire::Place> places);
/// Takes out the first that is connected, and those that failed; nothing by `deadline`, or if none
/// is left.
std::optional<Connecting> first_connected(std::vector<Connecting>& all, Deadline deadline,
                                          int& error);

/// The others go on without the rank that comes back, or have ended: no coordinator is left for it.
class GoneOn : public BootstrapError {
 public:
  using BootstrapError::BootstrapError;
};

/// Something listens there, and the connection stayed silent, or ended, before the answer.
class Unanswered : public BootstrapError {
 public:
  using BootstrapError::BootstrapError;
};

/// Nothing listens any more where this rank was before: that process has ended.
class HostEnded : public BootstrapError {
 public:
  using BootstrapError::BootstrapError;
};

/// Who comes, and where.
struct Caller {
  Rank rank = 0;
  int world_size = 1;
  Secret secret = {};
  std::uint64_t session = 0;  ///< wire::Hello::session
  // Of a relay: where other relays find it.
  std::string relay_address = {};
  std::uint16_t relay_port = 0;
  wire::Wish wish = wire::Wish::join;
  std::string place = {};  ///< wire::Hello::place
  bool returns = false;    ///< it was there before
};

/// What a waiting room answered.
struct RoomAnswer {
  int waiting = 0;
  std::string place;  ///< where this process is taken in, if it is
  Rank rank = 0;
  int world_size = 0;
};

/// A connection over which both have proved the secret.
struct Meeting {
  Socket socket;
  wire::Inbox inbox{wire::kMaxHandshake};
  std::string host_text;  ///< the coordinator's process, "pid 12 on host"
  bool launcher = false;  ///< it lives in a launcher
  bool hosting = false;   ///< it lives in this process
  std::string address;    ///< of this end, or where a relay carries it, of that
  RoomAnswer room;        ///< after Handshake::answered
};

/// The id of a grown communicator that meets at `place`, of a job whose id has `secret`. A place is
/// an id's text with a random tag where that has its secret: no secret travels.
[[nodiscard]] Id grown_id(const Secret& secret, std::string_view place);

/// One request to the waiting room at `id`. Throws BootstrapError where nobody answers it.
RoomAnswer ask_room(const Id& id, const Caller& caller, int timeout_ms);

enum class Handshake : std::uint8_t {
  done,
  broken,
  later,
  full,       ///< of a relay, which carries as many as it can
  elsewhere,  ///< for a relay: it is to go to `elsewhere`
  answered    ///< by a waiting room, which is no joining: Meeting::room
};

/// Over the connection `meeting.socket` to the coordinator at `place`. `why` says why one has to
/// try again: it broke before the answer, or the answer is to come later. `answered`: by a waiting
/// room, which is no joining. Throws wire::Malformed;
/// BootstrapError if the coordinator refuses this rank, or does not know the secret.
Handshake shake_hands(Meeting& meeting, const Caller& caller, const std::string& place,
                      Deadline deadline, std::string& why, Endpoint& elsewhere);

/// Makes a connection up: as `as`, with a listener in `others` for other relays where it is one's.
using Rise = std::function<Meeting(Caller as, Socket* others)>;

/// Listens where `socket` ends, for a relay that is to speak over it: `caller` says so. Without
/// `others` it is none.
void listen_beside(const Socket& socket, Caller& caller, Socket* others);

/// By the first of these places that answers, for a relay also on to where it is sent. A connection
/// that ends before the answer is no answer: it is made again. Throws BootstrapError saying why it
/// failed, wire::Malformed.
Meeting rise_once(std::span<const wire::Place> places, const Caller& caller, Deadline deadline,
                  Socket* others);

/// Whether a rank of such a world reaches the coordinator over a relay of its host: where they are
/// many, and on several hosts.
[[nodiscard]] bool goes_by_relay(const Endpoint& coordinator, int world_size);
/// From now on, in this process, in worlds of more than so many ranks, wherever they are: for
/// tests, which have few.
void relay_above(int ranks);

/// To the coordinator at `endpoint` over a relay of this host. The first to look for it becomes it,
/// by `rise`: `own`. Nothing if none answers by the deadline. Throws as `rise`.
std::optional<Meeting> through_relay(const Endpoint& endpoint, const Caller& caller,
                                     Deadline deadline, const Rise& rise,
                                     std::unique_ptr<Relay>& own);

}  // namespace chorus::net
