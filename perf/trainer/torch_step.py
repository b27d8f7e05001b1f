#!/usr/bin/env python3
"""Training steps of the trainer's model in PyTorch: figures.py runs it beside `train`.

    python3 perf/trainer/torch_step.py --layers 4 --width 256 --heads 4 --context 128 --batch 4
    python3 perf/trainer/torch_step.py --ranks 2 ...
    chorus-perf cluster run homo -- python3 perf/trainer/torch_step.py ...

The same layers (learned positions, LayerNorm, GELU, causal attention, tied matrices), AdamW, clipping and one thread
per rank. Replicas, of --ranks or by a launcher, are DistributedDataParallel over Gloo, and steps without communication alternate with
theirs. Prints JSON: medians in seconds, of several ranks those of the slowest.
"""

import argparse
import copy
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "torch"))
from gloo_interface import name_the_interface


class Layer(torch.nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.norm2 = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.later = torch.ones(context, context, dtype=torch.bool).triu(1)  # no buffer: is not sent

    def forward(self, x):  # [batch, context, width]
        batch, context, width = x.shape
        q, k, v = (part.view(batch, context, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(width, 2))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(width // self.heads)
        seen = functional.softmax(scores.masked_fill(self.later, -math.inf), dim=-1) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(batch, context, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, options, vocabulary=256):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, options.width)
        self.places = torch.nn.Parameter(torch.zeros(options.context, options.width))
        torch.nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = torch.nn.ModuleList(
            [Layer(options.width, options.heads, options.context) for _ in range(options.layers)])
        self.norm = torch.nn.LayerNorm(options.width)

    def forward(self, tokens, targets):  # [batch, context] -> the mean loss
        x = self.tokens(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(options, rank, index):
    """Tokens and targets [batch, context] of each micro-batch; each token has four successors, as in `train`."""
    table = torch.randint(256, (256, 4), generator=torch.Generator().manual_seed(5))
    source = torch.Generator().manual_seed(1000 * index + rank)
    for _ in range(options.micro_batches):
        row = [torch.randint(256, (options.batch,), generator=source)]
        for _ in range(options.context):
            row.append(table[row[-1], torch.randint(4, (options.batch,), generator=source)])
        tokens = torch.stack(row, 1)
        yield tokens[:, :-1], tokens[:, 1:]


class Run:
    """A model and its optimizer; replicated where `group` is given."""

    def __init__(self, model, options, group=None):
        self.options = options
        self.model = copy.deepcopy(model)
        self.replica = DistributedDataParallel(self.model, process_group=group) if group else None
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def passes(self, model, tokens, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16):
            loss = model(tokens, targets) / self.options.micro_batches
        loss.backward()
        return loss.item()

    def step(self, data):
        """Seconds, and the loss."""
        begin = time.perf_counter()
        self.adam.zero_grad(set_to_none=False)
        loss = 0
        for index, (tokens, targets) in enumerate(data):
            if self.replica and index + 1 < len(data):
                with self.replica.no_sync():
                    loss += self.passes(self.replica, tokens, targets)
            else:
                loss += self.passes(self.replica or self.model, tokens, targets)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        return time.perf_counter() - begin, loss


def start(ranks):
    """This program on so many ranks of this machine: Debian's torchrun does not work with its Python."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks))
    all_ranks = [subprocess.Popen([sys.executable, *sys.argv], env=dict(where, RANK=str(r))) for r in range(ranks)]
    try:
        return max(abs(each.wait()) for each in all_ranks)
    finally:
        for each in all_ranks:
            each.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("width", 256), ("heads", 4), ("context", 128), ("batch", 4),
                          ("micro-batches", 1), ("steps", 10)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--bfloat16", action="store_true", help="products under torch.autocast")
    parser.add_argument("--ranks", type=int, default=1, help="replicas to start on this machine")
    options = parser.parse_args()
    if options.ranks > 1 and "WORLD_SIZE" not in os.environ:
        return start(options.ranks)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        name_the_interface()
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    model = Gpt(options)
    runs = {"alone": Run(model, options)}
    if ranks > 1:
        runs["ddp"] = Run(model, options, dist.group.WORLD)
    times = {name: [] for name in runs}
    losses = []
    for index in range(options.steps + 2):
        data = list(batches(options, rank, index))
        for name, run in runs.items():
            if ranks > 1:
                dist.barrier()
            seconds, loss = run.step(data)
            if ranks > 1:
                slowest = torch.tensor([seconds])
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                seconds = slowest.item()
            if index > 1:  # memory and buckets are found in the first ones
                times[name].append(seconds)
        losses.append(loss)
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "ranks": ranks, "steps": options.steps,
                          "parameters": sum(p.numel() for p in model.parameters()),
                          "first_loss": losses[0], "last_loss": losses[-1],
                          **{name + "_s": statistics.median(all) for name, all in times.items()}}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()
    return 0


sys.exit(main())
