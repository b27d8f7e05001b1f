"""Wrong calls, late ranks and dead ranks raise on every rank, with a sentence that names the cause."""

import os
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import chorus_torch
from ranks import run, start

os.environ["CHORUS_FLIGHT_DIR"] = ""


class Failures(unittest.TestCase):
    def each_says(self, results, *sentences):
        for rank, result in enumerate(results):
            for sentence in sentences:
                self.assertIn(sentence, result, f"rank {rank}: {result}")

    def test_different_sizes_raise_on_every_rank(self):
        results = run(2, lambda rank, size: dist.all_reduce(torch.ones(4 + rank)))
        self.each_says(results, "all_reduce", "count 4", "count 5")

    def test_different_types_raise_on_every_rank(self):
        kinds = [torch.float32, torch.float64]
        results = run(2, lambda rank, size: dist.all_reduce(torch.ones(4, dtype=kinds[rank])))
        self.each_says(results, "float32", "float64")

    def test_different_operations_raise_on_every_rank(self):
        def body(rank, size):
            dist.all_reduce(torch.ones(4)) if rank == 0 else dist.broadcast(torch.ones(4), 0)
        self.each_says(run(2, body), "all_reduce", "broadcast")

    def test_one_rank_refuses_a_tensor_and_all_learn_why(self):
        def body(rank, size):
            tensor = torch.ones(4, 4)
            dist.all_reduce(tensor.t()[1:] if rank == 1 else tensor[1:])
        self.each_says(run(2, body), "not contiguous")

    def test_all_ranks_refuse_and_the_group_goes_on(self):
        def body(rank, size):
            for bad, why in [(torch.ones(4, 4).t()[1:], "not contiguous"),
                             (torch.ones(4).to_sparse(), "sparse")]:
                try:
                    dist.all_reduce(bad)
                except RuntimeError as error:
                    assert why in str(error), error
                else:
                    raise AssertionError("accepted")
            try:
                dist.all_reduce(torch.ones(4, dtype=torch.int32), dist.ReduceOp.BAND)
            except RuntimeError as error:
                assert "bitwise" in str(error), error
            good = torch.ones(2)
            dist.all_reduce(good)
            assert good.tolist() == [size, size]
        self.assertEqual(run(2, body), ["", ""])

    def test_a_refused_message_fails_its_peer(self):
        def body(rank, size):
            if rank == 0:
                dist.send(torch.ones(4, 4).t(), 1)
            else:
                dist.recv(torch.ones(4, 4), 0)
        self.each_says(run(2, body), "not contiguous")

    def test_a_rank_that_never_comes_is_named(self):
        def body(rank, size, meeting):
            if rank == 1:
                return
            start(rank, size, meeting, timeout_s=2)
        begin = time.monotonic()
        results = run(3, body, init=False, limit_s=40)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(results[1], "")
        self.each_says([results[0], results[2]], "rank 1 of 3 did not come")

    def test_a_timeout_names_peer_and_operation(self):
        def body(rank, size):
            if rank == 0:
                dist.all_reduce(torch.ones(4))
            else:
                time.sleep(5)
                dist.all_reduce(torch.ones(4))
        results = run(2, body, timeout_s=1, limit_s=40)
        self.each_says(results, "all_reduce", "rank 1", "timeout of the process group")

    def test_a_receive_that_nobody_answers_times_out(self):
        def body(rank, size):
            dist.recv(torch.ones(4), 1) if rank == 0 else time.sleep(4)
        results = run(2, body, timeout_s=1, limit_s=40)
        self.assertIn("recv from rank 1", results[0])

    def test_wait_with_a_limit_raises(self):
        def body(rank, size):
            if rank == 1:
                time.sleep(4)
                return
            dist.all_reduce(torch.ones(4), async_op=True).wait(timedelta(seconds=1))
        results = run(2, body, limit_s=40)
        self.assertIn("1000 ms", results[0])

    def test_a_killed_rank_is_named_by_the_others(self):
        def body(rank, size):
            dist.all_reduce(torch.ones(4))
            if rank == 1:
                os.kill(os.getpid(), 9)
            dist.all_reduce(torch.ones(4))
        begin = time.monotonic()
        results = run(3, body, limit_s=40)
        self.assertLess(time.monotonic() - begin, 20)
        self.each_says([results[0], results[2]], "rank 1", "died")

    def test_monitored_barrier_names_every_rank_that_is_missing(self):
        def body(rank, size):
            if rank in (0, 2):
                chorus_torch.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
            else:
                time.sleep(5)
        results = run(4, body, limit_s=40)
        self.each_says([results[0], results[2]], "ranks 1, 3 of 4")


if __name__ == "__main__":
    unittest.main()
