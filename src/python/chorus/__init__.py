"""Collective communication for arrays of numpy and everything that has Python's buffer protocol or DLPack's.

    import chorus, numpy
    world = chorus.COMM_WORLD                      # joins the job that this process was launched into
    x = numpy.full(4, world.rank, "f")
    world.Allreduce(chorus.IN_PLACE, x, chorus.AVG)

Methods have the names and arguments of mpi4py's. `from chorus import MPI` suits programs written for that.
"""

import atexit as _atexit
import enum as _enum
import sys as _sys

from . import _core
from ._core import (
    IN_PLACE,
    BootstrapError,
    CollectiveError,
    DeviceError,
    Error,
    InputError,
    LinkError,
    Request,
    SynthesisError,
    TopologyError,
    unique_id,
)
from ._objects import Objects as _Objects

Op = _enum.IntEnum("Op", {name.upper(): value for name, value in _core.OPS.items()})
Op.__doc__ = "How contributions are combined. Sums of truth values are 'or', products 'and'."
SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR = Op
TYPES = _core.TYPES  # names for [buffer, type]: "float32", "bfloat16", ...
ANY_SOURCE = ANY_TAG = UNDEFINED = -1


class Comm(_Objects, _core.Comm):
    """Ranks that make the same calls in the same order, one thread of each at a time."""

    __slots__ = ()

    def __repr__(self):
        return f"<chorus.Comm: rank {self.rank} of {self.size}>"


join = Comm.join


def empty(shape, dtype="float32"):
    """An array of numpy, with zeros, in memory that ranks of the same host read and write in place."""
    import numpy

    kind = numpy.dtype(dtype)
    count = int(numpy.prod(shape, dtype=numpy.int64))
    memory = _core.allocate(max(count, 1) * kind.itemsize)
    return numpy.frombuffer(memory, kind, count).reshape(shape)


def __getattr__(name):
    """COMM_WORLD, joined when it is first asked for."""
    if name != "COMM_WORLD":
        raise AttributeError(f"module 'chorus' has no attribute {name!r}")
    return globals().setdefault(name, join())


def _leave():
    error = getattr(_sys, "last_value", None)
    reason = ""
    if error is not None:  # what ended this process is what the others should read
        text = (str(error).splitlines() or [""])[0]
        reason = f"this process ended with {type(error).__name__}: {text}"
    _core.leave_all(reason)


_atexit.register(_leave)
