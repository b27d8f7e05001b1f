"""DeepSpeed's all-reduce in shared memory, in the place of torch.distributed.all_reduce: to compare with. It comes as C++ in
the package deepspeed, which compiles it when it is first used (a minute); for float32, bfloat16 and float16, of ranks on one host."""

import os

import torch
import torch.distributed as dist


def load():
    """Its all-reduce of a tensor in place; collective over the first group."""
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ["LOCAL_SIZE"] = str(size)  # all on this host, else it does nothing
    if rank == 0:
        ShareMemCommBuilder().load(verbose=False)
    dist.barrier()  # what rank 0 has compiled the others load
    ShareMemCommBuilder().load(verbose=False).initialize(size, rank)
    dist.barrier()
    place = f"{os.getuid()}_{os.environ['MASTER_ADDR']}_{os.environ['MASTER_PORT']}_{rank}"
    os.unlink(f"/dev/shm/deepspeed_allreduce_buffer_{place}")  # all have mapped it; it would stay
    return torch.ops.deepspeed.inference_all_reduce_


def replace_all_reduce():
    """From now on torch.distributed.all_reduce of such tensors over all ranks is DeepSpeed's."""
    ours, theirs = load(), dist.all_reduce

    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        takes = tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
        if async_op or not takes or op != dist.ReduceOp.SUM or dist.get_world_size(group) != dist.get_world_size():
            return theirs(tensor, op, group, async_op)
        ours(tensor)

    dist.all_reduce = all_reduce
