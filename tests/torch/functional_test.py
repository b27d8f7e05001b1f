"""What torch builds on top of collectives gives the same through Chorus as through Gloo: functional
collectives, the coalescing manager, compiled steps."""

import os
import tempfile
import unittest

import torch
import torch.distributed as dist

from ranks import OnRanks, equal

try:
    import torch.distributed._functional_collectives as fc
except ImportError:
    print(f"skipped: torch {torch.__version__} has no functional collectives")
    raise SystemExit(77)
import torch._dynamo  # else each rank would, with its first functional collective

all_gather = getattr(fc, "all_gather_single", fc.all_gather_tensor)
reduce_scatter = getattr(fc, "reduce_scatter_single", fc.reduce_scatter_tensor)


def numbers(*shape, rank=0, dtype=torch.float32):
    """Small integers that differ by rank: exact in whatever order they are added up."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 3 + 5 * rank) % 11 - 3).reshape(shape).to(dtype)


def plain(result):
    """Tensors of `result`, waited for."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [part.wait() if isinstance(part, fc.AsyncCollectiveTensor) else part for part in parts]


def as_gloo(case):
    """Runs case(group, rank, size) on both backends of the same ranks and compares what it returns."""

    def body(rank, size):
        want = plain(case(dist.new_group(backend="gloo"), rank, size))
        got = plain(case(dist.new_group(), rank, size))
        assert len(got) == len(want) > 0
        for ours, gloos in zip(got, want):
            equal(ours, gloos)

    return body


class Functional(OnRanks):
    def test_reductions(self):
        def case(group, rank, size):
            result = []
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                for op in ("sum", "min", "max", "product"):
                    mine = numbers(4 * size, 3, rank=rank, dtype=dtype)
                    result.append(fc.all_reduce(mine, op, group))
                    equal(mine, numbers(4 * size, 3, rank=rank, dtype=dtype))  # it is out of place
                for dim in (0, 1):
                    mine = numbers(2 * size, 3 * size, rank=rank, dtype=dtype)
                    result.append(reduce_scatter(mine, "sum", dim, group))
            for op in ("band", "bor", "bxor"):
                result.append(fc.all_reduce(numbers(7, rank=rank, dtype=torch.int32), op, group))
            return result

        self.on_ranks(as_gloo(case))

    def test_averages(self):  # which Gloo has not
        def body(rank, size):
            got = fc.all_reduce(torch.full((3,), float(rank)), "avg", dist.group.WORLD)
            equal(got.wait(), torch.full((3,), (size - 1) / 2))
            got = reduce_scatter(torch.full((3 * size,), float(rank)), "avg", 0, dist.group.WORLD)
            equal(got.wait(), torch.full((3,), (size - 1) / 2))

        self.on_ranks(body)

    def test_movements(self):
        def case(group, rank, size):
            mine = numbers(4, 3, rank=rank)
            result = [all_gather(mine, dim, group) for dim in (0, 1)]
            result.append(all_gather(mine.t(), 0, group))
            result.append(all_gather(torch.tensor(float(rank)).reshape(1), 0, group))
            result.append(all_gather(mine[:0], 0, group))
            result += [fc.broadcast(mine, root, group) for root in range(size)]
            rows = numbers(2 * size, 3, rank=rank)
            result.append(fc.all_to_all_single(rows, None, None, group))
            send, receive = [rank + i for i in range(size)], [r + rank for r in range(size)]
            result.append(fc.all_to_all_single(numbers(sum(send), 2, rank=rank), receive, send, group))
            result.append(fc.permute_tensor(numbers(5, rank=rank), [(r + 1) % size for r in range(size)], group))
            return result

        self.on_ranks(as_gloo(case))

    def test_lists(self):
        def case(group, rank, size):
            shapes = [(1,), (2, 3), (70_000, 5)]  # the last does not travel with others
            mine = [numbers(*shape, rank=rank) for shape in shapes]
            wide = [numbers(shape[0] * size, *shape[1:], rank=rank) for shape in shapes]
            result = fc.all_reduce_coalesced(mine, "sum", group)
            result += fc.all_gather_into_tensor_coalesced(mine, group)
            result += fc.reduce_scatter_tensor_coalesced(wide, "sum", [0] * len(wide), group)
            mixed = [numbers(3, rank=rank), numbers(4, rank=rank, dtype=torch.int32)]
            result += fc.all_gather_into_tensor_coalesced(mixed, group)
            return result

        self.on_ranks(as_gloo(case))

    def test_gradients_go_back_through_them(self):
        def case(group, rank, size):
            result = []
            for collective in (
                lambda x: fc.all_gather_tensor_autograd(x, 0, group),
                lambda x: fc.reduce_scatter_tensor_autograd(x, "sum", 0, group),
                lambda x: fc.all_to_all_single_autograd(x, None, None, group),
            ):
                x = numbers(2 * size, 3, rank=rank).requires_grad_()
                y = plain(collective(x))[0]
                (y * numbers(*y.shape, rank=rank + 1)).sum().backward()
                result += [y.detach(), x.grad]
            return result

        self.on_ranks(as_gloo(case))

    def test_views_are_taken_and_other_work_is_done_before_the_wait(self):
        def case(group, rank, size):
            sums = [fc.all_reduce(numbers(6, rank=rank) + i, "sum", group) for i in range(20)]
            views = [tensor.view(2, 3)[1] for tensor in sums]
            gathered = [all_gather(numbers(2, rank=rank), 0, group) for _ in range(3)]
            dropped = fc.all_reduce(numbers(1000, rank=rank), "max", group)  # nobody waits for it
            del dropped
            return [view + 1 for view in reversed(views)] + gathered

        self.on_ranks(as_gloo(case))

    def test_in_place(self):
        def case(group, rank, size):
            ops, name = torch.ops._c10d_functional, group.group_name
            summed = numbers(5, rank=rank)
            several = [numbers(3, rank=rank), numbers(2, rank=rank)]
            told = numbers(4, rank=rank)
            whole = torch.empty(3 * size)
            works = [ops.all_reduce_(summed, "sum", name), *ops.all_reduce_coalesced_(several, "max", name),
                     ops.broadcast_(told, size - 1, name),
                     ops.all_gather_into_tensor_out(numbers(3, rank=rank), size, name, out=whole)]
            for tensor in works:
                ops.wait_tensor(tensor)
            return [summed, *several, told, whole]

        self.on_ranks(as_gloo(case))


    @unittest.skipUnless(hasattr(fc, "batch_p2p_ops_inplace"), "this torch has no functional messages")
    def test_messages(self):
        def case(group, rank, size):
            there, here = (rank + 1) % size, (rank - 1) % size
            sent = fc.isend_inplace(numbers(3, rank=rank), group_dst=there, tag=1, group=group)
            received = fc.irecv_inplace(torch.empty(3), group_src=here, tag=1, group=group).wait()
            fc.wait_tensor(sent)
            return [received, fc.batch_p2p_ops_inplace(["isend", "irecv"], [there, here], [2, 2],
                                                       [numbers(4, rank=rank), torch.empty(4)], group)[1]]

        self.on_ranks(as_gloo(case), (2, 3))


class Coalescing(OnRanks):
    def test_the_manager_joins_calls_of_one_kind(self):
        def case(group, rank, size):
            summed = [numbers(n, rank=rank) for n in (1, 5, 300_000)]
            with dist._coalescing_manager(group):
                for tensor in summed:
                    dist.all_reduce(tensor, group=group)
            wholes = [torch.empty(n * size) for n in (2, 3)]
            with dist._coalescing_manager(group, async_ops=True) as manager:
                for n, whole in zip((2, 3), wholes):
                    dist.all_gather_into_tensor(whole, numbers(n, rank=rank), group=group)
            manager.wait()
            parts = [torch.empty(n) for n in (2, 3)]
            with dist._coalescing_manager(group):
                for n, part in zip((2, 3), parts):
                    dist.reduce_scatter_tensor(part, numbers(n * size, rank=rank), group=group)
            return summed + wholes + parts

        self.on_ranks(as_gloo(case))

    def test_the_manager_joins_calls_of_any_kind_on_a_device(self):  # which Gloo has not
        def body(rank, size):
            summed, told, received = torch.full((3,), float(rank)), torch.full((2,), float(rank)), torch.empty(4)
            with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
                dist.broadcast(told, size - 1)
                dist.send(torch.full((4,), float(rank)), (rank + 1) % size)
                dist.recv(received, (rank - 1) % size)
            manager.wait()
            dist.all_reduce(summed)
            equal(summed, torch.full((3,), size * (size - 1) / 2))
            equal(told, torch.full((2,), float(size - 1)))
            equal(received, torch.full((4,), float((rank - 1) % size)))

        self.on_ranks(body, (2, 3))


def compiled(function):
    return torch.compile(function, fullgraph=True)


class Compiled(OnRanks):
    """On two ranks: what is compiled takes seconds."""

    def test_a_step_with_functional_collectives(self):
        def case(group, rank, size):
            @compiled
            def step(x, weight):
                y = torch.relu(x @ weight)
                y = fc.all_reduce(y, "sum", group) * 2
                rows = all_gather(y, 0, group).sum(1)
                return reduce_scatter(rows * rows, "sum", 0, group) + 1

            x = numbers(2, 3, rank=rank).requires_grad_()
            y = step(x, numbers(3, 4))
            y.sum().backward()
            return [y.detach(), x.grad]

        self.on_ranks(as_gloo(case), (2,))

    def test_a_step_with_collectives_in_place(self):
        def case(group, rank, size):
            @compiled
            def step(x):
                y = x + 1
                dist.all_reduce(y, group=group)
                whole = torch.empty(size * 3)
                dist.all_gather_into_tensor(whole, y * y, group=group)
                part = torch.empty(3)
                dist.reduce_scatter_tensor(part, whole - 1, group=group)
                return part * 2, whole

            return step(numbers(3, rank=rank))

        self.on_ranks(as_gloo(case), (2,))

    def test_distributed_data_parallel(self):
        def case(group, rank, size):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
            step, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), 0.1)
            for i in range(3):
                optimizer.zero_grad()
                step(numbers(5, 6, rank=rank + i)).square().mean().backward()
                optimizer.step()
            return [parameter.detach() for parameter in model.parameters()]

        self.on_ranks(as_gloo(case), (2,))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="chorus-torch-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        unittest.main(warnings="ignore")  # of names that later versions of torch replaced
