"""The same operations of torch.distributed through Gloo and Chorus, in one run, every result checked.

    torchrun --standalone --nproc_per_node=2 perf/torch/operations.py [--deepspeed] [--json FILE] [--note TEXT]

Blocks of the backends alternate; a figure is the median over all iterations of the slowest rank. --deepspeed adds
DeepSpeed's all-reduce in shared memory (examples/pytorch/deepspeed_op.py).
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import chorus_torch
from record import save

BACKENDS = ["gloo", "chorus"]
SIZES = [4, 64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 4 << 20, 64 << 20]


def operations(group, rank, size, count, in_place=None):
    """Name -> (what to run, whether its result is right); inputs are set before each run. `in_place`: an all-reduce to
    take in place of torch's."""
    in_place = in_place or (lambda data: dist.all_reduce(data, group=group))
    ones = torch.ones(count)
    data = torch.ones(count)
    block = max(count // size, 1)
    mine, whole = torch.full((block,), float(rank)), torch.empty(size * block)
    rows = torch.full((size * block,), float(rank))
    parts = list(torch.empty(size * block).chunk(size))
    expected = torch.arange(float(size)).repeat_interleave(block)

    def all_reduce():
        data.copy_(ones)
        in_place(data)

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
    parser.add_argument("--largest", type=int, default=64 << 20)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--budget-ms", type=float, default=40)
    parser.add_argument("--deepspeed", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {"gloo": dist.group.WORLD, "chorus": dist.new_group(backend="chorus")}
    deepspeed = None
    if options.deepspeed:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
        import deepspeed_op

        deepspeed = deepspeed_op.load()
    rows = []
    for name in operations(groups["gloo"], rank, size, 1):
        for bytes_ in (b for b in SIZES if b <= options.largest):
            row = {"operation": name, "bytes": bytes_, "ranks": size}
            try:
                runs = {b: operations(groups[b], rank, size, bytes_ // 4)[name] for b in BACKENDS}
                if deepspeed and name == "all_reduce":
                    runs["deepspeed"] = operations(None, rank, size, bytes_ // 4, deepspeed)[name]
                times = {backend: [] for backend in runs}
                for backend in runs:
                    timed(runs[backend][0], 3)
                once = torch.tensor([statistics.median(timed(run, 3)) for run, _ in runs.values()])
                dist.all_reduce(once, dist.ReduceOp.MAX)
                iterations = {b: max(3, min(300, int(options.budget_ms * 1000 / us))) for b, us in zip(runs, once.tolist())}
                for _ in range(options.blocks):
                    for backend in runs:
                        dist.barrier()
                        mine = torch.tensor(timed(runs[backend][0], iterations[backend]))
                        assert runs[backend][1](), f"{name} through {backend} is wrong"
                        dist.all_reduce(mine, dist.ReduceOp.MAX)
                        times[backend] += mine.tolist()
                for backend in runs:
                    row[backend + "_us"] = round(statistics.median(times[backend]), 2)
                row["ratio"] = round(row["chorus_us"] / row["gloo_us"], 3)
                if "deepspeed_us" in row:
                    row["to_deepspeed"] = round(row["chorus_us"] / row["deepspeed_us"], 3)
            except RuntimeError as error:  # Gloo of torch 1.13 has no all_to_all, for example
                row["error"] = str(error).splitlines()[0]
            rows.append(row)
            if rank == 0:
                print(row, flush=True)
    if rank == 0 and options.json:
        save(options.json, options.note, {"ranks": size, "rows": rows})
    dist.destroy_process_group()


main()
