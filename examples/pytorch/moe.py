"""A mixture of experts, one per rank: tokens travel to the expert that a gate chose, and back.

    torchrun --standalone --nproc_per_node=2 moe.py [gloo]
"""

import sys

import torch
import torch.distributed as dist

import chorus_torch  # registers the backend "chorus"


class Exchange(torch.autograd.Function):
    """rows [sum(send), h] -> [sum(receive), h]: send[i] rows go to rank i. Backward sends back."""

    @staticmethod
    def forward(context, rows, send, receive):
        context.counts = send, receive
        result = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(result, rows.contiguous(), receive, send)
        return result

    @staticmethod
    def backward(context, gradient):
        send, receive = context.counts
        return Exchange.apply(gradient, receive, send), None, None


def experts(x, gate, expert):
    """x [tokens, h] -> [tokens, h]: each token through the expert of its best score."""
    score, choice = torch.softmax(gate(x), dim=1).max(dim=1)
    order = torch.argsort(choice, stable=True)
    counts = torch.bincount(choice, minlength=dist.get_world_size())
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    send, receive = counts.tolist(), arriving.tolist()
    done = Exchange.apply(expert(Exchange.apply(x[order], send, receive)), receive, send)
    return score[:, None] * done[torch.argsort(order)]


torch.manual_seed(1)
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "chorus")
rank, size = dist.get_rank(), dist.get_world_size()

gate = torch.nn.Linear(16, size)  # the same on every rank
teacher = torch.randn(16, 16)
torch.manual_seed(10 + rank)
expert = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
optimizer = torch.optim.Adam([*gate.parameters(), *expert.parameters()], lr=0.01)
samples = torch.Generator().manual_seed(100 + rank)

for step in range(10):
    x = torch.randn(64, 16, generator=samples)
    loss = torch.nn.functional.mse_loss(experts(x, gate, expert), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    for parameter in gate.parameters():  # the gate is shared, an expert is not
        dist.all_reduce(parameter.grad)
        parameter.grad /= size
    optimizer.step()
    dist.all_reduce(loss.data)
    if rank == 0:
        print("step", step, "loss", repr(loss.item() / size))
dist.destroy_process_group()
