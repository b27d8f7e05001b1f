"""Training in which a rank dies, or has less data than the others, ends with a sentence that names it, or goes on."""

import copy
import os
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ranks import equal, run

os.environ["CHORUS_FLIGHT_DIR"] = ""
os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # torch's flight recorder leaves files, too

# Until FSDP2 knew the CPU's stream it ran on GPUs alone.
on_cpus = hasattr(getattr(torch, "cpu", None), "Stream") and hasattr(torch.cpu.Stream, "record_event")
if on_cpus:
    from torch.distributed.fsdp import fully_shard


def steps(model, rank, count):
    """Of training; the gradients add up."""
    for index in range(count):
        model(torch.full((2, 4), 1.0 + rank + index)).sum().backward()


class TrainingFailures(unittest.TestCase):
    def killed_in_the_middle(self, kill):
        """Rank 1 of 3 is killed where kill(model, die) puts it; the others name it within the group's timeout."""

        def body(rank, size):
            torch.manual_seed(1)
            model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
            steps(model, rank, 1)
            kill(model, lambda *_: os.kill(os.getpid(), 9) if rank == 1 else None)
            steps(model, rank, 1)

        results = run(3, body, timeout_s=60, limit_s=50)
        self.assertEqual(results[1], "exit -9")
        for result in (results[0], results[2]):
            self.assertIn("DistBackendError", result)
            self.assertRegex(result, r"rank 1.* died")

    @unittest.skipUnless(on_cpus, "this torch has no FSDP2 for CPUs")
    def test_a_rank_killed_while_parameters_are_gathered_is_named(self):
        def kill(model, die):
            handle = model[1].unshard(async_op=True)
            die()
            handle.wait()

        self.killed_in_the_middle(kill)

    @unittest.skipUnless(on_cpus, "this torch has no FSDP2 for CPUs")
    def test_a_rank_killed_between_two_layers_is_named(self):
        self.killed_in_the_middle(lambda model, die: model[1].register_forward_hook(die))

    @unittest.skipUnless(on_cpus, "this torch has no FSDP2 for CPUs")
    def test_a_rank_killed_while_gradients_are_scattered_is_named(self):
        self.killed_in_the_middle(lambda model, die: model[1].register_full_backward_hook(die))

    def test_a_rank_whose_data_ran_out_is_named_by_those_that_go_on(self):
        def body(rank, size):
            model = DistributedDataParallel(torch.nn.Linear(4, 4))
            steps(model, rank, 2 if rank == 1 else 4)
            if rank != 1:
                raise AssertionError("it went on alone")

        results = run(3, body, timeout_s=60, limit_s=50)
        for result in (results[0], results[2]):
            self.assertIn("rank 1", result)
            self.assertNotIn("alone", result)

    def test_join_goes_on_without_ranks_whose_data_ran_out(self):
        def body(rank, size):
            torch.manual_seed(1)
            line = torch.nn.Linear(4, 4)
            grads = []
            for group in (dist.new_group(), dist.new_group(backend="gloo")):
                model = DistributedDataParallel(copy.deepcopy(line), process_group=group)
                with model.join():
                    steps(model, rank, 2 + rank)
                grads.append([p.grad for p in model.parameters()])
            for ours, gloos in zip(*grads):
                equal(ours, gloos)  # small integers: exact in whatever order they are added up

        self.assertEqual(run(2, body), [""] * 2)


if __name__ == "__main__":
    unittest.main()
