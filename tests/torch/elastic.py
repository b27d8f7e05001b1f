"""Run by launch_test.py under torchrun: in its first life rank 1 kills itself in the middle of a sum,
which the next life must take up where it was left.

    elastic.py FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist

import chorus_torch

STEPS, FATAL = 6, 3
dist.init_process_group("chorus")
rank, size = dist.get_rank(), dist.get_world_size()
saved = os.path.join(sys.argv[1], "saved")
first, total = torch.load(saved) if os.path.exists(saved) else (0, torch.zeros(1000))
for step in range(first, STEPS):
    part = torch.full((1000,), float(step * size + rank))
    dist.all_reduce(part)
    total += part
    if rank == 0:
        torch.save((step + 1, total), saved + ".new")
        os.replace(saved + ".new", saved)
    dist.barrier()
    if step == FATAL and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), 9)
if rank == 0:
    lives = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    print("lives", lives, "first step", first, "total", total.unique().tolist(), flush=True)
dist.destroy_process_group()
