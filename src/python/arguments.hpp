// Arguments of a method, given by place or by name.
#pragma once

#include <array>
#include <span>

#include "python.hpp"

namespace chorus_python {

/// What a method is called and takes, in order; the first `required` must be given.
struct Signature {
  const char* method;
  std::span<const char* const> names;
  std::size_t required;
};

/// Borrowed from the caller for the length of the call; null where one was not given.
class Arguments {
 public:
  static constexpr std::size_t kMost = 8;

  /// Of a function with METH_FASTCALL | METH_KEYWORDS. Raises TypeError, as Python's own would.
  Arguments(const Signature& signature, PyObject* const* values, Py_ssize_t given,
            PyObject* keywords);

  PyObject* operator[](std::size_t i) const { return values_[i]; }
  /// An integer, or `otherwise` where there is none.
  [[nodiscard]] int integer(std::size_t i, int otherwise) const;

 private:
  const Signature& signature_;
  std::array<PyObject*, kMost> values_ = {};
};

}  // namespace chorus_python
