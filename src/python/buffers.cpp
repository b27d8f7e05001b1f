#include "buffers.hpp"

#include <string_view>

#include "dlpack.hpp"

namespace chorus_python {
namespace {

using chorus::DataType;
using chorus::ReduceOp;

std::optional<DataType> integer_type(bool is_signed, Py_ssize_t size) {
  switch (size) {
    case 1:
      return is_signed ? DataType::int8 : DataType::uint8;
    case 2:
      return is_signed ? DataType::int16 : DataType::uint16;
    case 4:
      return is_signed ? DataType::int32 : DataType::uint32;
    case 8:
      return is_signed ? DataType::int64 : DataType::uint64;
    default:
      return std::nullopt;
  }
}

std::optional<DataType> float_type(Py_ssize_t size) {
  switch (size) {
    case 2:
      return DataType::float16;
    case 4:
      return DataType::float32;
    case 8:
      return DataType::float64;
    default:
      return std::nullopt;
  }
}

// The type of one letter of Python's struct module.
std::optional<DataType> type_of(char letter, Py_ssize_t size) {
  constexpr std::string_view kSigned = "bhilqn", kUnsigned = "BHILQNc?", kFloats = "efd";
  if (kSigned.find(letter) != std::string_view::npos) return integer_type(true, size);
  if (kUnsigned.find(letter) != std::string_view::npos) return integer_type(false, size);
  if (kFloats.find(letter) != std::string_view::npos) return float_type(size);
  return std::nullopt;
}

std::optional<DataType> type_of(const dlpack::Tensor& tensor) {
  if (tensor.lanes != 1) return std::nullopt;
  const Py_ssize_t size = tensor.bits / 8;
  switch (tensor.code) {
    case dlpack::Code::integer:
      return integer_type(true, size);
    case dlpack::Code::unsigned_integer:
    case dlpack::Code::boolean:
      return integer_type(false, size);
    case dlpack::Code::floating:
      return float_type(size);
    case dlpack::Code::complex_floating:
      return float_type(size / 2);
    case dlpack::Code::bfloat:
      return DataType::bfloat16;
    case dlpack::Code::float8_e4m3fn:
      return DataType::float8_e4m3;
    case dlpack::Code::float8_e5m2:
      return DataType::float8_e5m2;
    default:
      return std::nullopt;
  }
}

DataType type_named(const char* role, PyObject* name) {
  const std::string text = text_of(name);
  for (int i = 0; i < chorus::kNumDataTypes; ++i) {
    if (name_of(static_cast<DataType>(i)) == text) return static_cast<DataType>(i);
  }
  refuse(std::string(role) + ": there is no element type '" + text + "'");
}

// Elements in one piece, whichever dimension is closest together; those of size 1 have any stride.
bool in_one_piece(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t behind = 1, before = 1;
  bool rows = true, columns = true;
  for (std::int32_t d = 0; d < tensor.dimensions; ++d) {
    if (tensor.shape[d] == 0) return true;
    const std::int32_t last = tensor.dimensions - 1 - d;
    if (tensor.shape[last] != 1) rows = rows && tensor.strides[last] == behind;
    if (tensor.shape[d] != 1) columns = columns && tensor.strides[d] == before;
    behind *= tensor.shape[last];
    before *= tensor.shape[d];
  }
  return rows || columns;
}

[[noreturn]] void refuse_layout(const char* role) {
  refuse(std::string(role) +
         " is not in one piece in memory: pass a copy (numpy.ascontiguousarray) and copy back");
}

}  // namespace

Buffer::Buffer(const char* role, PyObject* object, Access access) {
  if (PyList_Check(object) == 0 && PyTuple_Check(object) == 0) {
    take(role, object, access);
    return;
  }
  const Py_ssize_t parts = PySequence_Size(object);
  if (parts != 2 && parts != 3) {
    refuse(std::string(role) + " is a list, but not [buffer, type] or [buffer, count, type]");
  }
  take(role, owned(PySequence_GetItem(object, 0)).get(), access);
  std::optional<std::size_t> count;
  if (parts == 3) {
    const long given = integer_of("count", owned(PySequence_GetItem(object, 1)).get());
    if (given < 0) refuse(std::string(role) + ": the count is negative");
    count = static_cast<std::size_t>(given);
  }
  retype(role, type_named(role, owned(PySequence_GetItem(object, parts - 1)).get()), count);
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(count_, other.count_);
  std::swap(type_, other.type_);
  std::swap(element_, other.element_);
  std::swap(view_, other.view_);
  std::swap(capsule_, other.capsule_);
  return *this;
}

Buffer::~Buffer() {
  if (view_) PyBuffer_Release(view_.get());
}

void Buffer::take(const char* role, PyObject* object, Access access) {
  if (PyObject_CheckBuffer(object) != 0) {
    take_view(role, object, access);
  } else if (PyObject_HasAttrString(object, "__dlpack__") != 0) {
    take_dlpack(role, object);
  } else {
    PyErr_Format(PyExc_TypeError,
                 "%s is a %R: buffers are arrays of numpy, array.array, bytearray, memoryview and "
                 "what has __dlpack__",
                 role, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    throw Raised{};
  }
}

void Buffer::take_view(const char* role, PyObject* object, Access access) {
  auto view = std::make_unique<Py_buffer>();
  int flags = PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT;
  if (access == Access::write) flags |= PyBUF_WRITABLE;
  if (PyObject_GetBuffer(object, view.get(), flags) < 0) {
    // The object's own words say what is wrong: read-only, no such format; not what to do.
    Py_buffer any;
    PyErr_Clear();
    if (PyObject_GetBuffer(object, &any, PyBUF_STRIDES) < 0) throw Raised{};
    const bool readonly = access == Access::write && any.readonly != 0;
    const bool one_piece = PyBuffer_IsContiguous(&any, 'A') != 0;
    PyBuffer_Release(&any);
    if (readonly) refuse(std::string(role) + " is read-only, but receives the result");
    if (!one_piece) refuse_layout(role);
    refuse(std::string(role) +
           " has elements that Python has no letter for: pass the bytes and "
           "their type, as in [x.view('uint16'), 'bfloat16']");
  }
  view_ = std::move(view);
  data_ = static_cast<std::byte*>(view_->buf);
  std::string_view format = view_->format == nullptr ? "B" : view_->format;
  const std::string whole(format);
  if (!format.empty() && std::string_view("@=<").find(format[0]) != std::string_view::npos) {
    format.remove_prefix(1);
  }
  Py_ssize_t size = view_->itemsize;
  if (format.size() == 2 && format[0] == 'Z') {
    element_ = Element::complex;
    format.remove_prefix(1);
    size /= 2;
  }
  const auto type = format.size() == 1 ? type_of(format[0], size) : std::nullopt;
  if (!type) {
    refuse(std::string(role) + " has elements of format '" + whole +
           "', which no collective takes: pass a view as bytes");
  }
  if (format[0] == '?') element_ = Element::boolean;
  type_ = *type;
  count_ = static_cast<std::size_t>(view_->len / size);
}

void Buffer::take_dlpack(const char* role, PyObject* object) {
  const Owned method = owned(PyObject_GetAttrString(object, "__dlpack__"));
  capsule_ = owned(PyObject_CallNoArgs(method.get()));
  // Left under its name: whoever drops the capsule then gives the memory back.
  const auto* const tensor =
      static_cast<const dlpack::Tensor*>(PyCapsule_GetPointer(capsule_.get(), "dltensor"));
  if (tensor == nullptr) throw Raised{};
  if (tensor->device != dlpack::Device::cpu && tensor->device != dlpack::Device::cuda_host &&
      tensor->device != dlpack::Device::rocm_host) {
    refuse(std::string(role) + " is in the memory of a device (DLPack's type " +
           std::to_string(static_cast<int>(tensor->device)) + "): only host memory is taken here");
  }
  if (!in_one_piece(*tensor)) refuse_layout(role);
  const auto type = type_of(*tensor);
  if (!type) {
    refuse(std::string(role) + " has elements of DLPack's code " +
           std::to_string(static_cast<int>(tensor->code)) + " with " +
           std::to_string(tensor->bits) + " bits, which no collective takes");
  }
  type_ = *type;
  if (tensor->code == dlpack::Code::boolean) element_ = Element::boolean;
  if (tensor->code == dlpack::Code::complex_floating) element_ = Element::complex;
  count_ = element_ == Element::complex ? 2 : 1;
  for (std::int32_t d = 0; d < tensor->dimensions; ++d) {
    count_ *= static_cast<std::size_t>(tensor->shape[d]);
  }
  data_ = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
}

void Buffer::retype(const char* role, DataType type, std::optional<std::size_t> count) {
  const std::size_t bytes = size_bytes(), size = size_of(type);
  if (count ? *count > bytes / size : bytes % size != 0) {
    refuse(std::string(role) + " has " + std::to_string(bytes) + " bytes: not " +
           (count ? std::to_string(*count) + " elements" : "a whole number") + " of " +
           std::string(name_of(type)));
  }
  element_ = Element::number;
  type_ = type;
  count_ = count.value_or(bytes / size);
}

std::string Buffer::described() const {
  return std::to_string(count_) + " of " + std::string(name_of(type_));
}

chorus::Reduction Buffer::reduction(ReduceOp op) const {
  if (element_ == Element::boolean) {
    if (op == ReduceOp::sum) return ReduceOp::max;
    if (op == ReduceOp::prod) return ReduceOp::min;
    if (op == ReduceOp::avg) refuse("booleans have no average");
  }
  if (element_ == Element::complex && op != ReduceOp::sum && op != ReduceOp::avg) {
    refuse("of complex numbers there are sums and averages alone, not " + std::string(name_of(op)));
  }
  return op;
}

}  // namespace chorus_python
