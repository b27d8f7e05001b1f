// What members of a job ask the waiting room where processes wait to be taken in.
#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "chorus/error.hpp"
#include "runtime/control/meet.hpp"

namespace chorus::net {

Id grown_id(const Secret& secret, std::string_view place) {
  const Id parsed = Id::parse(place);
  return {parsed.endpoint, secret.derive("grown " + parsed.secret.text())};
}

RoomAnswer ask_room(const Id& id, const Caller& caller, int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const std::string place = id.endpoint.text();
  int error = 0;
  Meeting meeting;
  Endpoint elsewhere;
  meeting.socket = connect_to(id.endpoint, deadline, error);
  std::string why = error == 0 ? "it does not answer" : std::strerror(error);
  try {
    if (error == 0 &&
        shake_hands(meeting, caller, place, deadline, why, elsewhere) == Handshake::answered) {
      return meeting.room;
    }
  } catch (const wire::Malformed& malformed) {
    why = malformed.what();
  }
  throw BootstrapError(fmt::format(
      "no coordinator at {}, where this job met and new processes come: {}", place, why));
}

}  // namespace chorus::net
