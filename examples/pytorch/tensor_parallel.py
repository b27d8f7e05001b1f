"""DTensor: each rank has some columns of the first matrix and the rows of the second that belong to
them; between the blocks each has some rows of the samples (sequence parallelism).

    torchrun --standalone --nproc_per_node=2 tensor_parallel.py [gloo]
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard  # from torch 2.5 on
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleOutput, RowwiseParallel, SequenceParallel, parallelize_module)

import chorus_torch  # registers the backend "chorus"


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.up, self.down = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(1)
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "chorus")
rank, size = dist.get_rank(), dist.get_world_size()

mesh = init_device_mesh("cpu", (size,))
model = torch.nn.Sequential(Block(), Block())
rows = Shard(0)  # [tokens, h]: the tokens are in parts
for block in model:
    parallelize_module(block, mesh, {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=rows),
        "down": RowwiseParallel(output_layouts=rows, use_local_output=False),
    })
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
teacher = torch.randn(32, 32)
samples = torch.Generator().manual_seed(100)  # every rank sees all samples

for step in range(10):
    x = torch.randn(64, 32, generator=samples)
    parts = DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[rows])
    y = model(parts).full_tensor()
    loss = torch.nn.functional.mse_loss(y, x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("step", step, "loss", repr(loss.item()))
dist.destroy_process_group()
