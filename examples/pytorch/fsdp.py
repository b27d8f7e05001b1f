"""FSDP2: parameters, gradients and the optimizer's state lie in parts on all ranks; a layer is gathered
when it is needed and its gradients are scattered as they come.

    torchrun --standalone --nproc_per_node=2 fsdp.py [gloo]
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard  # from torch 2.6 on; 2.6's needs GPUs

import chorus_torch  # registers the backend "chorus"

torch.manual_seed(1)
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "chorus")
rank, size = dist.get_rank(), dist.get_world_size()

mesh = init_device_mesh("cpu", (size,))
model = torch.nn.Sequential(torch.nn.Linear(32, 255), torch.nn.GELU(), torch.nn.Linear(255, 8))
for layer in (model[0], model[2]):  # 255 rows do not divide by two: the last rank has a padded part
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
teacher = torch.randn(32, 8)
samples = torch.Generator().manual_seed(100 + rank)

for step in range(10):
    x = torch.randn(64, 32, generator=samples)
    loss = torch.nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.data)
    if rank == 0:
        print("step", step, "loss", repr(loss.item() / size))
dist.destroy_process_group()
