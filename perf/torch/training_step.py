"""A training step of a GPT through Gloo and Chorus in one run, gradients compared: under DistributedDataParallel, FSDP2,
or DistributedDataParallel with ZeroRedundancyOptimizer.

    torchrun --standalone --nproc_per_node=2 perf/torch/training_step.py [ddp | fsdp | zero] [--json FILE] [--note TEXT]
    chorus-perf cluster run pairs -- python3 perf/torch/training_step.py ddp --all-reduce-16m-ms 702

Steps without communication, through Gloo and through Chorus alternate. A step's time is that of its slowest rank, a
figure the median; exposed is what a step takes beyond one without communication; cpu_ms is of all threads of a rank,
the mean of the ranks. --all-reduce-16m-ms is the least that an all-reduce of 16 MiB can take on these wires
(chorus-perf cluster show): from that, and from when each bucket of gradients was ready and how large it is,
follows the least that any library must leave exposed, exposed_limit_ms.
"""

import argparse
import copy
import os
import resource
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import chorus_torch
from gloo_interface import name_the_interface
from record import save

MODES = ["alone", "gloo", "chorus"]


class Gpt(torch.nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary=256):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.places = torch.nn.Parameter(torch.zeros(context, width))
        block = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True,
                                                 norm_first=True)
        self.blocks = torch.nn.ModuleList([copy.deepcopy(block) for _ in range(layers)])
        self.head = torch.nn.Linear(width, vocabulary)
        self.later = torch.ones(context, context, dtype=torch.bool).triu(1)  # no buffer: is not sent

    def forward(self, tokens):  # [batch, context] -> [batch, context, vocabulary]
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x, self.later)
        return self.head(x)


def in_parallel(model, group, bucket_mb):
    return DistributedDataParallel(model, process_group=group, **({"bucket_cap_mb": bucket_mb} if bucket_mb else {}))


def prepared(method, model, group, bucket_mb):
    """The model as `method` has it, over a group, and its optimizer."""
    if method == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.DeviceMesh.from_group(group, "cpu")
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.SGD(model.parameters(), 1e-3)
    parallel = in_parallel(model, group, bucket_mb)
    if method == "zero":
        return parallel, ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.SGD, process_group=group, lr=1e-3)
    return parallel, torch.optim.SGD(parallel.parameters(), 1e-3)


def step(model, optimizer, tokens):
    model.zero_grad()
    scores = model(tokens[:, :-1])
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()


def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def gradients(model):
    return [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters()]


def exposed_limit_s(model, tokens, group, bucket_mb, s_per_byte):
    """What wires that carry an all-reduced byte in s_per_byte must leave exposed, however it is done: a bucket travels when
    it is ready and those before it have. On the rank with the most."""
    ready = []

    def at_once(_, bucket):
        ready.append((time.perf_counter(), bucket.buffer().nbytes))
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    parallel = in_parallel(copy.deepcopy(model), group, bucket_mb)
    parallel.register_comm_hook(None, at_once)
    optimizer = torch.optim.SGD(parallel.parameters(), 1e-3)
    limits = []
    for _ in range(5):
        ready.clear()
        dist.barrier()
        step(parallel, optimizer, tokens)
        end, through = time.perf_counter(), 0.0
        for begin, size in ready:
            through = max(through, begin) + size * s_per_byte
        limits.append(through - end)
    worst = torch.tensor([statistics.median(limits)])
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item(), [size for _, size in ready]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", nargs="?", default="ddp", choices=["ddp", "fsdp", "zero"])
    parser.add_argument("--json")
    parser.add_argument("--note", default="")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--bucket-mb", type=float, help="of DistributedDataParallel: all, else the first 1 MiB, others 25")
    parser.add_argument("--all-reduce-16m-ms", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    name_the_interface()
    limit = timedelta(minutes=2)
    dist.init_process_group("gloo", timeout=limit)
    groups = {"gloo": dist.group.WORLD, "chorus": dist.new_group(backend="chorus", timeout=limit)}
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Gpt(options.layers, options.width, options.width // 64, options.context)
    runs = {name: prepared(options.method, copy.deepcopy(model), group, options.bucket_mb)
            for name, group in groups.items()}
    alone = copy.deepcopy(model)
    runs["alone"] = alone, torch.optim.SGD(alone.parameters(), 1e-3)
    data = torch.Generator().manual_seed(100 + rank)
    times, cpu = {mode: [] for mode in MODES}, {mode: [] for mode in MODES}
    for index in range(options.steps + 1):
        tokens = torch.randint(256, (options.batch, options.context + 1), generator=data)
        for mode in MODES:
            dist.barrier()
            begin, used = time.perf_counter(), cpu_s()
            step(*runs[mode], tokens)
            taken = torch.tensor([time.perf_counter() - begin])
            spent = torch.tensor([cpu_s() - used]) / size
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            dist.all_reduce(spent)
            if index > 0:  # in the first one buckets are put in order
                times[mode].append(taken.item() * 1e3)
                cpu[mode].append(spent.item() * 1e3)
        for mine, theirs in zip(gradients(runs["chorus"][0]), gradients(runs["gloo"][0])):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    result = {"method": options.method, "parameters": sum(p.numel() for p in model.parameters()), "ranks": size,
              "steps": options.steps, "tokens_per_rank": options.batch * options.context}
    for mode in MODES:
        result[mode + "_ms"] = round(statistics.median(times[mode]), 1)
        result[mode + "_cpu_ms"] = round(statistics.median(cpu[mode]), 1)
        result[mode + "_all_ms"] = [round(t, 1) for t in times[mode]]
    for mode in MODES[1:]:
        result[mode + "_exposed_ms"] = round(result[mode + "_ms"] - result["alone_ms"], 1)
    result["exposed_ratio"] = round(result["chorus_exposed_ms"] / result["gloo_exposed_ms"], 3)
    if options.all_reduce_16m_ms and options.method == "ddp":
        s_per_byte = options.all_reduce_16m_ms / 1e3 / (16 << 20)
        least, buckets = exposed_limit_s(model, tokens, groups["gloo"], options.bucket_mb, s_per_byte)
        result |= {"wire_ms": round(sum(buckets) * s_per_byte * 1e3, 1), "bucket_bytes": buckets,
                   "exposed_limit_ms": round(least * 1e3, 1)}
    if rank == 0:
        print(result, flush=True)
        if options.json:
            save(options.json, options.note, result)
    dist.destroy_process_group()


main()
