"""A pipeline: each rank has one stage; micro-batches flow through them forward and backward (1F1B).

    torchrun --standalone --nproc_per_node=2 pipeline.py [gloo]
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # from torch 2.5 on

import chorus_torch  # registers the backend "chorus"

MICRO_BATCHES = 4

torch.manual_seed(1)
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "chorus")
rank, size = dist.get_rank(), dist.get_world_size()

module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
stage = PipelineStage(module, rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
teacher = torch.randn(32, 32)
samples = torch.Generator().manual_seed(100)

for step in range(10):
    x = torch.randn(64, 32, generator=samples)
    losses = []
    optimizer.zero_grad()
    last = rank == size - 1
    schedule.step(*([x] if rank == 0 else []), **(dict(target=x @ teacher, losses=losses) if last else {}))
    optimizer.step()
    loss = torch.stack([l.detach() for l in losses]).mean() if last else torch.empty(())
    dist.broadcast(loss, size - 1)
    if rank == 0:
        print("step", step, "loss", repr(loss.item()))
dist.destroy_process_group()
