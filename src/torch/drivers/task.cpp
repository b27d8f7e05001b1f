#include "drivers/task.hpp"

#include <exception>

namespace chorus_torch {

void Task::tell() noexcept {
  try {
    if (finished) finished(error);
  } catch (const std::exception& failure) {
    if (error.empty()) error = name + ": " + failure.what();
  } catch (...) {
    if (error.empty()) error = name + ": what waited for it ended with an unknown exception";
  }
  // What these hold may be Python's objects, whose end waits for the interpreter's lock: now, not
  // when somebody drops the task with a driver's lock in hand, which a thread of Python may await.
  pack = unpack = nullptr;
  run = nullptr;
  finished = nullptr;
}

std::string failure_of(const Task& task, chorus::Communicator& communicator, const Amend& amend) {
  std::string why = task.name;
  try {
    throw;
  } catch (const chorus::DeviceError& error) {
    why += std::string(": ") + error.what();
  } catch (const chorus::Error& error) {
    return amend(error.what());
  } catch (const std::exception& error) {
    why += std::string(": ") + error.what();
  } catch (...) {
    why += ": an unknown exception";
  }
  communicator.abort(why);
  return why;
}

}  // namespace chorus_torch
