"""Tensor-parallel inference on CPUs: a small Llama of random weights, divided by transformers' own plan (tp_plan="auto"),
writes text that nobody wants. Two all-reduces a layer and token, of a few KiB each, that nothing can hide.

    torchrun --standalone --nproc_per_node=2 generate.py [chorus | gloo | deepspeed | none] [--layers 48] [--tokens 64]

"none" leaves communication out (wrong tokens, the same arithmetic): what is left is what the others wait for. With
CHORUS_DETERMINISTIC=1 the logits have the same bits whatever the ranks are connected by. "deepspeed": all-reduces by
DeepSpeed's operation in shared memory, the rest by Gloo.
"""

import argparse
import hashlib
import os
import resource
import tempfile
import time

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, logging  # from 5 on
from transformers.distributed import DistributedConfig

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("backend", nargs="?", default="chorus", choices=["chorus", "gloo", "deepspeed", "none"])
arguments.add_argument("--layers", type=int, default=48)
arguments.add_argument("--hidden", type=int, default=256)
arguments.add_argument("--batch", type=int, default=1)
arguments.add_argument("--tokens", type=int, default=64)
options = arguments.parse_args()
torch.set_num_threads(1)
logging.set_verbosity_error()
logging.disable_progress_bar()
torch.manual_seed(1)
config = LlamaConfig(vocab_size=1024, hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4,
                     num_hidden_layers=options.layers, num_attention_heads=8, num_key_value_heads=4,
                     eos_token_id=None, bos_token_id=None, initializer_range=0.1)
weights = tempfile.TemporaryDirectory()  # a plan applies to what is loaded; saved while every rank is still alone
LlamaForCausalLM(config).save_pretrained(weights.name)

if options.backend == "none":
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
else:
    if options.backend == "chorus":
        import chorus_torch  # noqa: F401: registers it, where no package did
    dist.init_process_group("gloo" if options.backend == "deepspeed" else options.backend)
if options.backend == "deepspeed":
    import deepspeed_op

    deepspeed_op.replace_all_reduce()
rank, size = dist.get_rank(), dist.get_world_size()
model = LlamaForCausalLM.from_pretrained(weights.name, distributed_config=DistributedConfig(tp_plan="auto"))
weights.cleanup()
prompt = torch.arange(options.batch * 8).reshape(options.batch, 8) % 1024


def generate(tokens):
    return model.generate(prompt, max_new_tokens=tokens, do_sample=False, output_logits=True,
                          return_dict_in_generate=True, pad_token_id=0)


def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


generate(2)  # what is made once is made now
began, cpu = time.perf_counter(), cpu_s()
result = generate(options.tokens)
wall, cpu = time.perf_counter() - began, cpu_s() - cpu
with torch.profiler.profile() as profile:
    generate(1)
COLLECTIVES = ("c10d::allreduce_", "c10d::_allgather_base_", "c10d::allgather_into_tensor_coalesced_",
               "deepspeed::inference_all_reduce_")
calls = sum(event.count for event in profile.key_averages() if event.key in COLLECTIVES)
bits = hashlib.sha256(torch.stack(result.logits).contiguous().numpy().tobytes()).hexdigest()
if options.backend != "none":
    every = [None] * size
    dist.all_gather_object(every, bits)
    if set(every) != {bits}:
        raise SystemExit(f"rank {rank}: the ranks computed different logits")
if rank == 0:
    print(f"{options.backend} {size} ranks: {options.tokens * options.batch / wall:.2f} tokens/s, "
          f"{1e3 * wall / options.tokens:.2f} ms and {1e3 * cpu / options.tokens:.2f} ms of CPU a step, "
          f"{calls} collectives a step, logits {bits[:16]}")
dist.destroy_process_group()
