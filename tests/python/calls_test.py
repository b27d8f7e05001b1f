"""Every call gives what numpy computes, whatever the object that holds the memory."""

import sys
import unittest
from array import array

from ranks import run  # first: it skips without numpy

import numpy as np

import chorus
from chorus import IN_PLACE

OF_NUMPY = {chorus.SUM: np.add, chorus.PROD: np.multiply, chorus.MIN: np.minimum, chorus.MAX: np.maximum,
            chorus.BAND: np.bitwise_and, chorus.BOR: np.bitwise_or, chorus.BXOR: np.bitwise_xor}


def of(rank, dtype, count=12):
    return ((np.arange(count) * 7 + rank * 5) % 4 + 1).astype(dtype)


class Plain:
    """Has __dlpack__ and nothing else, as arrays of other packages do."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()


class Calls(unittest.TestCase):
    def on(self, size, body, **options):
        self.assertEqual(run(size, body, **options), [""] * size)

    def test_reductions_of_every_type_are_numpys(self):
        def body(world):
            everyone = range(world.size)
            for dtype in "bBhHiIqQlLefd":
                for op, combine in OF_NUMPY.items():
                    if dtype in "efd" and op >= chorus.BAND:
                        continue
                    expected = combine.reduce([of(r, dtype) for r in everyone], dtype=dtype)
                    mine, out = of(world.rank, dtype), np.empty(12, dtype)
                    world.Allreduce(mine, out, op)
                    np.testing.assert_array_equal(out, expected, f"{dtype} {op!r}")
                    world.Allreduce(IN_PLACE, mine, op=op)
                    np.testing.assert_array_equal(mine, expected)
                    share = np.empty(4, dtype)
                    world.Reduce_scatter(of(world.rank, dtype), share, [4] * 3, op)
                    np.testing.assert_array_equal(share, expected[4 * world.rank:][:4])
                    world.Reduce_scatter_block(of(world.rank, dtype), share, op)
                    np.testing.assert_array_equal(share, expected[4 * world.rank:][:4])
                    into = np.empty(12, dtype) if world.rank == 1 else None
                    world.Reduce(of(world.rank, dtype), into, op, 1)
                    if world.rank == 1:
                        np.testing.assert_array_equal(into, expected)
        self.on(3, body)

    def test_averages_truth_values_and_complex_numbers(self):
        def body(world):
            x = np.full(3, world.rank, "f")
            world.Allreduce(IN_PLACE, x, chorus.AVG)
            np.testing.assert_array_equal(x, [1, 1, 1])
            for op, expected in ((chorus.SUM, True), (chorus.PROD, False), (chorus.MAX, True)):
                truth = np.array([world.rank == 2])
                world.Allreduce(IN_PLACE, truth, op)
                assert truth[0] == expected
            z = np.array([1 + 2j, world.rank * 1j])
            world.Allreduce(IN_PLACE, z)
            np.testing.assert_array_equal(z, [3 + 6j, 3j])
        self.on(3, body)

    def test_what_moves_arrives_where_it_should(self):
        def body(world):
            rank, size = world.rank, world.size
            mine = of(rank, "i4", 4)
            everything = np.concatenate([of(r, "i4", 4) for r in range(size)])
            every = np.zeros(4 * size, "i4")
            world.Allgather(mine, every)
            np.testing.assert_array_equal(every, everything)
            every[:] = 0
            every[4 * rank:][:4] = mine
            world.Allgather(IN_PLACE, every)
            np.testing.assert_array_equal(every, everything)
            every[:] = 0
            world.Gather(sendbuf=mine, recvbuf=every if rank == 2 else None, root=2)
            np.testing.assert_array_equal(every, everything if rank == 2 else 0 * everything)
            share = np.zeros(4, "i4")
            world.Scatter(everything if rank == 1 else None, share, root=1)
            np.testing.assert_array_equal(share, mine)
            if rank == 1:
                world.Scatter(everything, IN_PLACE, root=1)
            else:
                world.Scatter(None, share, root=1)
            np.testing.assert_array_equal(share, mine)
            copy = mine.copy()
            world.Bcast(copy, root=1)
            np.testing.assert_array_equal(copy, of(1, "i4", 4))
            turned = np.zeros(size, "f8")
            world.Alltoall(np.arange(size, dtype="f8") + 10 * rank, turned)
            np.testing.assert_array_equal(turned, 10 * np.arange(size) + rank)
            world.Alltoall(IN_PLACE, turned)
            np.testing.assert_array_equal(turned, np.arange(size) + 10 * rank)
            world.Barrier()
        self.on(3, body)

    def test_all_to_all_with_counts(self):
        def body(world):
            rank, size = world.rank, world.size
            given = [rank + 1] * size
            sent = np.repeat(np.arange(size) + 10 * rank, given).astype("i8")
            taken = [r + 1 for r in range(size)]
            got = np.zeros(sum(taken), "i8")
            world.Alltoallv([sent, given], [got, taken])
            expected = np.repeat([10 * r + rank for r in range(size)], taken)
            np.testing.assert_array_equal(got, expected)
            spread = np.zeros(20, "i8")
            offsets = [12, 6, 0]
            world.Alltoallv((sent, given, "int64"), (spread, (taken, offsets)))
            for r in range(size):
                np.testing.assert_array_equal(spread[offsets[r]:][:taken[r]], 10 * r + rank)
        self.on(3, body)

    def test_messages(self):
        def body(world):
            other = 1 - world.rank
            mine, theirs = np.full(5, world.rank), np.zeros(5, int)
            world.Sendrecv(mine, other, recvbuf=theirs, source=other)
            np.testing.assert_array_equal(theirs, other)
            big = np.full(1 << 20, world.rank, "f")
            got = np.empty_like(big)
            requests = [world.Irecv(got, other), world.Isend(big, other)]
            chorus.Request.Waitall(requests)
            assert (got == other).all() and all(request.Test() for request in requests)
            world.Isend(mine, other)  # nobody keeps the request
            world.Barrier()
            while not world.Iprobe(other):
                pass
            world.Recv(theirs, chorus.ANY_SOURCE)
            np.testing.assert_array_equal(theirs, other)
            request = world.Iallreduce(IN_PLACE, mine)
            while not request.Test():
                pass
            np.testing.assert_array_equal(mine, 1)
        self.on(2, body)

    def test_any_object_with_memory(self):
        def body(world):
            x = array("d", [1.5, world.rank])
            world.Allreduce(IN_PLACE, x)
            assert list(x) == [3.0, 1.0]
            letters = bytearray(b"ab" if world.rank else b"..")
            world.Bcast(letters, 1)
            assert letters == b"ab"
            world.Bcast(b"cd" if world.rank == 0 else memoryview(letters))
            assert letters == (b"cd" if world.rank else b"ab")
            columns = np.asfortranarray(np.arange(6.0).reshape(2, 3))
            world.Allreduce(IN_PLACE, columns)
            np.testing.assert_array_equal(columns, 2 * np.arange(6).reshape(2, 3))
            halves = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2 as bfloat16
            world.Allreduce(IN_PLACE, [halves, "bfloat16"])
            assert list(halves) == [0x4000, 0x4080]
            some = np.ones(8, "f4")
            world.Allreduce(IN_PLACE, [some, 2, "float32"])
            assert list(some) == [2, 2, 1, 1, 1, 1, 1, 1]
            world.Allreduce(np.zeros(0), np.zeros(0))
        self.on(2, body)

    def test_arrays_of_dlpack(self):
        def body(world):
            for dtype in ("i1", "u2", "i4", "f2", "f4", "f8", "c8"):
                x = of(world.rank, dtype, 6).reshape(2, 3)
                before = sys.getrefcount(x)
                world.Allreduce(IN_PLACE, Plain(x))
                np.testing.assert_array_equal(x, (of(0, dtype, 6) + of(1, dtype, 6)).reshape(2, 3))
                assert sys.getrefcount(x) == before, "the capsule holds the array for ever"
            part = np.arange(12, dtype="f4").reshape(3, 4)[1:]  # begins behind the array's begin
            world.Bcast(Plain(part), 0)
            try:
                world.Bcast(Plain(np.zeros((4, 4))[:, 1]), 0)
                raise AssertionError("a column was taken for a piece of memory")
            except chorus.InputError as error:
                assert "not in one piece" in str(error), error
        self.on(2, body)

    def test_memory_of_its_own(self):
        def body(world):
            x = chorus.empty((100, 100), "f8")
            assert x.shape == (100, 100) and not x.any() and x.dtype == np.float64
            x += world.rank
            world.Allreduce(IN_PLACE, x)
            assert (x == 1).all()
            assert chorus.empty(0).size == 0
        self.on(2, body)

    def test_objects(self):
        def body(world):
            assert world.bcast({"a": [1, 2]} if world.rank == 1 else None, root=1) == {"a": [1, 2]}
            assert world.allgather("x" * world.rank) == ["", "x", "xx"]
            assert world.gather(world.rank, root=2) == ([0, 1, 2] if world.rank == 2 else None)
            assert world.scatter(["a", "b", "c"] if world.rank == 0 else None) == "abc"[world.rank]
            if world.rank == 0:
                world.send(("t", 1), 1)
            elif world.rank == 1:
                assert world.recv(0) == ("t", 1)
        self.on(3, body)

    def test_communicators_are_split_copied_and_freed(self):
        def body(world):
            half = world.Split(world.rank % 2, -world.rank)
            assert (half.size, half.rank) == ((2, 1 - world.rank // 2) if world.rank % 2 == 0 else (1, 0))
            assert isinstance(half, chorus.Comm) and repr(half).endswith(f"of {half.size}>")
            assert (world.Split(chorus.UNDEFINED) is None)
            copy = world.Dup()
            x = np.ones(1)
            copy.Allreduce(IN_PLACE, x)
            assert x[0] == 3
            copy.Free()
            copy.Free()
            try:
                copy.Barrier()
                raise AssertionError("a freed communicator was used")
            except chorus.InputError as error:
                assert "was freed" in str(error)
            for _ in range(20):
                world.Dup()  # dropped: ended at the end of the process
            world.Barrier()
        self.on(3, body)


if __name__ == "__main__":
    unittest.main()
