#include "arguments.hpp"

namespace chorus_python {

Arguments::Arguments(const Signature& signature, PyObject* const* values, Py_ssize_t given,
                     PyObject* keywords)
    : signature_(signature) {
  const std::size_t places = signature.names.size();
  if (static_cast<std::size_t>(given) > places) {
    PyErr_Format(PyExc_TypeError, "%s() takes %zu arguments, not %zd", signature.method, places,
                 given);
    throw Raised{};
  }
  for (Py_ssize_t i = 0; i < given; ++i) values_[static_cast<std::size_t>(i)] = values[i];
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_Size(keywords);
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* const name = PyTuple_GetItem(keywords, k);
    std::size_t place = 0;
    while (place < places && PyUnicode_CompareWithASCIIString(name, signature.names[place]) != 0) {
      ++place;
    }
    if (place == places || values_[place] != nullptr) {
      PyErr_Format(PyExc_TypeError,
                   place == places ? "%s() has no argument %R" : "%s() was given %R twice",
                   signature.method, name);
      throw Raised{};
    }
    values_[place] = values[given + k];
  }
  for (std::size_t i = 0; i < signature.required; ++i) {
    if (values_[i] != nullptr) continue;
    PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", signature.method,
                 signature.names[i]);
    throw Raised{};
  }
}

int Arguments::integer(std::size_t i, int otherwise) const {
  if (values_[i] == nullptr) return otherwise;
  return static_cast<int>(integer_of(signature_.names[i], values_[i]));
}

}  // namespace chorus_python
