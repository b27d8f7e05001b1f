"""A training step of a GPT under DistributedDataParallel through Gloo and Chorus in one run, gradients
compared.

    torchrun --standalone --nproc_per_node=2 perf/torch/ddp_step.py [--json FILE] [--note TEXT]
    chorus-perf cluster run pairs -- python3 perf/torch/ddp_step.py ...

Steps without communication, through Gloo and through Chorus alternate. A step's time is that of its
slowest rank, a figure the median; exposed is what a step takes beyond one without communication.
"""

import argparse
import copy
import os
import socket
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import chorus_torch
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


def name_the_interface():
    """Gloo takes the address of the host's name, which on an emulated host is the loopback's."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    if not os.environ.get("MASTER_ADDR", "127.").startswith("127.") and len(names) == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])


def step(model, tokens):
    model.zero_grad()
    scores = model(tokens[:, :-1])
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--note", default="")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    name_the_interface()
    limit = timedelta(minutes=2)
    dist.init_process_group("gloo", timeout=limit)
    groups = {"gloo": dist.group.WORLD, "chorus": dist.new_group(backend="chorus", timeout=limit)}
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Gpt(options.layers, options.width, options.width // 64, options.context)
    parameters = sum(p.numel() for p in model.parameters())
    models = {name: DistributedDataParallel(copy.deepcopy(model), process_group=group)
              for name, group in groups.items()}
    data = torch.Generator().manual_seed(100 + rank)
    times = {mode: [] for mode in MODES}
    for index in range(options.steps + 1):
        tokens = torch.randint(256, (options.batch, options.context + 1), generator=data)
        for mode in MODES:
            dist.barrier()
            begin = time.perf_counter()
            if mode == "alone":
                with models["gloo"].no_sync():
                    step(models["gloo"], tokens)
            else:
                step(models[mode], tokens)
            taken = torch.tensor([time.perf_counter() - begin])
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if index > 0:  # in the first one buckets are put in order
                times[mode].append(taken.item() * 1e3)
        for mine, theirs in zip(models["chorus"].parameters(), models["gloo"].parameters()):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    result = {"parameters": parameters, "ranks": size, "steps": options.steps,
              "tokens_per_rank": options.batch * options.context}
    for mode in MODES:
        result[mode + "_ms"] = round(statistics.median(times[mode]), 1)
        result[mode + "_all_ms"] = [round(t, 1) for t in times[mode]]
    for mode in MODES[1:]:
        result[mode + "_exposed_ms"] = round(result[mode + "_ms"] - result["alone_ms"], 1)
    result["exposed_ratio"] = round(result["chorus_exposed_ms"] / result["gloo_exposed_ms"], 3)
    if rank == 0:
        print(result, flush=True)
        if options.json:
            save(options.json, options.note, result)
    dist.destroy_process_group()


main()
