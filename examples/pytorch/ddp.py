"""Data parallelism: every rank has the whole model; gradients are averaged while backward goes on.

    torchrun --standalone --nproc_per_node=2 ddp.py          # through Chorus
    torchrun --standalone --nproc_per_node=2 ddp.py gloo     # the same losses
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import chorus_torch  # registers the backend "chorus"

torch.manual_seed(1)
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "chorus")
rank = dist.get_rank()

model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
model = DistributedDataParallel(model, bucket_cap_mb=0.01)  # several buckets even here
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
teacher = torch.randn(32, 8)
samples = torch.Generator().manual_seed(100 + rank)  # each rank its own part of the data

for step in range(10):
    x = torch.randn(64, 32, generator=samples)
    loss = torch.nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.data)
    if rank == 0:
        print("step", step, "loss", repr(loss.item() / dist.get_world_size()))
dist.destroy_process_group()
