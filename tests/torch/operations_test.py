"""Every operation of the backend gives what Gloo (or arithmetic) gives."""

import functools
import multiprocessing
import os
import resource
import tempfile
import unittest
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import chorus_torch
from ranks import OnRanks, equal, run, start

REDUCED = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16,
           torch.bfloat16, torch.float32, torch.float64]
MOVED = REDUCED + [torch.bool, torch.complex64, torch.complex128]
COUNTS = [0, 1, 7, 1000]


def value(rank, count, dtype, salt=0):
    """[count], different per rank; small integers, so that sums are exact in every type."""
    numbers = (torch.arange(count) * 3 + rank * 5 + salt) % 7 - (0 if dtype in (torch.uint8, torch.bool) else 3)
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


class Operations(OnRanks):
    def test_all_reduce_combines_every_type_by_every_operation(self):
        def body(rank, size):
            for dtype in REDUCED:
                for count in COUNTS:
                    all_values = torch.stack([value(r, count, dtype) for r in range(size)]).double()
                    for op, want in [(dist.ReduceOp.SUM, all_values.sum(0)),
                                     (dist.ReduceOp.MIN, all_values.amin(0)),
                                     (dist.ReduceOp.MAX, all_values.amax(0)),
                                     (dist.ReduceOp.PRODUCT, all_values.prod(0))]:
                        got = value(rank, count, dtype)
                        dist.all_reduce(got, op)
                        # integers wrap
                        want = want.to(torch.int64).to(dtype) if not dtype.is_floating_point else want.to(dtype)
                        equal(got, want)
                    if dtype.is_floating_point:
                        got = value(rank, count, dtype) * size
                        dist.all_reduce(got, dist.ReduceOp.AVG)
                        equal(got, all_values.sum(0).to(dtype))
        self.on_ranks(body)

    def test_bits_of_integers_and_bool_are_combined(self):
        integers = [d for d in REDUCED if not d.is_floating_point] + [torch.bool]
        def body(rank, size):
            for op, combine in [(dist.ReduceOp.BAND, torch.bitwise_and), (dist.ReduceOp.BOR, torch.bitwise_or),
                                (dist.ReduceOp.BXOR, torch.bitwise_xor)]:
                for dtype in integers:
                    for count in COUNTS:
                        values = [value(r, count * size, dtype, salt=r) for r in range(size)]
                        want = functools.reduce(combine, values)
                        got = values[rank].clone()
                        dist.all_reduce(got, op)
                        equal(got, want)
                        got = values[rank].clone()
                        dist.reduce(got, size - 1, op)
                        equal(got, want if rank == size - 1 else values[rank])
                        got = torch.empty(count, dtype=dtype)
                        dist.reduce_scatter(got, list(values[rank].split(count) if count else [got] * size), op)
                        equal(got, want[rank * count:(rank + 1) * count])
                        dist.reduce_scatter_tensor(got, values[rank], op)
                        equal(got, want[rank * count:(rank + 1) * count])
        self.on_ranks(body)

    def test_premul_sum_scales_each_contribution(self):
        def body(rank, size):
            make = getattr(dist, "_make_nccl_premul_sum", None)
            got = torch.full((5,), float(rank + 1))
            dist.all_reduce(got, make(0.5))
            equal(got, torch.full((5,), size * (size + 1) / 4))
            whole = torch.arange(size * 3.0)
            mine = torch.empty(3)
            dist.reduce_scatter_tensor(mine, whole, make(2.0))
            equal(mine, 2.0 * size * torch.arange(3.0 * rank, 3.0 * rank + 3))
        self.on_ranks(body)

    def test_bool_sums_are_or_and_complex_sums_add_parts(self):
        def body(rank, size):
            got = torch.tensor([rank == 0, False, True])
            dist.all_reduce(got)
            equal(got, torch.tensor([True, False, True]))
            got = torch.tensor([complex(rank, 1)])
            dist.all_reduce(got)
            equal(got, torch.tensor([complex(size * (size - 1) / 2, size)]))
        self.on_ranks(body, (2,))

    def test_every_type_is_moved(self):
        def body(rank, size):
            for dtype in MOVED:
                for count in COUNTS:
                    mine = [value(r, count, dtype) for r in range(size)]
                    got = mine[rank].clone()
                    dist.broadcast(got, size - 1)
                    equal(got, mine[size - 1])
                    parts = [torch.empty_like(mine[0]) for _ in range(size)]
                    dist.all_gather(parts, mine[rank])
                    for r in range(size):
                        equal(parts[r], mine[r])
                    whole = torch.empty(size * count, dtype=dtype)
                    dist.all_gather_into_tensor(whole, mine[rank])
                    equal(whole, torch.cat(mine))
                    got = torch.empty_like(mine[0])
                    dist.scatter(got, mine if rank == 0 else None, 0)
                    equal(got, mine[rank])
                    parts = [torch.empty_like(mine[0]) for _ in range(size)]
                    dist.gather(mine[rank], parts if rank == size - 1 else None, size - 1)
                    if rank == size - 1:
                        equal(torch.cat(parts), torch.cat(mine))
        self.on_ranks(body)

    def test_reduce_and_reduce_scatter(self):
        def body(rank, size):
            got = torch.full((4,), float(rank))
            dist.reduce(got, 0)
            equal(got, torch.full((4,), size * (size - 1) / 2 if rank == 0 else float(rank)))
            parts = [torch.full((3,), float(10 * r + rank)) for r in range(size)]
            got = torch.empty(3)
            dist.reduce_scatter(got, parts)
            equal(got, torch.full((3,), float(10 * rank * size + size * (size - 1) // 2)))
            got = torch.empty(3)
            dist.reduce_scatter_tensor(got, torch.cat(parts), dist.ReduceOp.AVG)
            equal(got, torch.full((3,), 10 * rank + (size - 1) / 2))
        self.on_ranks(body)

    def test_all_to_all_even_uneven_and_of_lists(self):
        def body(rank, size):
            rows = torch.arange(size * 2 * 3).reshape(size * 2, 3) + 100 * rank
            got = torch.empty_like(rows)
            dist.all_to_all_single(got, rows)
            want = torch.cat([torch.arange(size * 6).reshape(size * 2, 3)[2 * rank:2 * rank + 2] + 100 * r
                              for r in range(size)])
            equal(got, want)
            # rank r sends r + i rows to rank i
            send = [rank + i for i in range(size)]
            recv = [r + rank for r in range(size)]
            rows = torch.cat([torch.full((n, 2), rank * 10.0 + i) for i, n in enumerate(send)])
            got = torch.empty(sum(recv), 2)
            dist.all_to_all_single(got, rows, recv, send)
            equal(got, torch.cat([torch.full((n, 2), r * 10.0 + rank) for r, n in enumerate(recv)]))
            parts = [torch.full((n,), complex(rank, i)) for i, n in enumerate(send)]
            outs = [torch.empty(n, dtype=torch.complex64) for n in recv]
            dist.all_to_all(outs, parts)
            for r, out in enumerate(outs):
                equal(out, torch.full((recv[r],), complex(r, rank)))
        self.on_ranks(body)

    def test_tensors_need_not_be_contiguous(self):
        def strided(count, fill=0.0, cols=3, col=1):  # and the tensor whose column it is
            whole = torch.full((count, cols), -1.0)
            whole[:, col] = fill
            return whole[:, col], whole
        def untouched(whole):
            assert (whole[:, [0, 2]] == -1).all(), whole
        def body(rank, size):
            total = size * (size - 1) / 2
            grad = torch.arange(16.0).reshape(1, 4, 2, 2).contiguous(memory_format=torch.channels_last) + rank
            dist.all_reduce(grad)
            equal(grad, torch.arange(16.0).reshape(1, 4, 2, 2) * size + total)
            # Where only one rank's is not: elements meet by their place in the tensor, not in memory.
            mixed = torch.arange(6.0).reshape(2, 3) if rank == 0 else torch.arange(6.0).reshape(3, 2).t()
            want = torch.arange(6.0).reshape(2, 3) + (size - 1) * torch.arange(6.0).reshape(3, 2).t()
            dist.all_reduce(mixed)
            equal(mixed, want)
            for root in range(size):
                got, whole = strided(4, rank)
                dist.broadcast(got, root)
                equal(got, torch.full((4,), float(root)))
                untouched(whole)
                got, whole = strided(4, rank)
                dist.reduce(got, root)
                equal(got, torch.full((4,), total if rank == root else float(rank)))
                untouched(whole)
            mine, _ = strided(3, rank)
            columns = torch.full((3, size + 1), -1.0)
            dist.all_gather([columns[:, r] for r in range(size)], mine)
            equal(columns, torch.tensor([[*range(size), -1.0]] * 3))
            columns = torch.full((3, size + 1), -1.0)
            dist.gather(mine, [columns[:, r] for r in range(size)] if rank == 0 else None, 0)
            equal(columns[:, :size], torch.tensor([[*range(size)]] * 3, dtype=torch.float32) if rank == 0
                  else torch.full((3, size), -1.0))
            table = torch.arange(3.0 * size).reshape(3, size)
            got, whole = strided(3)
            dist.scatter(got, [table[:, r] for r in range(size)] if rank == 0 else None, 0)
            equal(got, table[:, rank].contiguous())
            untouched(whole)
            dist.reduce_scatter(got, [table[:, r] for r in range(size)])
            equal(got, table[:, rank] * size)
            gathered = torch.empty(2, 3 * size).t()
            dist.all_gather_into_tensor(gathered, torch.full((3, 2), float(rank)))
            equal(gathered, torch.arange(float(size)).repeat_interleave(3)[:, None].expand(-1, 2))
            part = torch.empty(2, 3).t()
            dist.reduce_scatter_tensor(part, gathered)
            equal(part, torch.full((3, 2), float(rank * size)))
            rows = (torch.arange(2.0 * size).reshape(2, size) + 100 * rank).t()  # [size, 2]
            got = torch.empty(2, size).t()
            dist.all_to_all_single(got, rows)
            want = torch.stack([torch.tensor([rank, size + rank]) + 100.0 * r for r in range(size)])
            equal(got, want)
            got = torch.empty(2, size).t()
            dist.all_to_all_single(got, rows, [1] * size, [1] * size)
            equal(got, want)
            lists = torch.full((2, size + 1), -1.0)
            dist.all_to_all([lists[:, r] for r in range(size)], list(rows))
            equal(lists[:, :size], want.t())
            columns = [strided(n, float(rank)) for n in (1, 5, 300_000)]
            for some in (columns[:2], columns[2:]):
                dist.all_reduce_coalesced([column for column, _ in some])
                for column, whole in some:
                    equal(column, torch.full_like(column, total))
                    untouched(whole)
            with torch.inference_mode():
                frozen = torch.ones(2, 3).t()
                dist.all_reduce(frozen)
                equal(frozen, torch.full((3, 2), float(size)))
            weight = torch.nn.Parameter(torch.full((2, 3), float(rank)).t())
            dist.broadcast(weight.data, 0)
            equal(weight.data, torch.zeros(3, 2))
            if rank == 0 and size > 1:
                dist.send(strided(3, 7.0)[0], 1, tag=4)
            elif rank == 1:
                got, whole = strided(3)
                dist.recv(got, 0, tag=4)
                equal(got, torch.full((3,), 7.0))
                untouched(whole)
        self.on_ranks(body)

    def test_sparse_tensors_are_added_up(self):
        def body(rank, size):
            # Ranks that share some, that have some twice, and one that has none.
            for dtype in (torch.float32, torch.int64):
                rows = torch.tensor([[rank, 9, rank, 3]])
                values = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]], dtype=dtype) * (rank + 1)
                mine = torch.sparse_coo_tensor(rows, values, (10, 2))
                if rank == 1:
                    mine = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), values[:0], (10, 2))
                got = mine.clone()
                dist.all_reduce(got)
                want = torch.zeros(10, 2, dtype=dtype)
                for r in (r for r in range(size) if r != 1):
                    for row, value in zip([r, 9, r, 3], torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])):
                        want[row] += (value * (r + 1)).to(dtype)
                equal(got.to_dense(), want)
                empty = torch.sparse_coo_tensor((10, 2), dtype=dtype)
                dist.all_reduce(empty)
                equal(empty.to_dense(), torch.zeros(10, 2, dtype=dtype))
            # As DistributedDataParallel does with the gradients of embeddings.
            def model():
                torch.manual_seed(0)
                return torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1))
            alone, together = model(), torch.nn.parallel.DistributedDataParallel(model())
            words = [torch.tensor([r, 3, 5 + r]) for r in range(size)]
            together(words[rank]).sum().backward()
            (sum(alone(w).sum() for w in words) / size).backward()
            for a, t in zip(alone.parameters(), together.module.parameters()):
                assert t.grad.is_sparse == a.grad.is_sparse
                assert torch.allclose(a.grad.to_dense(), t.grad.to_dense(), atol=1e-6)
        self.on_ranks(body)

    def test_shares_of_different_sizes(self):
        def body(rank, size):
            mine = torch.full((rank, 2), complex(rank, 1))
            parts = [torch.empty(r, 2, dtype=mine.dtype) for r in range(size)]
            dist.all_gather(parts, mine)
            for r in range(size):
                equal(parts[r], torch.full((r, 2), complex(r, 1)))
            whole = torch.full((size * (size + 1) // 2,), -1.0)
            parts = list(whole.split([r + 1 for r in range(size)]))
            parts[rank].fill_(rank)
            dist.all_gather(parts, parts[rank])  # in place
            equal(whole, torch.cat([torch.full((r + 1,), float(r)) for r in range(size)]))
            inputs = [torch.full((r + 1,), float(10 * r + rank)) for r in range(size)]
            got = torch.empty(rank + 1)
            dist.reduce_scatter(got, inputs)
            equal(got, torch.full((rank + 1,), 10.0 * rank * size + size * (size - 1) / 2))
            dist.reduce_scatter(got, inputs, dist.ReduceOp.AVG)
            equal(got, torch.full((rank + 1,), 10.0 * rank + (size - 1) / 2))
            columns = [torch.empty(3, r + 1).t() for r in range(size)]
            dist.all_gather(columns, torch.full((3, rank + 1), float(rank)).t())
            for r in range(size):
                equal(columns[r], torch.full((r + 1, 3), float(r)))
        self.on_ranks(body)

    def test_coalesced_operations(self):
        def body(rank, size):
            tensors = [torch.full((n,), float(rank)) for n in (1, 5, 300_000)]
            dist.all_reduce_coalesced(tensors)
            for tensor in tensors:
                equal(tensor, torch.full_like(tensor, size * (size - 1) / 2))
            small = [torch.full((n,), rank) for n in (1, 5)]
            dist.all_reduce_coalesced(small)
            equal(torch.cat(small), torch.full((6,), size * (size - 1) // 2))
            outs = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
            dist.all_gather_coalesced(outs, [torch.full((2,), float(rank)), torch.full((3,), -float(rank))])
            for r in range(size):
                equal(torch.cat(outs[r]), torch.tensor([r, r, -r, -r, -r], dtype=torch.float32))
        self.on_ranks(body)

    def test_asynchronous_work_completes_without_a_wait_and_its_future_runs_callbacks(self):
        def body(rank, size):
            import time
            works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(20)]
            futures = [w.get_future().then(lambda f: f.value()[0] * 2) for w in works]
            deadline = time.monotonic() + 30
            while not all(w.is_completed() for w in works):
                assert time.monotonic() < deadline, "nobody made progress"
                time.sleep(0.001)
            for future in futures:
                equal(future.wait(), torch.full((50_000,), 2.0 * size))
        self.on_ranks(body, (2,))

    def test_what_a_future_runs_may_wait_for_another_future(self):
        # As torch's PowerSGD hook does. First on the group's own thread, then with what was queued
        # before, two deep, while nobody else waits.
        def body(rank, size):
            def sum_of(value):
                return dist.all_reduce(torch.full((3,), float(value)), async_op=True).get_future()
            for round in range(20):
                first = sum_of(1)
                queued = sum_of(10)
                def deeper(done):
                    return sum_of(100).then(lambda last: last.value()[0] + sum_of(1000).wait()[0]).wait()
                chained = first.then(lambda done: done.value()[0] + queued.wait()[0] + deeper(done))
                equal(chained.wait(), torch.full((3,), 1111.0 * size))
        self.on_ranks(body, (2,))

    def test_tensors_that_nobody_holds_any_more_end_while_others_are_submitted(self):
        # The last to hold such a tensor is the group's thread, which needs the interpreter's lock to
        # let go of it; this thread, with that lock, asks the group for the next future.
        def body(rank, size):
            def sum_of(value):
                return dist.all_reduce(torch.full((3,), float(value)), async_op=True).get_future()
            def next_of(value):
                got = torch.zeros(1)
                dist.isend(torch.full((1,), float(value)), 1 - rank)
                return dist.irecv(got, 1 - rank).get_future()
            for start in (sum_of, next_of):
                scale = size if start is sum_of else 1
                for round in range(4000):
                    inner = lambda last: last.value()[0][:1]
                    chained = start(1).then(lambda done: done.value()[0][:1] + start(10).then(inner).wait())
                    equal(chained.wait(), torch.tensor([11.0 * scale]))
        self.on_ranks(body, (2,))

    def test_groups_of_some_ranks_and_sequence_numbers(self):
        def body(rank, size):
            pair = dist.new_group([0, 2])
            rest = dist.new_group([1])
            group = rest if rank == 1 else pair
            got = torch.tensor([rank])
            dist.all_reduce(got, group=group)
            equal(got, torch.tensor([1 if rank == 1 else 2]))
            backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group
            assert backend._get_sequence_number_for_group() == 1
            dist.barrier()
            objects = [None] * size
            dist.all_gather_object(objects, {"rank": rank})
            assert [o["rank"] for o in objects] == list(range(size))
            chorus_torch.monitored_barrier(timeout=timedelta(seconds=30))
            chorus_torch.monitored_barrier()
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                chorus_torch.monitored_barrier(pair)
            assert [str(w.message) for w in warned] == ["monitored_barrier: rank 1 is not in the group, so it does "
                                                        "nothing"] * (rank == 1), warned
        self.on_ranks(body, (3,))

    def test_fifty_groups_take_no_more_descriptors_than_gloos(self):
        def used(backend):
            counts = multiprocessing.Array("i", 4)
            def body(rank, size):
                resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
                before = len(os.listdir("/proc/self/fd"))
                groups = [dist.new_group(range(size)) for _ in range(50)]
                for group in groups:
                    got = torch.ones(2)
                    dist.all_reduce(got, group=group)
                    equal(got, torch.full((2,), float(size)))
                    if rank < 2:
                        dist.send(got, 1, group=group) if rank == 0 else dist.recv(got, 0, group=group)
                counts[rank] = len(os.listdir("/proc/self/fd")) - before
                dist.barrier()
            self.assertEqual(run(4, body, backend=backend), [""] * 4)
            return list(counts)
        for ours, gloos in zip(used("chorus"), used("gloo")):
            self.assertLessEqual(ours, gloos)

    def test_groups_are_made_after_the_first_is_gone(self):
        def body(rank, size):
            for again in range(3):  # each time anew there is no group that the part could be made from
                part = dist.new_group([0, 2])
                if rank != 1:
                    got = torch.tensor([rank])
                    dist.all_reduce(got, group=part)
                    equal(got, torch.tensor([2]))
                dist.barrier()
                dist.destroy_process_group()
                start(rank, size, os.path.join(folder, f"{size}-{again}"))
        with tempfile.TemporaryDirectory() as folder:
            self.on_ranks(body, (3,))

    @unittest.skipUnless(hasattr(dist.ProcessGroup, "split_group"), "this torch has no backends that split")
    def test_groups_are_split_off_and_describe_themselves(self):
        def body(rank, size):
            cpu = torch.device("cpu")
            options = dist.group.WORLD._get_backend(cpu).options
            assert (options.backend, options._timeout) == ("chorus", timedelta(seconds=60)), options
            part = dist.split_group(split_ranks=[[2, 0], [1]], timeout=timedelta(seconds=50))
            assert dist.get_process_group_ranks(part) == ([1] if rank == 1 else [2, 0])
            got = torch.tensor([rank + 1])
            dist.all_reduce(got, group=part)
            equal(got, torch.tensor([2 if rank == 1 else 4]))
            got = torch.tensor([rank])
            dist.broadcast(got, group_src=0, group=part)
            equal(got, torch.tensor([1 if rank == 1 else 2]))
            options = part._get_backend(cpu).options
            assert options._timeout == timedelta(seconds=50) and options.global_ranks_in_group == \
                ([1] if rank == 1 else [2, 0])
            again = dist.split_group(part, [[1]])
            assert (again == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 2) or rank == 1
            dist.barrier()
        self.on_ranks(body, (3,))

    @unittest.skipUnless(hasattr(dist.ProcessGroup, "gather_single"), "this torch gathers into lists alone")
    def test_a_gather_into_one_tensor(self):
        def body(rank, size):
            whole = torch.empty(3 * size)
            options = dist.GatherOptions()
            options.rootRank = 0
            dist.group.WORLD.gather_single(whole, torch.full((3,), float(rank)), options).wait()
            if rank == 0:
                equal(whole, torch.arange(float(size)).repeat_interleave(3))
        self.on_ranks(body, (1, 3))


if __name__ == "__main__":
    unittest.main()
