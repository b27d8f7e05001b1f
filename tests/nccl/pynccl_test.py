"""Claim: a program that loads the library by ctypes, as vLLM's and SGLang's pynccl do, finds every name
it asks for, and two processes sum arrays.

    pynccl_test.py LIBRARY
"""

import ctypes
import os
import sys

# What such tables look up eagerly, newer ones included.
NAMES = """GetErrorString GetVersion GetUniqueId CommInitRank AllReduce Reduce AllGather ReduceScatter
Send Recv Broadcast CommDestroy GroupStart GroupEnd CommWindowRegister CommWindowDeregister CommAbort
CommQueryProperties CommSuspend CommResume CommGetAsyncError CommInitRankConfig CommSplit MemAlloc
MemFree GetLastError""".split()
NCCL_FLOAT, NCCL_SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def load(path):
    library = ctypes.CDLL(path)
    for name in NAMES:
        getattr(library, "nccl" + name)
    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclGetLastError.restype = ctypes.c_char_p
    library.ncclCommInitRank.argtypes = [
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
    library.ncclAllReduce.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
        ctypes.c_void_p, ctypes.c_void_p]
    library.ncclCommDestroy.argtypes = [ctypes.c_void_p]
    return library


def check(library, result):
    if result != 0:
        text = library.ncclGetErrorString(result).decode()
        sys.exit(f"{text}: {library.ncclGetLastError(None).decode()}")


def work(library, unique_id, rank, size):
    comm = ctypes.c_void_p()
    check(library, library.ncclCommInitRank(ctypes.byref(comm), size, unique_id, rank))
    count = 1000
    data = (ctypes.c_float * count)(*[rank + i for i in range(count)])
    out = (ctypes.c_float * count)()
    check(library, library.ncclAllReduce(data, out, count, NCCL_FLOAT, NCCL_SUM, comm, None))
    check(library, library.ncclCommDestroy(comm))
    assert list(out) == [size * i + size * (size - 1) // 2 for i in range(count)], list(out)[:4]


def main():
    read_end, write_end = os.pipe()
    child = os.fork()
    library = load(sys.argv[1])
    unique_id = UniqueId()
    if child == 0:
        ctypes.memmove(ctypes.byref(unique_id), os.read(read_end, 128), 128)
        work(library, unique_id, 1, 2)
        return
    version = ctypes.c_int()
    check(library, library.ncclGetVersion(ctypes.byref(version)))
    assert version.value == 22809, version
    check(library, library.ncclGetUniqueId(ctypes.byref(unique_id)))
    os.write(write_end, bytes(unique_id))
    work(library, unique_id, 0, 2)
    assert os.waitpid(child, 0)[1] == 0


main()
