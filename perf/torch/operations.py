"""The same operations of torch.distributed through Gloo and Chorus, in one run, every result checked.

    torchrun --standalone --nproc_per_node=2 perf/torch/operations.py [--json FILE] [--note TEXT]

Blocks of the two backends alternate; a figure is the median over all iterations of the slowest rank.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

import chorus_torch
from record import save

BACKENDS = ["gloo", "chorus"]
SIZES = [4, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20]


def operations(group, rank, size, count):
    """Name -> (what to run, whether its result is right); inputs are set before each run."""
    ones = torch.ones(count)
    data = torch.ones(count)
    block = max(count // size, 1)
    mine, whole = torch.full((block,), float(rank)), torch.empty(size * block)
    rows = torch.full((size * block,), float(rank))
    parts = list(torch.empty(size * block).chunk(size))
    expected = torch.arange(float(size)).repeat_interleave(block)

    def all_reduce():
        data.copy_(ones)
        dist.all_reduce(data, group=group)

    def all_gather():
        dist.all_gather(parts, mine, group=group)

    def broadcast():
        dist.broadcast(data, 0, group=group)

    def all_to_all():
        dist.all_to_all_single(whole, rows, group=group)

    def ping_pong():
        if rank == 0:
            dist.send(data, 1, group=group)
            dist.recv(data, 1, group=group)
        elif rank == 1:
            dist.recv(data, 0, group=group)
            dist.send(data, 0, group=group)

    return {
        "all_reduce": (all_reduce, lambda: bool((data == size).all())),
        "all_gather": (all_gather, lambda: torch.equal(torch.cat(parts), expected)),
        "broadcast": (broadcast, lambda: bool((data == data[0]).all())),
        "all_to_all": (all_to_all, lambda: torch.equal(whole, expected)),
        "ping_pong": (ping_pong, lambda: bool((data == data[0]).all())),
    }


def timed(run, iterations):
    times = []
    for _ in range(iterations):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--note", default="")
    parser.add_argument("--max", type=int, default=64 << 20)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--budget-ms", type=float, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {"gloo": dist.group.WORLD, "chorus": dist.new_group(backend="chorus")}
    rows = []
    for name in operations(groups["gloo"], rank, size, 1):
        for bytes_ in (b for b in SIZES if b <= options.max):
            row = {"operation": name, "bytes": bytes_, "ranks": size}
            times = {backend: [] for backend in BACKENDS}
            try:
                runs = {b: operations(groups[b], rank, size, bytes_ // 4)[name] for b in BACKENDS}
                for backend in BACKENDS:
                    timed(runs[backend][0], 3)
                once = torch.tensor([max(statistics.median(timed(runs[b][0], 3)) for b in BACKENDS)])
                dist.all_reduce(once, dist.ReduceOp.MAX)
                iterations = max(3, min(300, int(options.budget_ms * 1000 / once.item())))
                for _ in range(options.blocks):
                    for backend in BACKENDS:
                        dist.barrier()
                        mine = torch.tensor(timed(runs[backend][0], iterations))
                        assert runs[backend][1](), f"{name} through {backend} is wrong"
                        dist.all_reduce(mine, dist.ReduceOp.MAX)
                        times[backend] += mine.tolist()
                for backend in BACKENDS:
                    row[backend + "_us"] = round(statistics.median(times[backend]), 2)
                row["ratio"] = round(row["chorus_us"] / row["gloo_us"], 3)
            except RuntimeError as error:  # Gloo of torch 1.13 has no all_to_all, for example
                row["error"] = str(error).splitlines()[0]
            rows.append(row)
            if rank == 0:
                print(row, flush=True)
    if rank == 0 and options.json:
        save(options.json, options.note, {"ranks": size, "rows": rows})
    dist.destroy_process_group()


main()
