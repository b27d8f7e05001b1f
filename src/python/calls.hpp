// The calls of a communicator by the names and arguments that mpi4py gives them.
#pragma once

#include "arguments.hpp"
#include "communicator.hpp"

namespace chorus_python {

/// One of Comm's methods that make a call: what it takes, and how that becomes a call on `state`.
struct Method {
  Signature signature;
  Prepared (*prepare)(const State& state, const Arguments& arguments);
};

extern const Method call_all_reduce, call_reduce, call_reduce_scatter, call_reduce_scatter_block,
    call_all_gather, call_gather, call_scatter, call_all_to_all, call_all_to_all_v, call_broadcast,
    call_barrier, call_send, call_recv;

/// What stands for "the result's buffer has the input, too" (MPI_IN_PLACE): compared by identity.
PyObject* in_place();

}  // namespace chorus_python
