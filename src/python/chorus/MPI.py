"""For programs written for mpi4py: `from chorus import MPI` in place of `from mpi4py import MPI`."""

import time as _time

import chorus as _chorus
from chorus import (ANY_SOURCE, ANY_TAG, AVG, BAND, BOR, BXOR, IN_PLACE, MAX, MIN, PROD, SUM, UNDEFINED, Comm, Op,
                    Request)

Intracomm = Comm
Exception = _chorus.Error
COMM_NULL = REQUEST_NULL = None
SIGNED_CHAR, UNSIGNED_CHAR, BYTE, CHAR = "int8", "uint8", "uint8", "int8"
SHORT, UNSIGNED_SHORT, INT, UNSIGNED = "int16", "uint16", "int32", "uint32"
LONG, UNSIGNED_LONG, LONG_LONG, UNSIGNED_LONG_LONG = "int64", "uint64", "int64", "uint64"
INT8_T, INT16_T, INT32_T, INT64_T = "int8", "int16", "int32", "int64"
UINT8_T, UINT16_T, UINT32_T, UINT64_T = "uint8", "uint16", "uint32", "uint64"
FLOAT, DOUBLE, REAL4, REAL8 = "float32", "float64", "float32", "float64"
Wtime = _time.perf_counter


def __getattr__(name):
    if name != "COMM_WORLD":
        raise AttributeError(f"chorus.MPI has no {name}: see docs/python.md for what it has")
    return _chorus.COMM_WORLD
