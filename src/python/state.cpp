// What becomes of communicators and calls that Python no longer holds.
#include <algorithm>

#include "communicator.hpp"

namespace chorus_python {
namespace {

// All that have not been left. Leaked on purpose: used while the process ends.
std::vector<std::shared_ptr<State>>& states() {
  static auto* const all = new std::vector<std::shared_ptr<State>>;
  return *all;
}

}  // namespace

chorus::Communicator& State::get() {
  if (!communicator) refuse("this communicator was freed: Split() or join() makes another");
  if (!adopted.empty()) drop_complete();
  return *communicator;
}

void State::adopt(Started&& call) { adopted.push_back(std::move(call)); }

void State::drop_complete() {
  const auto ended = [](Started& call) {
    try {
      return call.request.poll();
    } catch (const chorus::Error&) {
      return true;  // the communicator keeps the failure: the next call on it says so
    }
  };
  std::erase_if(adopted, ended);
}

PyObject* make_communicator(PyTypeObject* type, chorus::Communicator communicator) {
  auto state = std::make_shared<State>(std::move(communicator));
  Owned object = owned(PyType_GenericAlloc(type, 0));
  states().push_back(state);
  new (&reinterpret_cast<Comm*>(object.get())->state) std::shared_ptr<State>(std::move(state));
  return object.release();
}

const std::shared_ptr<State>& state_of(PyObject* communicator) {
  return reinterpret_cast<Comm*>(communicator)->state;
}

void leave(State& state) {
  if (!state.communicator) return;
  if (state.inside > 0) refuse("another thread is in a call on this communicator");
  {
    // Taken out first: nobody may enter it meanwhile.
    std::optional<chorus::Communicator> leaving = std::exchange(state.communicator, std::nullopt);
    const Unlocked guard;
    leaving.reset();
  }
  state.adopted.clear();
  std::erase_if(states(), [&](const auto& other) { return other.get() == &state; });
}

void leave_all(const std::string& reason) {
  const auto all = states();
  for (const auto& state : all) {
    if (!state->communicator || state->inside > 0) continue;
    if (!reason.empty()) state->communicator->abort(reason);
    try {
      state->communicator->announce_end();  // of all, before any waits for others
    } catch (const chorus::Error&) {
      // It has failed, or was announced when its object was dropped.
    }
  }
  // A thread that is still in a call keeps its communicator: the process ends under both.
  for (const auto& state : all) {
    if (state->inside == 0) leave(*state);
  }
}

}  // namespace chorus_python
