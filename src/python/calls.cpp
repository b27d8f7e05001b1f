#include "calls.hpp"

#include <numeric>

namespace chorus_python {
namespace {

using chorus::ReduceOp;
using Access = Buffer::Access;
using Kind = chorus::Call::Kind;

constexpr int kAnySource = -1;
constexpr int kAnyTag = -1;

bool is_in_place(PyObject* object) { return object == in_place(); }

[[noreturn]] void refuse_sizes(const char* what, const Buffer& in, const Buffer& out) {
  refuse(std::string(what) + ": sendbuf has " + in.described() + ", recvbuf " + out.described());
}

// `out` has to have `times` as many elements as `in`.
void require_times(const char* rule, const Buffer& in, std::size_t times, const Buffer& out) {
  if (in.type() != out.type() || out.count() != in.count() * times) refuse_sizes(rule, in, out);
}

ReduceOp op_of(const Arguments& arguments, std::size_t place) {
  const int op = arguments.integer(place, static_cast<int>(ReduceOp::sum));
  if (op < 0 || op >= chorus::kNumReduceOps)
    refuse("op is not one of SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR");
  return static_cast<ReduceOp>(op);
}

int root_of(const State& state, const Arguments& arguments, std::size_t place) {
  const int root = arguments.integer(place, 0);
  if (root < 0 || root >= state.size) {
    refuse("root " + std::to_string(root) + " does not exist: there are " +
           std::to_string(state.size) + " ranks");
  }
  return root;
}

void require_no_tag(const Arguments& arguments, std::size_t place, int other) {
  const int tag = arguments.integer(place, 0);
  if (tag == 0 || tag == other) return;
  refuse(
      "messages have no tags here, they come in the order in which they were sent: leave the "
      "tag away, or give each kind of message a communicator of its own (Dup())");
}

Prepared prepared(Kind kind, Buffer in, Buffer out) {
  Prepared result;
  const Buffer& any = in.data() != nullptr || in.count() > 0 ? in : out;
  result.call.kind = kind;
  result.call.input = in.data();
  result.call.output = out.data();
  result.call.count = any.count();
  result.call.type = any.type();
  result.buffers = {std::move(in), std::move(out)};
  return result;
}

// A buffer that is read and overwritten.
Prepared prepared_in_place(Kind kind, Buffer both) {
  Prepared result = prepared(kind, {}, std::move(both));
  result.call.input = result.call.output;
  return result;
}

// Of as many elements of one type as it takes: of `given`, or of what `out` holds.
Prepared prepared_alike(Kind kind, PyObject* given, Buffer out, const char* rule) {
  if (is_in_place(given)) return prepared_in_place(kind, std::move(out));
  Buffer in("sendbuf", given, Access::read);
  require_times(rule, in, 1, out);
  return prepared(kind, std::move(in), std::move(out));
}

// Elements of each rank's share.
std::size_t share_of(const Buffer& all, const char* role, std::size_t ranks) {
  if (all.count() % ranks == 0) return all.count() / ranks;
  refuse(std::string(role) + " has " + all.described() + ", which " + std::to_string(ranks) +
         " ranks cannot share equally");
}

Prepared all_reduce(const State& /*state*/, const Arguments& arguments) {
  const ReduceOp op = op_of(arguments, 2);
  Buffer out("recvbuf", arguments[1], Access::write);
  const chorus::Reduction reduction = out.reduction(op);
  Prepared result = prepared_alike(Kind::all_reduce, arguments[0], std::move(out),
                                   "Allreduce takes and gives equally many elements of one type");
  result.call.reduction = reduction;
  return result;
}

Prepared reduce(const State& state, const Arguments& arguments) {
  const int root = root_of(state, arguments, 3);
  Prepared result;
  if (state.rank == root) {
    result = all_reduce(state, arguments);
    result.call.kind = Kind::reduce;
  } else {
    Buffer in("sendbuf", arguments[0], Access::read);
    const chorus::Reduction reduction = in.reduction(op_of(arguments, 2));
    result = prepared(Kind::reduce, std::move(in), {});
    result.call.reduction = reduction;
  }
  result.call.peer = root;
  return result;
}

Prepared scattered_reduction(const State& state, const Arguments& arguments, ReduceOp op) {
  if (is_in_place(arguments[0])) {
    refuse("Reduce_scatter has no form in place: pass another buffer for this rank's share");
  }
  Buffer in("sendbuf", arguments[0], Access::read);
  Buffer out("recvbuf", arguments[1], Access::write);
  require_times("Reduce_scatter's sendbuf is as many times recvbuf as there are ranks", out,
                static_cast<std::size_t>(state.size), in);
  const chorus::Reduction reduction = in.reduction(op);
  const std::size_t count = out.count();
  Prepared result = prepared(Kind::reduce_scatter, std::move(in), std::move(out));
  result.call.count = count;
  result.call.reduction = reduction;
  return result;
}

Prepared reduce_scatter_block(const State& state, const Arguments& arguments) {
  return scattered_reduction(state, arguments, op_of(arguments, 2));
}

std::vector<std::size_t> counts_of(const char* what, PyObject* list, int size) {
  const Py_ssize_t length = PySequence_Size(list);
  if (length < 0) throw Raised{};
  if (length != size) {
    refuse(std::string(what) + " has " + std::to_string(length) + " entries for " +
           std::to_string(size) + " ranks");
  }
  std::vector<std::size_t> counts;
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Owned entry = owned(PySequence_GetItem(list, i));
    const std::size_t count = PyLong_AsSize_t(owned(PyNumber_Index(entry.get())).get());
    if (PyErr_Occurred() != nullptr) throw Raised{};
    counts.push_back(count);
  }
  return counts;
}

Prepared reduce_scatter(const State& state, const Arguments& arguments) {
  if (arguments[2] != nullptr && Py_IsNone(arguments[2]) == 0) {
    const auto counts = counts_of("recvcounts", arguments[2], state.size);
    for (const std::size_t count : counts) {
      if (count != counts.front()) {
        refuse("Reduce_scatter gives every rank an equal share: pad to the largest of recvcounts");
      }
    }
  }
  return scattered_reduction(state, arguments, op_of(arguments, 3));
}

// all is the block of each rank, one after the other; the own one stands in for mine.
Prepared gathered(Kind kind, const State& state, PyObject* mine, PyObject* all) {
  const auto ranks = static_cast<std::size_t>(state.size);
  Buffer out("recvbuf", all, Access::write);
  if (!is_in_place(mine)) {
    Buffer in("sendbuf", mine, Access::read);
    require_times("recvbuf is as many times sendbuf as there are ranks", in, ranks, out);
    return prepared(kind, std::move(in), std::move(out));
  }
  const std::size_t share = share_of(out, "recvbuf", ranks);
  Prepared result = prepared_in_place(kind, std::move(out));
  result.call.count = share;
  const std::size_t block = result.call.count * size_of(result.call.type);
  result.call.input = result.buffers[1].data() + block * static_cast<std::size_t>(state.rank);
  return result;
}

Prepared all_gather(const State& state, const Arguments& arguments) {
  return gathered(Kind::all_gather, state, arguments[0], arguments[1]);
}

Prepared gather(const State& state, const Arguments& arguments) {
  const int root = root_of(state, arguments, 2);
  Prepared result = state.rank == root
                        ? gathered(Kind::gather, state, arguments[0], arguments[1])
                        : prepared(Kind::gather, Buffer("sendbuf", arguments[0], Access::read), {});
  result.call.peer = root;
  return result;
}

Prepared scatter(const State& state, const Arguments& arguments) {
  const int root = root_of(state, arguments, 2);
  const auto ranks = static_cast<std::size_t>(state.size);
  Prepared result;
  if (state.rank != root) {
    result = prepared(Kind::scatter, {}, Buffer("recvbuf", arguments[1], Access::write));
  } else {
    Buffer in("sendbuf", arguments[0], Access::read);
    const std::size_t count = share_of(in, "sendbuf", ranks);
    std::byte* const own = in.data() + count * size_of(in.type()) * static_cast<std::size_t>(root);
    Buffer out;
    if (!is_in_place(arguments[1])) {
      out = Buffer("recvbuf", arguments[1], Access::write);
      require_times("Scatter's sendbuf is as many times recvbuf as there are ranks", out, ranks,
                    in);
    }
    void* const output = is_in_place(arguments[1]) ? own : out.data();
    result = prepared(Kind::scatter, std::move(in), std::move(out));
    result.call.output = output;
    result.call.count = count;
  }
  result.call.peer = root;
  return result;
}

Prepared all_to_all(const State& state, const Arguments& arguments) {
  Buffer out("recvbuf", arguments[1], Access::write);
  const std::size_t share = share_of(out, "recvbuf", static_cast<std::size_t>(state.size));
  Prepared result = prepared_alike(Kind::all_to_all, arguments[0], std::move(out),
                                   "Alltoall takes and gives equally many elements of one type");
  result.call.count = share;
  return result;
}

// [buffer, counts], [buffer, (counts, offsets)], and of both with the type behind.
Buffer divided(const char* role, PyObject* list, Access access, int size,
               std::vector<std::size_t>* counts, std::vector<std::size_t>* offsets) {
  const bool is_list = PyList_Check(list) != 0 || PyTuple_Check(list) != 0;
  const Py_ssize_t parts = is_list ? PySequence_Size(list) : 0;
  if (parts != 2 && parts != 3) {
    refuse(std::string(role) +
           " of Alltoallv is [buffer, counts] or [buffer, (counts, offsets)], "
           "and may have the type behind");
  }
  Owned memory = owned(PySequence_GetItem(list, 0));
  if (parts == 3)
    memory = owned(PyTuple_Pack(2, memory.get(), owned(PySequence_GetItem(list, 2)).get()));
  Buffer buffer(role, memory.get(), access);
  const Owned division = owned(PySequence_GetItem(list, 1));
  const bool with_offsets = PyTuple_Check(division.get()) != 0 &&
                            PyTuple_Size(division.get()) == 2 &&
                            PySequence_Check(PyTuple_GetItem(division.get(), 0)) != 0;
  if (with_offsets) {
    *counts = counts_of(role, PyTuple_GetItem(division.get(), 0), size);
    *offsets = counts_of(role, PyTuple_GetItem(division.get(), 1), size);
  } else {
    *counts = counts_of(role, division.get(), size);
    offsets->resize(counts->size());
    std::exclusive_scan(counts->begin(), counts->end(), offsets->begin(), std::size_t{0});
  }
  for (std::size_t i = 0; i < counts->size(); ++i) {
    const std::size_t count = (*counts)[i], offset = (*offsets)[i];
    if (offset > buffer.count() || count > buffer.count() - offset) {
      refuse(std::string(role) + " has " + buffer.described() + ", but the part of rank " +
             std::to_string(i) + " is [" + std::to_string(offset) + ", " +
             std::to_string(offset + count) + ")");
    }
  }
  return buffer;
}

Prepared all_to_all_v(const State& state, const Arguments& arguments) {
  Prepared result;
  auto& [send_counts, send_offsets, recv_counts, recv_offsets] = result.parts;
  Buffer in =
      divided("sendbuf", arguments[0], Access::read, state.size, &send_counts, &send_offsets);
  Buffer out =
      divided("recvbuf", arguments[1], Access::write, state.size, &recv_counts, &recv_offsets);
  if (in.type() != out.type()) refuse_sizes("Alltoallv takes one type", in, out);
  result.call = {.kind = Kind::all_to_all_v,
                 .input = in.data(),
                 .output = out.data(),
                 .type = in.type(),
                 .send_counts = send_counts,
                 .send_offsets = send_offsets,
                 .recv_counts = recv_counts,
                 .recv_offsets = recv_offsets};
  result.buffers = {std::move(in), std::move(out)};
  return result;
}

Prepared broadcast(const State& state, const Arguments& arguments) {
  const int root = root_of(state, arguments, 1);
  const Access access = state.rank == root ? Access::read : Access::write;
  Prepared result = prepared_in_place(Kind::broadcast, Buffer("buf", arguments[0], access));
  result.call.peer = root;
  return result;
}

Prepared barrier(const State& /*state*/, const Arguments& /*arguments*/) { return {}; }

int peer_of(const State& state, const char* what, int peer) {
  if (peer < 0 || peer >= state.size) {
    refuse(std::string(what) + " " + std::to_string(peer) + " does not exist: there are " +
           std::to_string(state.size) + " ranks");
  }
  return peer;
}

Prepared send(const State& state, const Arguments& arguments) {
  require_no_tag(arguments, 2, 0);
  const int peer = peer_of(state, "dest", arguments.integer(1, 0));
  Prepared result = prepared(Kind::send, Buffer("buf", arguments[0], Access::read), {});
  result.call.peer = peer;
  return result;
}

Prepared recv(const State& state, const Arguments& arguments) {
  require_no_tag(arguments, 2, kAnyTag);
  const int source = arguments.integer(1, kAnySource);
  if (source == kAnySource && state.size != 2) {
    refuse("a receive names its source here: ask Iprobe() which rank has sent");
  }
  const int peer = source == kAnySource ? 1 - state.rank : peer_of(state, "source", source);
  Prepared result = prepared(Kind::recv, {}, Buffer("buf", arguments[0], Access::write));
  result.call.peer = peer;
  return result;
}

constexpr const char* kReduced[] = {"sendbuf", "recvbuf", "op"};
constexpr const char* kReducedTo[] = {"sendbuf", "recvbuf", "op", "root"};
constexpr const char* kReducedInParts[] = {"sendbuf", "recvbuf", "recvcounts", "op"};
constexpr const char* kMoved[] = {"sendbuf", "recvbuf"};
constexpr const char* kRooted[] = {"sendbuf", "recvbuf", "root"};
constexpr const char* kFromRoot[] = {"buf", "root"};
constexpr const char* kTo[] = {"buf", "dest", "tag"};
constexpr const char* kFrom[] = {"buf", "source", "tag"};

}  // namespace

const Method call_all_reduce{{"Allreduce", kReduced, 2}, all_reduce};
const Method call_reduce{{"Reduce", kReducedTo, 2}, reduce};
const Method call_reduce_scatter{{"Reduce_scatter", kReducedInParts, 2}, reduce_scatter};
const Method call_reduce_scatter_block{{"Reduce_scatter_block", kReduced, 2}, reduce_scatter_block};
const Method call_all_gather{{"Allgather", kMoved, 2}, all_gather};
const Method call_gather{{"Gather", kRooted, 2}, gather};
const Method call_scatter{{"Scatter", kRooted, 2}, scatter};
const Method call_all_to_all{{"Alltoall", kMoved, 2}, all_to_all};
const Method call_all_to_all_v{{"Alltoallv", kMoved, 2}, all_to_all_v};
const Method call_broadcast{{"Bcast", kFromRoot, 1}, broadcast};
const Method call_barrier{{"Barrier", {}, 0}, barrier};
const Method call_send{{"Send", kTo, 2}, send};
const Method call_recv{{"Recv", kFrom, 1}, recv};

PyObject* in_place() {
  static PyObject* const marker = PyUnicode_FromString("IN_PLACE");
  return marker;
}

}  // namespace chorus_python
