"""Operations on GPU tensors give what arithmetic gives, in the order of the callers' streams. Over torch's
CUDA, or over the fake driver (accelerator_fake.cpp)."""

import os
import sys
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import chorus_torch
from gpus import gpus
from operations_test import REDUCED, equal, value
from ranks import run

os.environ["CHORUS_FLIGHT_DIR"] = ""
TYPES = REDUCED + [torch.bool, torch.complex64]
TYPES += [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
NARROW = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
COUNTS = [0, 1, 7, 1000]


class Rank:
    """A rank's GPU, and a stream there that is its current one."""

    def __init__(self, rank):
        self.gpus, _ = gpus()
        self.gpu = rank % self.gpus.count

    def put(self, tensor):
        return self.gpus.put(tensor, self.gpu)

    def equal(self, got, want):
        equal(self.gpus.read(got), want)


def bits(tensor):
    return tensor.view(torch.uint8) if tensor.dtype in NARROW else tensor


def until_it_fails(call, limit_s=30):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        call()
        time.sleep(0.01)
    raise AssertionError("nothing failed")


class Cuda(unittest.TestCase):
    def results(self, size, body):
        def on_gpu(rank, size):
            mine = Rank(rank)
            with mine.gpus.stream(mine.gpu):
                body(mine, rank, size)
        return run(size, on_gpu)

    def on_ranks(self, body, sizes=(1, 2, 3)):
        for size in sizes:
            with self.subTest(size=size):
                self.assertEqual(self.results(size, body), [""] * size)

    def each_of_two_says(self, body, *sentences):
        for rank, result in enumerate(self.results(2, body)):
            for sentence in sentences:
                self.assertIn(sentence, result, f"rank {rank}: {result}")

    def test_reductions_of_every_type(self):
        def body(g, rank, size):
            for dtype in REDUCED:
                for count in COUNTS:
                    all_values = torch.stack([value(r, count, dtype) for r in range(size)]).double()
                    for op, want in [(dist.ReduceOp.SUM, all_values.sum(0)),
                                     (dist.ReduceOp.MIN, all_values.amin(0)),
                                     (dist.ReduceOp.MAX, all_values.amax(0)),
                                     (dist.ReduceOp.PRODUCT, all_values.prod(0))]:
                        got = g.put(value(rank, count, dtype))
                        dist.all_reduce(got, op)
                        want = want.to(torch.int64).to(dtype) if not dtype.is_floating_point else want.to(dtype)
                        g.equal(got, want)
            got = g.put(torch.full((9,), float(rank)))
            dist.all_reduce(got, dist.ReduceOp.AVG)
            g.equal(got, torch.full((9,), (size - 1) / 2))
            got = g.put(torch.full((5,), float(rank + 1)))
            dist.all_reduce(got, dist._make_nccl_premul_sum(0.5))
            g.equal(got, torch.full((5,), size * (size + 1) / 4))
            got = g.put(torch.tensor([rank == 0, False, True]))
            dist.all_reduce(got)
            g.equal(got, torch.tensor([True, False, True]))
            for dtype in NARROW:
                got = g.put(torch.full((33,), 1.0).to(dtype))
                dist.all_reduce(got)
                assert torch.equal(g.gpus.read(got).float(), torch.full((33,), float(size)))
        self.on_ranks(body)

    def test_every_type_is_moved_by_every_operation(self):
        def body(g, rank, size):
            last = size - 1
            for dtype in TYPES:
                for count in COUNTS:
                    mine = [bits(value(r, count, torch.int64).to(dtype)) for r in range(size)]
                    put = [g.put(m) for m in mine]
                    got = g.put(mine[rank])
                    dist.broadcast(got, last)
                    g.equal(got, mine[last])
                    parts = [g.put(torch.zeros_like(mine[0])) for _ in range(size)]
                    dist.all_gather(parts, put[rank])
                    for r in range(size):
                        g.equal(parts[r], mine[r])
                    whole = g.put(torch.zeros(size * count, dtype=mine[0].dtype))
                    dist.all_gather_into_tensor(whole, put[rank])
                    g.equal(whole, torch.cat(mine))
                    dist.all_gather([whole[r * count:(r + 1) * count] for r in range(size)], put[rank])
                    g.equal(whole, torch.cat(mine))
                    got = g.put(torch.zeros_like(mine[0]))
                    dist.scatter(got, put if rank == 0 else None, 0)
                    g.equal(got, mine[rank])
                    parts = [g.put(torch.zeros_like(mine[0])) for _ in range(size)]
                    dist.gather(put[rank], parts if rank == last else None, last)
                    if rank == last:
                        for r in range(size):
                            g.equal(parts[r], mine[r])
                    rows = g.put(torch.cat(mine))
                    got = g.put(torch.zeros_like(torch.cat(mine)))
                    dist.all_to_all_single(got, rows)
                    g.equal(got, mine[rank].repeat(size))
        self.on_ranks(body)

    def test_reduce_and_reduce_scatter(self):
        def body(g, rank, size):
            got = g.put(torch.full((4,), float(rank)))
            dist.reduce(got, 0)
            g.equal(got, torch.full((4,), size * (size - 1) / 2 if rank == 0 else float(rank)))
            parts = [torch.full((3,), float(10 * r + rank)) for r in range(size)]
            got = g.put(torch.zeros(3))
            dist.reduce_scatter(got, [g.put(part) for part in parts])
            g.equal(got, torch.full((3,), float(10 * rank * size + size * (size - 1) // 2)))
            dist.reduce_scatter_tensor(got, g.put(torch.cat(parts)), dist.ReduceOp.AVG)
            g.equal(got, torch.full((3,), 10 * rank + (size - 1) / 2))
        self.on_ranks(body)

    def test_all_to_all_uneven_and_of_lists(self):
        def body(g, rank, size):
            send = [(rank + i) % 3 for i in range(size)]  # some of them nothing
            recv = [(r + rank) % 3 for r in range(size)]
            rows = torch.cat([torch.full((n, 2), rank * 10.0 + i) for i, n in enumerate(send)])
            got = g.put(torch.zeros(sum(recv), 2))
            dist.all_to_all_single(got, g.put(rows), recv, send)
            g.equal(got, torch.cat([torch.full((n, 2), r * 10.0 + rank) for r, n in enumerate(recv)]))
            parts = [g.put(torch.full((n,), complex(rank, i))) for i, n in enumerate(send)]
            outs = [g.put(torch.zeros(n, dtype=torch.complex64)) for n in recv]
            dist.all_to_all(outs, parts)
            for r, out in enumerate(outs):
                g.equal(out, torch.full((recv[r],), complex(r, rank)))
        self.on_ranks(body)

    def test_coalesced_operations(self):
        def body(g, rank, size):
            tensors = [g.put(torch.full((n,), float(rank))) for n in (1, 5, 300_000)]
            dist.all_reduce_coalesced(tensors)
            for tensor in tensors:
                g.equal(tensor, torch.full(tensor.shape, size * (size - 1) / 2))
            many = [g.put(torch.full((1000,), rank + i)) for i in range(300)]  # more than travel at a time
            dist.all_reduce_coalesced(many)
            for i, tensor in enumerate(many):
                g.equal(tensor, torch.full((1000,), size * i + size * (size - 1) // 2))
            outs = [[g.put(torch.zeros(2)), g.put(torch.zeros(3))] for _ in range(size)]
            dist.all_gather_coalesced(
                outs, [g.put(torch.full((2,), float(rank))), g.put(torch.full((3,), -float(rank)))])
            for r in range(size):
                g.equal(outs[r][0], torch.full((2,), float(r)))
                g.equal(outs[r][1], torch.full((3,), -float(r)))
        self.on_ranks(body)

    def test_messages_and_batches_of_them(self):
        def body(g, rank, size):
            peer = 1 - rank
            got = g.put(torch.zeros(70_000))
            mine = g.put(torch.full((70_000,), float(rank)))
            if rank == 0:
                dist.send(mine, 1)
                dist.recv(got, 1)
            else:
                dist.recv(got, 0)
                dist.send(mine, 0)
            g.equal(got, torch.full((70_000,), float(peer)))
            for receive_first in (True, False):  # both ranks the same: no end can go on alone
                ops = [dist.P2POp(dist.irecv, got, peer), dist.P2POp(dist.isend, mine, peer)]
                g.gpus.copy(got, g.put(torch.zeros(70_000)))
                for work in dist.batch_isend_irecv(ops if receive_first else ops[::-1]):
                    work.wait()
                g.equal(got, torch.full((70_000,), float(peer)))
        self.on_ranks(body, (2,))

    def test_a_receive_that_waits_holds_up_no_collective(self):
        def body(g, rank, size):
            got = g.put(torch.zeros(70_000))
            dist.all_reduce(g.put(torch.ones(1)))
            work = dist.irecv(got, 1) if rank == 0 else None
            total = g.put(torch.ones(10))
            dist.all_reduce(total)
            g.equal(total, torch.full((10,), float(size)))
            if rank == 1:
                dist.send(g.put(torch.ones(70_000)), 0)
            else:
                work.wait()
                g.equal(got, torch.ones(70_000))
        self.on_ranks(body, (2,))

    def test_tensors_of_the_cpu_and_of_the_gpu_on_one_group(self):
        def body(g, rank, size):
            for round in range(20):
                on_gpu, on_cpu = g.put(torch.full((500,), float(rank))), torch.full((500,), float(rank))
                works = [dist.all_reduce(t, async_op=True)
                         for t in ((on_gpu, on_cpu) if round % 2 else (on_cpu, on_gpu))]
                for work in works:
                    work.wait()
                equal(on_cpu, torch.full((500,), size * (size - 1) / 2))
                g.equal(on_gpu, on_cpu)
            objects = [None] * size
            dist.all_gather_object(objects, rank)
            assert objects == list(range(size))
        self.on_ranks(body)

    def test_a_call_comes_after_what_its_stream_holds_and_before_what_follows_its_wait(self):
        def body(g, rank, size):
            dist.all_reduce(g.put(torch.ones(1)))  # all have met
            source = g.put(torch.full((1000,), float(rank + 1)))
            data, result = g.put(torch.zeros(1000)), g.put(torch.zeros(1000))
            for _ in range(3):
                g.gpus.delay(g.gpu)
                g.gpus.copy(data, source)
                work = dist.all_reduce(data, async_op=True)
                work.wait()
                g.gpus.copy(result, data)
                g.equal(result, torch.full((1000,), size * (size + 1) / 2))
                with g.gpus.stream(g.gpu):  # another stream waits for itself
                    work.wait()
                    g.equal(data, torch.full((1000,), size * (size + 1) / 2))
        self.on_ranks(body)

    def test_neither_calls_nor_waits_wait_for_the_gpu_and_temporaries_live_as_long_as_it_needs(self):
        def body(g, rank, size):
            parts = [g.put(torch.zeros(5000)) for _ in range(size)]
            mine = g.put(torch.full((5000,), float(rank)))
            small = [g.put(torch.zeros(n)) for n in (1, 5)]
            def start():
                dist.all_reduce_coalesced(small, async_op=True)
                return dist.all_gather(parts, mine, async_op=True)
            start()  # the first call of a kind may wait
            dist.barrier()
            for tensor in small:
                g.gpus.copy(tensor, g.put(torch.full(tensor.shape, float(rank))))
            if not g.gpus.hold(True, g.gpu):
                return
            work = start()
            work.wait()
            assert not work.is_completed()
            time.sleep(0.05)
            assert not work.is_completed()
            g.gpus.hold(False, g.gpu)
            for r in range(size):
                g.equal(parts[r], torch.full((5000,), float(r)))
            assert work.is_completed() and work.is_success()
            dist.barrier()
            g.equal(small[1], torch.full((5,), size * (size - 1) / 2))
        self.on_ranks(body, (2,))

    def test_futures(self):
        def body(g, rank, size):
            got = g.put(torch.full((10,), float(rank)))
            future = dist.all_reduce(got, async_op=True).get_future()
            chained = future.then(lambda done: done.value()[0])
            g.equal(chained.wait(), torch.full((10,), size * (size - 1) / 2))
        self.on_ranks(body, (2,))

    def test_a_barrier_comes_after_what_the_stream_holds(self):
        def body(g, rank, size):
            dist.all_reduce(g.put(torch.ones(1)))
            source, data = g.put(torch.ones(100)), g.put(torch.zeros(100))
            g.gpus.delay(g.gpu)
            g.gpus.copy(data, source)
            dist.barrier()
            with g.gpus.stream(g.gpu):  # that waits for nothing
                g.equal(data, torch.ones(100))
        self.on_ranks(body, (2,))

    def test_groups_of_some_ranks(self):
        def body(g, rank, size):
            pair, rest = dist.new_group([0, 2]), dist.new_group([1])
            group = rest if rank == 1 else pair
            got = g.put(torch.tensor([rank]))
            dist.all_reduce(got, group=group)
            g.equal(got, torch.tensor([1 if rank == 1 else 2]))
            dist.destroy_process_group(group)
            dist.all_reduce(got)
            g.equal(got, torch.tensor([5]))
        self.on_ranks(body, (3,))

    def test_what_is_refused(self):
        def body(g, rank, size):
            on_gpu = g.put(torch.ones(4, 4))
            cases = [(lambda: dist.all_gather_into_tensor(torch.empty(size * 16), on_gpu.view(16)), "on the CPU"),
                     (lambda: dist.all_reduce(on_gpu.t()[1:]), "not contiguous")]
            for call, why in cases:
                try:
                    call()
                except RuntimeError as error:
                    assert why in str(error), error
                else:
                    raise AssertionError("it was taken")
        self.on_ranks(body, (2,))

    def test_another_gpu_than_the_groups_is_refused(self):
        def body(g, rank, size):
            dist.all_reduce(g.put(torch.ones(4)))
            dist.all_reduce(g.gpus.put(torch.ones(4), 1 - g.gpu))
            raise AssertionError("it was taken")
        if gpus()[0].count > 1:
            self.each_of_two_says(body, "this rank's GPU in this group is GPU")

    def test_what_one_rank_refuses_fails_the_others(self):
        def body(g, rank, size):
            dist.all_reduce(g.put(torch.ones(4)))
            if rank == 0:
                dist.all_reduce(g.put(torch.ones(4, 4)).t()[1:])
            until_it_fails(lambda: dist.all_reduce(g.put(torch.ones(12))))
        self.each_of_two_says(body, "not contiguous")

    def test_different_counts_fail_on_every_rank(self):
        def body(g, rank, size):
            dist.all_reduce(g.put(torch.ones(4)))
            dist.all_reduce(g.put(torch.ones(40 + rank)))
            until_it_fails(lambda: dist.all_reduce(g.put(torch.ones(4))))
        self.each_of_two_says(body, "40", "41")

    def test_tensors_of_the_cpu_on_one_rank_and_of_the_gpu_on_another_fail_at_the_first_call(self):
        def body(g, rank, size):
            dist.all_reduce(torch.ones(40) if rank == 0 else g.put(torch.ones(40)))
        self.each_of_two_says(body, "all_reduce", "40")

    def test_a_rank_that_died_is_named(self):
        def body(g, rank, size):
            dist.all_reduce(g.put(torch.ones(4)))
            if rank == 1:
                sys.stdout.flush()
                os._exit(3)
            until_it_fails(lambda: dist.all_reduce(g.put(torch.ones(4))))
        results = self.results(2, body)
        self.assertEqual(results[1], "exit 3")
        self.assertIn("rank 1", results[0])

    def test_a_wait_with_a_limit_fails_the_group_when_it_passes(self):
        def body(g, rank, size):
            dist.all_reduce(g.put(torch.ones(4)))
            if rank == 0:
                dist.all_reduce(g.put(torch.ones(4)), async_op=True).wait(timedelta(milliseconds=300))
            until_it_fails(lambda: (time.sleep(1), dist.barrier()))
        self.each_of_two_says(body, "300 ms that wait() was given")


if __name__ == "__main__":
    found, why_not = gpus()
    if found is None:
        print(f"skipped: {why_not}")
        raise SystemExit(77)
    unittest.main()
