// The module chorus._core.
#include <cstdint>

#include "calls.hpp"
#include "chorus/memory.hpp"

namespace chorus_python {
namespace {

// Memory of chorus::allocate(), which lives as long as a view of it.
struct Memory {
  PyObject_HEAD void* bytes;
  Py_ssize_t size;
};

int view(PyObject* self, Py_buffer* view, int flags) {
  const auto& memory = *reinterpret_cast<Memory*>(self);
  return PyBuffer_FillInfo(view, self, memory.bytes, memory.size, 0, flags);
}

void end_memory(PyObject* self) {
  chorus::deallocate(reinterpret_cast<Memory*>(self)->bytes);
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyType_Slot memory_slots[] = {
    {Py_tp_doc, const_cast<char*>("Memory that ranks of this host read and write in place.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(end_memory)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(view)},
    {},
};
PyType_Spec memory_spec = {"chorus.Memory", sizeof(Memory), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};
PyTypeObject* memory_type = nullptr;

PyObject* allocate(PyObject* /*module*/, PyObject* size_bytes) {
  return guarded([&] {
    const std::size_t size = PyLong_AsSize_t(size_bytes);
    if (PyErr_Occurred() != nullptr) throw Raised{};
    if (size > PTRDIFF_MAX) throw std::bad_alloc();
    Owned object = owned(PyType_GenericAlloc(memory_type, 0));
    auto& memory = *reinterpret_cast<Memory*>(object.get());
    memory.bytes = chorus::allocate(size);
    memory.size = static_cast<Py_ssize_t>(size);
    return object.release();
  });
}

PyObject* unique_id(PyObject* /*module*/, PyObject* const* values, Py_ssize_t given,
                    PyObject* names) {
  return guarded([&] {
    static constexpr const char* kNames[] = {"size", "interface"};
    static constexpr Signature kSignature = {"unique_id", kNames, 0};
    const Arguments arguments(kSignature, values, given, names);
    const int size = arguments.integer(0, 0);
    const std::string interface = arguments[1] == nullptr ? "" : text_of(arguments[1]);
    return python_text(chorus::UniqueId::make(size, interface).text).release();
  });
}

PyObject* leave_all_of_process(PyObject* /*module*/, PyObject* reason) {
  return guarded([&] {
    leave_all(text_of(reason));
    return Py_NewRef(Py_None);
  });
}

PyMethodDef functions[] = {
    {"allocate", allocate, METH_O, "allocate(size_bytes): memory for the buffers of collectives"},
    {"unique_id", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(unique_id)),
     METH_FASTCALL | METH_KEYWORDS,
     "unique_id(size=0, interface=''): where ranks can meet, as text"},
    {"leave_all", leave_all_of_process, METH_O, "leave_all(reason): leaves every communicator"},
    {},
};

void fill(PyObject* module) {
  add_exceptions(module);
  add_communicator(module);
  add_request(module);
  memory_type = reinterpret_cast<PyTypeObject*>(owned(PyType_FromSpec(&memory_spec)).release());
  if (PyModule_AddObjectRef(module, "IN_PLACE", in_place()) < 0) throw Raised{};
  const Owned ops = owned(PyDict_New());
  for (int i = 0; i < chorus::kNumReduceOps; ++i) {
    const std::string name(name_of(static_cast<chorus::ReduceOp>(i)));
    const Owned value = owned(PyLong_FromLong(i));
    if (PyDict_SetItemString(ops.get(), name.c_str(), value.get()) < 0) throw Raised{};
  }
  if (PyModule_AddObjectRef(module, "OPS", ops.get()) < 0) throw Raised{};
  const Owned types = owned(PyTuple_New(chorus::kNumDataTypes));
  for (int i = 0; i < chorus::kNumDataTypes; ++i) {
    const std::string name(name_of(static_cast<chorus::DataType>(i)));
    if (PyTuple_SetItem(types.get(), i, python_text(name).release()) < 0) throw Raised{};
  }
  if (PyModule_AddObjectRef(module, "TYPES", types.get()) < 0) throw Raised{};
}

PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                          .m_name = "chorus._core",
                          .m_doc = "Chorus, as compiled; import chorus instead.",
                          .m_size = -1,
                          .m_methods = functions,
                          .m_slots = nullptr,
                          .m_traverse = nullptr,
                          .m_clear = nullptr,
                          .m_free = nullptr};

}  // namespace
}  // namespace chorus_python

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): Python's name for it
PyMODINIT_FUNC PyInit__core() {
  using namespace chorus_python;
  return guarded([] {
    Owned module = owned(PyModule_Create(&definition));
    fill(module.get());
    return module.release();
  });
}
