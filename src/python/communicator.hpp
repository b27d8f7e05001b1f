// chorus.Comm and chorus.Request: a communicator and a started call, as Python sees them.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffers.hpp"
#include "chorus/communicator.hpp"

namespace chorus_python {

/// A call, and what it needs until it has ended.
struct Prepared {
  chorus::Call call;
  std::array<Buffer, 2> buffers = {};
  /// Of all_to_all_v: counts and offsets of what is sent, then of what is received.
  std::array<std::vector<std::size_t>, 4> parts = {};
};

/// A started call with its buffers. Ended, moved and tested with the GIL held, waited for without.
struct Started {
  Prepared prepared;
  chorus::Request request;
};

/// A communicator, which outlives the object of Python: leaving it waits for the other ranks, and
/// what collects garbage must not.
struct State {
  explicit State(chorus::Communicator given)
      : communicator(std::move(given)),
        rank(communicator->rank()),
        size(communicator->world_size()) {}

  /// Raises InputError once it was left.
  chorus::Communicator& get();
  /// Takes over a call that nobody will wait for, until it is complete.
  void adopt(Started&& call);
  /// Gives back the buffers of those that have ended since.
  void drop_complete();

  std::optional<chorus::Communicator> communicator;
  int rank;
  int size;
  int inside = 0;  ///< threads that run one of its calls without the GIL
  std::list<Started> adopted;
};

/// Runs `body`, which uses the communicator of `state`, without the GIL.
template <class Body>
void run_inside(State& state, Body&& body) {
  struct Inside {
    explicit Inside(State& entered) : state(entered) { ++state.inside; }
    ~Inside() { --state.inside; }
    State& state;
  } const inside(state);
  unlocked(std::forward<Body>(body));
}

/// An object of Python's class Comm.
struct Comm {
  PyObject_HEAD std::shared_ptr<State> state;
};

/// Adds the types and the functions that make communicators to `module`.
void add_communicator(PyObject* module);
void add_request(PyObject* module);

/// A communicator as an object of `type`, Comm or a subclass.
PyObject* make_communicator(PyTypeObject* type, chorus::Communicator communicator);
/// A call on `state` as an object.
PyObject* make_request(std::shared_ptr<State> state, Started&& call);
/// The state of an object that is a Comm.
const std::shared_ptr<State>& state_of(PyObject* communicator);

/// Ends all communicators of this process, together with the other ranks; with a reason it fails
/// them first, and waits for nobody.
void leave_all(const std::string& reason);
/// Ends one, together with the other ranks. Raises InputError while another thread is inside.
void leave(State& state);

}  // namespace chorus_python
