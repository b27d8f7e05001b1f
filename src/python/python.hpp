// What all of this module needs of Python's C API: its stable part, so that one build serves every
// version from 3.11 on.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <memory>
#include <string>
#include <utility>

namespace chorus_python {

/// A Python exception is set: thrown through C++ to whom Python called.
struct Raised {};

/// An object that this holds a reference to. Whoever makes, copies or ends one holds the GIL.
struct Release {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

/// Takes over a new reference; null means that Python has raised.
inline Owned owned(PyObject* object) {
  if (object == nullptr) throw Raised{};
  return Owned(object);
}

inline Owned shared(PyObject* object) {
  Py_INCREF(object);
  return Owned(object);
}

/// Other threads of Python run while this lives.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

/// Runs `body` where other threads of Python may run as well.
template <class Body>
decltype(auto) unlocked(Body&& body) {
  const Unlocked guard;
  return std::forward<Body>(body)();
}

/// Makes the exceptions and adds them to `module`.
void add_exceptions(PyObject* module);

/// Raises what is being caught, as the exception of the same name. For catch (...) alone.
void raise_current();

/// Raises chorus.InputError.
[[noreturn]] void refuse(const std::string& why);

/// What a function called by Python returns: that of `body`, or what means that Python has raised.
template <class Result, class Body>
Result guarded(Result failed, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    raise_current();
    return failed;
  }
}

/// The same for what returns an object.
template <class Body>
PyObject* guarded(Body&& body) {
  return guarded<PyObject*>(nullptr, std::forward<Body>(body));
}

std::string text_of(PyObject* text);
long integer_of(const char* what, PyObject* number);
inline Owned python_text(const std::string& text) {
  return owned(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace chorus_python
