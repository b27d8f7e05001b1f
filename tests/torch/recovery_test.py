"""Time limits of a group that is there, groups that go on without ranks that died, groups that are aborted."""

import inspect
import os
import signal
import tempfile
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ranks import equal, run, start

os.environ["CHORUS_FLIGHT_DIR"] = ""
os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # torch's flight recorder leaves files, too


def said_by(function, *arguments):
    """The sentence of what `function` raises, and the seconds it took."""
    begin = time.monotonic()
    try:
        function(*arguments)
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    raise AssertionError("it did not fail")


def gone():
    os.kill(os.getpid(), signal.SIGKILL)


def all_are_here(size):
    """By the store: what a collective leaves to be done on another rank could be cut off."""
    store = c10d._get_default_store()
    store.add("here", 1)
    while store.add("here", 0) % size:
        time.sleep(0.01)


def add_up(group=None):
    """Checks a sum over all ranks of the group."""
    size = dist.get_world_size(group)
    got = torch.full((1000,), float(dist.get_rank(group)))
    dist.all_reduce(got, group=group)
    equal(got, torch.full((1000,), size * (size - 1) / 2))


class Recovery(unittest.TestCase):
    @unittest.skipUnless(hasattr(dist, "set_timeout"), "this torch cannot set the timeout of a group")
    def test_a_timeout_is_changed(self):
        def body(rank, size):
            group = dist.new_group()
            dist.set_timeout(timedelta(seconds=3), group)
            assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=3)
            add_up(group)
            dist.barrier()
            if rank == 0:
                sentence, took = said_by(add_up, group)
                assert "nothing for 3000 ms" in sentence and "rank 1" in sentence and took < 30, (sentence, took)
            else:
                dist.recv(torch.empty(1), 0)  # rank 0 has been through it
            if rank == 0:
                dist.send(torch.empty(1), 1)
            # A longer one, of messages and collectives that would have failed by the first.
            patient = dist.new_group(timeout=timedelta(seconds=2))
            dist.set_timeout(timedelta(seconds=60), patient)
            if rank == 0:
                time.sleep(4)
                dist.send(torch.ones(1), 1, group=patient)
                time.sleep(4)
            else:
                dist.recv(torch.empty(1), 0, group=patient)
            add_up(patient)

        self.assertEqual(run(2, body), ["", ""])

    @unittest.skipUnless(hasattr(dist, "shrink_group"), "this torch does not shrink groups")
    def test_the_others_go_on_without_a_rank_that_died(self):
        for dead in (0, 1, 2):  # rank 0 hosts what all meet by

            def body(rank, size):
                beside = dist.new_group()
                add_up()
                add_up(beside)
                all_are_here(size)
                if rank == dead:
                    gone()
                sentence, _ = said_by(add_up)
                assert f"rank {dead}" in sentence, sentence
                group = dist.shrink_group([dead])
                assert group is dist.group.WORLD and dist.get_world_size() == 2
                assert dist.get_rank() == rank - (rank > dead)
                add_up()
                got = torch.empty(2)
                dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2,), float(dist.get_rank())),
                                                   1 - dist.get_rank()),
                                        dist.P2POp(dist.irecv, got, 1 - dist.get_rank())])[-1].wait()
                add_up(dist.new_group())
                alone = dist.shrink_group([1]) if dist.get_rank() == 0 else None
                if alone:
                    add_up()

            with self.subTest(dead=dead):
                results = run(3, body)
                self.assertEqual(results, ["exit -9" if r == dead else "" for r in range(3)])

    @unittest.skipUnless(hasattr(dist, "shrink_group"), "this torch does not shrink groups")
    def test_a_part_of_the_world_shrinks_and_the_world_goes_on(self):
        def body(rank, size):
            # Ranks whose number in the part is that in the world: torch 2.15 takes one for the other.
            part = dist.new_group([0, 1, 2])
            if rank in (0, 2):
                smaller = dist.shrink_group([1], part)
                assert dist.get_process_group_ranks(smaller) == [0, 2]
                add_up(smaller)
            add_up()

        self.assertEqual(run(4, body), [""] * 4)

    @unittest.skipUnless(hasattr(dist, "shrink_group"), "this torch does not shrink groups")
    def test_what_is_under_way_is_aborted_before_a_group_shrinks(self):
        def body(rank, size):
            add_up()
            all_are_here(size)
            if rank == 1:  # it never makes the others' call, but lives
                sentence, took = said_by(dist.recv, torch.empty(1), 0)
                assert "shrinks the process group" in sentence and took < 30, (sentence, took)
                return
            pending = dist.all_reduce(torch.ones(4), async_op=True)
            dist.shrink_group([1], shrink_flags=c10d.SHRINK_ABORT)
            sentence, _ = said_by(pending.wait)
            assert "shrinks the process group" in sentence, sentence
            add_up()

        self.assertEqual(run(3, body), [""] * 3)

    @unittest.skipUnless(hasattr(dist, "shrink_group"), "this torch does not shrink groups")
    def test_a_rank_that_does_not_come_to_shrink_is_named(self):
        def body(rank, size):
            part = dist.new_group(timeout=timedelta(seconds=3))
            if rank in (1, 2):
                sentence, took = said_by(dist.shrink_group, [0], part) if rank == 1 else ("rank 2", 0)
                assert "rank 2" in sentence and took < 30, sentence
                if rank == 1:
                    assert "of 2 did not come to shrink_group: timeout after 3000ms" in sentence, sentence
            dist.barrier()

        self.assertEqual(run(3, body), [""] * 3)

    @unittest.skipUnless("use_local_synchronization" in inspect.signature(dist.new_group).parameters,
                         "this torch makes groups by calls of all ranks alone")
    def test_a_group_goes_on_without_the_host_of_what_it_met_by(self):
        def body(rank, size):
            part = dist.new_group([1, 2])
            add_up(part) if rank else None
            all_are_here(size)
            if rank == 0:  # no member, but the first rank of the first group
                gone()
            sentence, _ = said_by(add_up)
            assert "rank 0" in sentence and "died" in sentence, sentence
            for _ in range(10):
                add_up(part)
            add_up(dist.new_group([1, 2], use_local_synchronization=True))

        self.assertEqual(run(3, body), ["exit -9", "", ""])

    @unittest.skipUnless(hasattr(c10d, "_abort_process_group"), "this torch does not abort groups")
    def test_an_aborted_world_fails_on_all_ranks_and_is_made_anew(self):
        def body(rank, size):
            add_up()
            all_are_here(size)
            if rank == 0:
                c10d._abort_process_group()
            else:
                sentence, took = said_by(add_up)
                assert "rank 0 aborted the process group" in sentence and took < 30, (sentence, took)
                backend = dist.group.WORLD._get_backend(torch.device("cpu"))
                if hasattr(backend, "get_error"):
                    assert backend.get_error().name == "COMM_ERROR", backend.get_error()
                dist.destroy_process_group()
            assert not dist.is_initialized()
            start(rank, size, os.path.join(folder, "again"))
            add_up()
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            if hasattr(backend, "get_error"):
                assert backend.get_error().name == "SUCCESS"

        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run(3, body), [""] * 3)


if __name__ == "__main__":
    unittest.main()
