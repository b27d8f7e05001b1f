// Failures of the library as exceptions of Python, one class for each.
#include <array>
#include <climits>
#include <new>

#include "chorus/error.hpp"
#include "python.hpp"

namespace chorus_python {
namespace {

enum class Failure {
  error,
  input,
  bootstrap,
  topology,
  synthesis,
  link,
  device,
  collective,
  count
};

// Never given back: exceptions may be raised as long as the process lives.
std::array<PyObject*, static_cast<std::size_t>(Failure::count)> exceptions;

PyObject*& exception(Failure failure) { return exceptions[static_cast<std::size_t>(failure)]; }

void add(PyObject* module, Failure failure, const char* name, const char* meaning,
         PyObject* bases) {
  const std::string full = std::string("chorus.") + name;
  exception(failure) =
      owned(PyErr_NewExceptionWithDoc(full.c_str(), meaning, bases, nullptr)).release();
  if (PyModule_AddObjectRef(module, name, exception(failure)) < 0) throw Raised{};
}

void raise(Failure failure, const char* why) { PyErr_SetString(exception(failure), why); }

}  // namespace

void add_exceptions(PyObject* module) {
  add(module, Failure::error, "Error", "Something outside of Chorus failed.", PyExc_RuntimeError);
  PyObject* const base = exception(Failure::error);
  const Owned both = owned(PyTuple_Pack(2, base, PyExc_ValueError));
  add(module, Failure::input, "InputError", "Bad input: an argument, a file, a variable.",
      both.get());
  add(module, Failure::bootstrap, "BootstrapError", "The ranks could not meet.", base);
  add(module, Failure::topology, "TopologyError", "The wiring does not connect two ranks.", base);
  add(module, Failure::synthesis, "SynthesisError", "No schedule could be made.", base);
  add(module, Failure::link, "LinkError", "One connection to one peer broke.", base);
  add(module, Failure::device, "DeviceError", "A GPU or its driver refused.", base);
  add(module, Failure::collective, "CollectiveError",
      "A call failed: a peer died, did not call, or called something else. Its communicator is "
      "finished.",
      base);
}

void raise_current() {
  try {
    throw;
  } catch (const Raised&) {
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const chorus::InputError& error) {
    raise(Failure::input, error.what());
  } catch (const chorus::BootstrapError& error) {
    raise(Failure::bootstrap, error.what());
  } catch (const chorus::TopologyError& error) {
    raise(Failure::topology, error.what());
  } catch (const chorus::SynthesisError& error) {
    raise(Failure::synthesis, error.what());
  } catch (const chorus::LinkError& error) {
    raise(Failure::link, error.what());
  } catch (const chorus::DeviceError& error) {
    raise(Failure::device, error.what());
  } catch (const chorus::CollectiveError& error) {
    raise(Failure::collective, error.what());
  } catch (const std::exception& error) {
    raise(Failure::error, error.what());
  }
}

void refuse(const std::string& why) {
  raise(Failure::input, why.c_str());
  throw Raised{};
}

std::string text_of(PyObject* text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text, &size);
  if (bytes == nullptr) throw Raised{};
  return {bytes, static_cast<std::size_t>(size)};
}

long integer_of(const char* what, PyObject* number) {
  const long value = PyLong_AsLong(number);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
      PyErr_Clear();
      PyErr_Format(PyExc_TypeError, "%s must be an integer, not %R", what, number);
    }
    throw Raised{};
  }
  if (value < INT_MIN || value > INT_MAX)
    refuse(std::string(what) + " is not a rank, count or color");
  return value;
}

}  // namespace chorus_python
