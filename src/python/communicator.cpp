// chorus.Comm.
#include "communicator.hpp"

#include "calls.hpp"

namespace chorus_python {
namespace {

using chorus::Communicator;

template <const Method& called>
PyObject* run(PyObject* self, PyObject* const* values, Py_ssize_t given, PyObject* names) {
  return guarded([&] {
    State& state = *state_of(self);
    const Arguments arguments(called.signature, values, given, names);
    Communicator& communicator = state.get();
    const Prepared prepared = called.prepare(state, arguments);
    run_inside(state, [&] { communicator.run(prepared.call); });
    return Py_NewRef(Py_None);
  });
}

template <const Method& called>
PyObject* start(PyObject* self, PyObject* const* values, Py_ssize_t given, PyObject* names) {
  return guarded([&] {
    const std::shared_ptr<State>& state = state_of(self);
    const Arguments arguments(called.signature, values, given, names);
    Communicator& communicator = state->get();
    Started call{called.prepare(*state, arguments), {}};
    run_inside(*state, [&] { call.request = communicator.start(call.prepared.call); });
    return make_request(state, std::move(call));
  });
}

// Both at once, so that two ranks that exchange cannot wait for each other.
PyObject* send_recv(PyObject* self, PyObject* const* values, Py_ssize_t given, PyObject* names) {
  return guarded([&] {
    static constexpr const char* kNames[] = {"sendbuf", "dest",   "sendtag",
                                             "recvbuf", "source", "recvtag"};
    static constexpr Signature kSignature = {"Sendrecv", kNames, 2};
    State& state = *state_of(self);
    const Arguments arguments(kSignature, values, given, names);
    if (arguments[3] == nullptr) refuse("Sendrecv() needs the argument 'recvbuf'");
    const auto part = [&](const Method& method, std::size_t first) {
      PyObject* own[3] = {arguments[first], arguments[first + 1], arguments[first + 2]};
      Py_ssize_t size = 3;
      while (own[size - 1] == nullptr) --size;
      for (Py_ssize_t i = 0; i < size; ++i) {
        if (own[i] == nullptr) refuse("Sendrecv() has tags here, but not whom they are for");
      }
      return method.prepare(state, Arguments(method.signature, own, size, nullptr));
    };
    Communicator& communicator = state.get();
    const Prepared out = part(call_send, 0), in = part(call_recv, 3);
    run_inside(state, [&] {
      chorus::Request receiving = communicator.start(in.call);
      chorus::Request sending = communicator.start(out.call);
      chorus::Request* const both[] = {&receiving, &sending};
      chorus::wait_all(both);
    });
    return Py_NewRef(Py_None);
  });
}

PyObject* probe(PyObject* self, PyObject* const* values, Py_ssize_t given, PyObject* names) {
  return guarded([&] {
    static constexpr const char* kNames[] = {"source"};
    static constexpr Signature kSignature = {"Iprobe", kNames, 1};
    State& state = *state_of(self);
    const int source = Arguments(kSignature, values, given, names).integer(0, 0);
    Communicator& communicator = state.get();
    bool there = false;
    run_inside(state, [&] { there = communicator.has_message(source); });
    return PyBool_FromLong(there ? 1 : 0);
  });
}

PyObject* made(PyObject* self, std::optional<Communicator> communicator) {
  if (!communicator) return Py_NewRef(Py_None);
  return make_communicator(Py_TYPE(self), *std::move(communicator));
}

PyObject* split(PyObject* self, PyObject* const* values, Py_ssize_t given, PyObject* names) {
  return guarded([&] {
    static constexpr const char* kNames[] = {"color", "key"};
    static constexpr Signature kSignature = {"Split", kNames, 0};
    State& state = *state_of(self);
    const Arguments arguments(kSignature, values, given, names);
    const int color = arguments.integer(0, 0), key = arguments.integer(1, 0);
    Communicator& communicator = state.get();
    std::optional<Communicator> part;
    run_inside(state, [&] { part = communicator.split(color, key); });
    return made(self, std::move(part));
  });
}

PyObject* duplicate(PyObject* self, PyObject* /*nothing*/) {
  return split(self, nullptr, 0, nullptr);
}

PyObject* shrink(PyObject* self, PyObject* list) {
  return guarded([&] {
    std::vector<chorus::Rank> excluded;
    const Py_ssize_t size = PySequence_Size(list);
    if (size < 0) throw Raised{};
    for (Py_ssize_t i = 0; i < size; ++i) {
      excluded.push_back(
          static_cast<int>(integer_of("a rank", owned(PySequence_GetItem(list, i)).get())));
    }
    State& state = *state_of(self);
    Communicator& communicator = state.get();
    std::optional<Communicator> rest;
    run_inside(state, [&] { rest = communicator.shrink(excluded); });
    return made(self, std::move(rest));
  });
}

PyObject* free_now(PyObject* self, PyObject* /*nothing*/) {
  return guarded([&] {
    leave(*state_of(self));
    return Py_NewRef(Py_None);
  });
}

PyObject* abort_calls(PyObject* self, PyObject* reason) {
  return guarded([&] {
    state_of(self)->get().abort(PyUnicode_Check(reason) != 0
                                    ? text_of(reason)
                                    : "Abort(" + std::to_string(integer_of("a reason", reason)) +
                                          ")");
    return Py_NewRef(Py_None);
  });
}

PyObject* set_timeout(PyObject* self, PyObject* seconds) {
  return guarded([&] {
    const double value = PyFloat_AsDouble(seconds);
    if (PyErr_Occurred() != nullptr) throw Raised{};
    if (!(value > 0) || value > 2e6) refuse("a timeout is a positive number of seconds");
    state_of(self)->get().set_timeout_ms(std::max(1, static_cast<int>(value * 1e3)));
    return Py_NewRef(Py_None);
  });
}

PyObject* rank(PyObject* self, PyObject* /*nothing*/) {
  return guarded([&] { return PyLong_FromLong(state_of(self)->rank); });
}
PyObject* size(PyObject* self, PyObject* /*nothing*/) {
  return guarded([&] { return PyLong_FromLong(state_of(self)->size); });
}
PyObject* get_rank(PyObject* self, void* /*closure*/) { return rank(self, nullptr); }
PyObject* get_size(PyObject* self, void* /*closure*/) { return size(self, nullptr); }
PyObject* get_failure(PyObject* self, void* /*closure*/) {
  return guarded([&] {
    const auto failure = state_of(self)->get().failure();
    return failure ? python_text(*failure).release() : Py_NewRef(Py_None);
  });
}

int option_ms(const char* name, PyObject* seconds) {
  const double value = PyFloat_AsDouble(seconds);
  if (PyErr_Occurred() != nullptr) throw Raised{};
  if (!(value > 0) || value > 2e6) refuse(std::string(name) + " is a positive number of seconds");
  return std::max(1, static_cast<int>(value * 1e3));
}

PyObject* join(PyObject* type, PyObject* const* values, Py_ssize_t given, PyObject* names) {
  return guarded([&] {
    static constexpr const char* kNames[] = {
        "id", "rank", "size", "timeout_s", "join_timeout_s", "transports", "deterministic"};
    static constexpr Signature kSignature = {"join", kNames, 0};
    const Arguments arguments(kSignature, values, given, names);
    const auto has = [&](std::size_t i) {
      return arguments[i] != nullptr && Py_IsNone(arguments[i]) == 0;
    };
    chorus::Options options = chorus::Options::from_env();
    if (options.on_loss != "error") {
      refuse("CHORUS_ON_LOSS: communicators of this module keep their ranks: unset it");
    }
    if (has(3)) options.timeout_ms = option_ms("timeout_s", arguments[3]);
    if (has(4)) options.join_timeout_ms = option_ms("join_timeout_s", arguments[4]);
    if (has(5)) options.transports = text_of(arguments[5]);
    if (has(6)) options.deterministic = PyObject_IsTrue(arguments[6]) == 1;
    if (has(0) && !(has(1) && has(2)))
      refuse("join: an id goes with this process' rank and the size");
    if (!has(0) && (has(1) || has(2))) refuse("join: rank and size go with an id (unique_id())");
    std::optional<Communicator> joined;
    if (has(0)) {
      const chorus::UniqueId id{text_of(arguments[0])};
      const int rank = arguments.integer(1, 0), size = arguments.integer(2, 1);
      unlocked([&] { joined = Communicator::join(id, rank, size, options); });
    } else {
      unlocked([&] { joined = Communicator::join(options); });
    }
    return make_communicator(reinterpret_cast<PyTypeObject*>(type), *std::move(joined));
  });
}

// The object may go wherever garbage is collected, the communicator when all ranks leave theirs: at
// Free(), or at the end of the process. Until then others learn that this rank is through.
void end(PyObject* self) {
  using Shared = std::shared_ptr<State>;
  auto& state = const_cast<Shared&>(state_of(self));
  if (state && state->communicator) {
    try {
      state->communicator->announce_end();
    } catch (const chorus::Error&) {
      // It has failed: the others know.
    }
  }
  state.~Shared();
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
PyMethodDef method(const char* name, Fast function, const char* doc, int flags = 0) {
  const auto any = reinterpret_cast<void (*)()>(function);  // what PyMethodDef holds for all forms
  return {name, reinterpret_cast<PyCFunction>(any), METH_FASTCALL | METH_KEYWORDS | flags, doc};
}

PyMethodDef methods[] = {
    method(
        "join", join,
        "join(id=None, rank=None, size=None, *, timeout_s=None, join_timeout_s=None, "
        "transports=None, deterministic=None)\n\nThe job that this process was launched into, or "
        "that of an id.",
        METH_CLASS),
    method("Allreduce", run<call_all_reduce>, "Allreduce(sendbuf, recvbuf, op=SUM)"),
    method("Reduce", run<call_reduce>, "Reduce(sendbuf, recvbuf, op=SUM, root=0)"),
    method("Reduce_scatter", run<call_reduce_scatter>,
           "Reduce_scatter(sendbuf, recvbuf, recvcounts=None, op=SUM)"),
    method("Reduce_scatter_block", run<call_reduce_scatter_block>,
           "Reduce_scatter_block(sendbuf, recvbuf, op=SUM)"),
    method("Allgather", run<call_all_gather>, "Allgather(sendbuf, recvbuf)"),
    method("Gather", run<call_gather>, "Gather(sendbuf, recvbuf, root=0)"),
    method("Scatter", run<call_scatter>, "Scatter(sendbuf, recvbuf, root=0)"),
    method("Alltoall", run<call_all_to_all>, "Alltoall(sendbuf, recvbuf)"),
    method("Alltoallv", run<call_all_to_all_v>, "Alltoallv([sendbuf, counts], [recvbuf, counts])"),
    method("Bcast", run<call_broadcast>, "Bcast(buf, root=0)"),
    method("Barrier", run<call_barrier>, "Barrier()"),
    method("Send", run<call_send>, "Send(buf, dest)"),
    method("Recv", run<call_recv>, "Recv(buf, source)"),
    method("Sendrecv", send_recv,
           "Sendrecv(sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG)"),
    method("Iprobe", probe, "Iprobe(source): whether a message of that rank has come"),
    method("Iallreduce", start<call_all_reduce>, "Iallreduce(sendbuf, recvbuf, op=SUM)"),
    method("Ireduce", start<call_reduce>, "Ireduce(sendbuf, recvbuf, op=SUM, root=0)"),
    method("Ireduce_scatter_block", start<call_reduce_scatter_block>,
           "Ireduce_scatter_block(sendbuf, recvbuf, op=SUM)"),
    method("Iallgather", start<call_all_gather>, "Iallgather(sendbuf, recvbuf)"),
    method("Igather", start<call_gather>, "Igather(sendbuf, recvbuf, root=0)"),
    method("Iscatter", start<call_scatter>, "Iscatter(sendbuf, recvbuf, root=0)"),
    method("Ialltoall", start<call_all_to_all>, "Ialltoall(sendbuf, recvbuf)"),
    method("Ialltoallv", start<call_all_to_all_v>,
           "Ialltoallv([sendbuf, counts], [recvbuf, counts])"),
    method("Ibcast", start<call_broadcast>, "Ibcast(buf, root=0)"),
    method("Ibarrier", start<call_barrier>, "Ibarrier()"),
    method("Isend", start<call_send>, "Isend(buf, dest)"),
    method("Irecv", start<call_recv>, "Irecv(buf, source)"),
    method("Split", split, "Split(color=0, key=0): None where the color is negative"),
    {"Dup", duplicate, METH_NOARGS, "Another communicator of the same ranks."},
    {"Shrink", shrink, METH_O, "Shrink(excluded): all ranks but those, also after a failure."},
    {"Free", free_now, METH_NOARGS, "Leaves it, together with the other ranks."},
    {"Abort", abort_calls, METH_O, "Abort(reason): fails the calls of all ranks."},
    {"Set_timeout", set_timeout, METH_O, "Seconds that a call may wait without moving anything."},
    {"Get_rank", rank, METH_NOARGS, nullptr},
    {"Get_size", size, METH_NOARGS, nullptr},
    {},
};
PyGetSetDef properties[] = {
    {"rank", get_rank, nullptr, "this process' place", nullptr},
    {"size", get_size, nullptr, "how many ranks there are", nullptr},
    {"failure", get_failure, nullptr, "why it has failed, or None", nullptr},
    {},
};
PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Ranks that make the same calls in the same order.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(end)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {},
};
PyType_Spec spec = {"chorus._core.Comm", sizeof(Comm), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

}  // namespace

void add_communicator(PyObject* module) {
  const Owned type = owned(PyType_FromSpec(&spec));
  if (PyModule_AddObjectRef(module, "Comm", type.get()) < 0) throw Raised{};
}

}  // namespace chorus_python
