// Memory of Python's objects as elements of a collective.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "chorus/types.hpp"
#include "python.hpp"

namespace chorus_python {

/// The memory of one object, kept alive and in place until this ends, which wants the GIL.
class Buffer {
 public:
  enum class Access { read, write };

  /// Of what has Python's buffer protocol or DLPack's, in one piece of host memory; or of a list
  /// [buffer, type] or [buffer, count, type], which says what the bytes are. Raises InputError
  /// naming `role`, or what the object itself raises.
  Buffer(const char* role, PyObject* object, Access access);
  Buffer() = default;  ///< none
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  /// Elements of type(): two for each complex number.
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] chorus::DataType type() const { return type_; }
  [[nodiscard]] std::size_t size_bytes() const { return count_ * size_of(type_); }
  /// "3 of float32", for messages.
  [[nodiscard]] std::string described() const;

  /// `op` for these elements: sums of bool are "or", products "and". Raises InputError where it has
  /// no meaning for them.
  [[nodiscard]] chorus::Reduction reduction(chorus::ReduceOp op) const;

 private:
  enum class Element { number, boolean, complex };

  void take(const char* role, PyObject* object, Access access);
  void take_view(const char* role, PyObject* object, Access access);
  void take_dlpack(const char* role, PyObject* object);
  void retype(const char* role, chorus::DataType type, std::optional<std::size_t> count);

  std::byte* data_ = nullptr;
  std::size_t count_ = 0;
  chorus::DataType type_ = chorus::DataType::uint8;
  Element element_ = Element::number;
  std::unique_ptr<Py_buffer> view_;  // where it came by the buffer protocol
  Owned capsule_;                    // where it came by DLPack
};

}  // namespace chorus_python
