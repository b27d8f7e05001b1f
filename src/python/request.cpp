// chorus.Request.
#include "calls.hpp"

namespace chorus_python {
namespace {

struct Request {
  PyObject_HEAD std::shared_ptr<State> state;
  std::unique_ptr<Started> call;  // null once it has ended
};

Request& self_of(PyObject* self) { return *reinterpret_cast<Request*>(self); }

PyTypeObject* request_type = nullptr;

// Ends the call whether or not it failed: its buffers are free then.
void finish(Request& request) {
  if (!request.call) return;
  const std::unique_ptr<Started> call = std::move(request.call);
  run_inside(*request.state, [&] { call->request.wait(); });
}

PyObject* wait(PyObject* self, PyObject* /*nothing*/) {
  return guarded([&] {
    finish(self_of(self));
    return Py_NewRef(Py_None);
  });
}

PyObject* test(PyObject* self, PyObject* /*nothing*/) {
  return guarded([&] {
    Request& request = self_of(self);
    if (!request.call) return PyBool_FromLong(1);
    bool complete = true;
    try {
      run_inside(*request.state, [&] { complete = request.call->request.test(); });
    } catch (...) {
      request.call.reset();
      throw;
    }
    if (complete) request.call.reset();
    return PyBool_FromLong(complete ? 1 : 0);
  });
}

PyObject* wait_all(PyObject* /*type*/, PyObject* list) {
  return guarded([&] {
    const Py_ssize_t size = PySequence_Size(list);
    if (size < 0) throw Raised{};
    std::vector<Owned> objects;
    std::vector<Request*> open;
    for (Py_ssize_t i = 0; i < size; ++i) {
      objects.push_back(owned(PySequence_GetItem(list, i)));
      if (PyObject_TypeCheck(objects.back().get(), request_type) == 0) {
        PyErr_Format(PyExc_TypeError, "Waitall: %R is no Request", objects.back().get());
        throw Raised{};
      }
      Request& request = self_of(objects.back().get());
      if (request.call) open.push_back(&request);
    }
    std::vector<std::unique_ptr<Started>> calls;
    std::vector<chorus::Request*> waiting;
    std::vector<std::shared_ptr<State>> states;
    for (Request* request : open) {
      if (!request->call) continue;  // given twice
      states.push_back(request->state);
      waiting.push_back(&request->call->request);
      calls.push_back(std::move(request->call));
    }
    for (const auto& state : states) ++state->inside;
    const auto leave_them = [&] {
      for (const auto& state : states) --state->inside;
    };
    try {
      unlocked([&] { chorus::wait_all(waiting); });
    } catch (...) {
      leave_them();
      throw;
    }
    leave_them();
    return Py_NewRef(Py_None);
  });
}

// What nobody waits for any more goes on by itself: a message that was sent and forgotten.
void end_request(PyObject* self) {
  Request& request = self_of(self);
  if (request.call && request.state->communicator) {
    request.state->adopt(std::move(*request.call));
  }
  request.call.~unique_ptr();
  request.state.~shared_ptr();
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyMethodDef request_methods[] = {
    {"Wait", wait, METH_NOARGS, "Returns when the call has ended; raises what it failed of."},
    {"Test", test, METH_NOARGS, "True once the call has ended; never waits."},
    {"Waitall", wait_all, METH_O | METH_CLASS, "Waits for a list of requests."},
    {},
};
PyType_Slot request_slots[] = {
    {Py_tp_doc, const_cast<char*>("A started call. Its buffers belong to it until it has ended.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(end_request)},
    {Py_tp_methods, request_methods},
    {},
};
PyType_Spec request_spec = {"chorus.Request", sizeof(Request), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, request_slots};

}  // namespace

void add_request(PyObject* module) {
  request_type = reinterpret_cast<PyTypeObject*>(owned(PyType_FromSpec(&request_spec)).release());
  if (PyModule_AddObjectRef(module, "Request", reinterpret_cast<PyObject*>(request_type)) < 0) {
    throw Raised{};
  }
}

PyObject* make_request(std::shared_ptr<State> state, Started&& call) {
  auto moved = std::make_unique<Started>(std::move(call));
  PyObject* const object = owned(PyType_GenericAlloc(request_type, 0)).release();
  Request& request = self_of(object);
  new (&request.state) std::shared_ptr<State>(std::move(state));
  new (&request.call) std::unique_ptr<Started>(std::move(moved));
  return object;
}

}  // namespace chorus_python
