"""Wrong calls, late ranks and dead ranks raise on every rank, with a sentence that names the cause."""

import multiprocessing
import os
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import chorus_torch
from ranks import run, start

os.environ["CHORUS_FLIGHT_DIR"] = ""
os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # torch's flight recorder leaves files, too


# What waits for a limit to pass; those who need not wait come by then however loaded the machine is.
SHORT_S = 5
TORCHS_OWN = "RuntimeError" if torch.__version__.startswith("1.") else "DistBackendError"


def group_with_a_short_timeout():
    dist.barrier()  # all are here
    return dist.new_group(timeout=timedelta(seconds=SHORT_S))


class Failures(unittest.TestCase):
    def each_says(self, results, *sentences):
        for rank, result in enumerate(results):
            for sentence in sentences:
                self.assertIn(sentence, result, f"rank {rank}: {result}")

    def test_going_on_without_ranks_that_die_is_refused(self):
        os.environ["CHORUS_ON_LOSS"] = "shrink"
        self.addCleanup(os.environ.pop, "CHORUS_ON_LOSS")
        self.each_says(run(2, lambda rank, size: dist.barrier()),
                       "CHORUS_ON_LOSS=shrink: process groups of PyTorch keep their ranks: unset it")

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
            tensor = torch.ones(4)
            dist.all_reduce(tensor[:1].expand(4) if rank == 1 else tensor)
        self.each_says(run(2, body), "share memory")

    def test_all_ranks_refuse_and_the_group_goes_on(self):
        def body(rank, size):
            for bad, op, why in [(torch.ones(1).expand(4), dist.ReduceOp.SUM, "share memory"),
                                 (torch.ones(4).to_sparse(), dist.ReduceOp.MAX, "only added up"),
                                 (torch.ones(4), dist.ReduceOp.BAND, "the bits of integers and bool, not of Float"),
                                 (torch.ones(4 + rank).to_sparse(), dist.ReduceOp.SUM,
                                  "rank 0 has Float[4] with 1 sparse dimensions, but rank 1 Float[5]")]:
                try:
                    dist.all_reduce(bad, op)
                except RuntimeError as error:
                    assert why in str(error), error
                else:
                    raise AssertionError("accepted")
            good = torch.ones(2)
            dist.all_reduce(good)
            assert good.tolist() == [size, size]
        self.assertEqual(run(2, body), ["", ""])

    def test_a_forked_child_is_refused_and_its_parent_goes_on(self):
        # The child has the parent's memory and connections: it could take what is the parent's.
        def body(rank, size):
            import os
            pending = dist.all_reduce(torch.ones(2), async_op=True)
            child = os.fork()
            if child == 0:
                refused = 0
                for attempt in (lambda: dist.all_reduce(torch.ones(2)), pending.wait,
                                lambda: dist.isend(torch.ones(2), 1 - rank)):
                    try:
                        attempt()
                    except RuntimeError as error:
                        refused += "forked" in str(error)
                os._exit(refused)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
            pending.wait()
            good = torch.ones(2)
            dist.all_reduce(good)
            assert good.tolist() == [size, size]
        self.assertEqual(run(2, body), ["", ""])

    def test_a_rank_that_is_through_is_named_by_those_that_wait_for_it(self):
        # As where data ran out on one rank alone: the end of its script, not of a failed one.
        many = torch.ones(1 << 24)  # more than goes out before the receiver takes any
        def collective(rank, size):
            if rank != 1:
                dist.all_reduce(torch.ones(4))
        def receive(rank, size):
            if rank != 1:
                dist.recv(torch.ones(4), 1)
        def receive_a_second(rank, size):
            if rank == 1:
                dist.send(torch.ones(4), 0)
                dist.send(torch.ones(4), 2)
            else:
                dist.recv(torch.ones(4), 1)
                dist.recv(torch.ones(4), 1)
        def send(rank, size):
            if rank != 1:
                dist.send(many, 1)
        def receive_while_it_reduces(rank, size):
            if rank == 1:
                dist.all_reduce(torch.ones(4), async_op=True)
            else:
                dist.recv(torch.ones(4), 1)
        def any_receive(rank, size):
            for other in {0, 2} - {rank} if rank != 1 else ():
                dist.isend(torch.ones(4), other)
                dist.recv(torch.ones(4), other)
                dist.irecv(torch.ones(4), other)  # which nobody waits for
                dist.recv(torch.ones(4), 1)
        for body in (collective, receive, receive_a_second, send, receive_while_it_reduces,
                     any_receive):
            with self.subTest(body.__name__):
                results = run(3, body, timeout_s=60, limit_s=20)
                self.each_says([results[0], results[2]], "rank 1")

    def test_what_was_sent_before_the_end_arrives_however_late_it_is_taken(self):
        many = 1 << 24
        def body(rank, size):
            if rank == 0:
                sent = torch.full((many,), 3.0)
                keep.append([sent, dist.isend(sent, 1), dist.isend(torch.ones(1), 2)])
                return
            time.sleep(2.5)
            got = torch.empty(many if rank == 1 else 1)
            dist.recv(got, 0)
            assert got.eq(3.0 if rank == 1 else 1.0).all(), got
        keep = []
        self.assertEqual(run(3, body, limit_s=20), [""] * 3)

    def test_messages_that_nobody_takes_hold_nobody_up(self):
        def body(rank, size):
            keep.append([torch.ones(1 << 24), torch.ones(4)])
            keep.append([dist.isend(keep[0][0], 1 - rank), dist.irecv(keep[0][1], 1 - rank)])
        keep = []
        self.assertNotIn("hung", run(2, body, limit_s=20))

    def test_a_refused_message_fails_its_peer(self):
        def body(rank, size):
            if rank == 0:
                dist.send(torch.ones(4), 5)
            else:
                dist.recv(torch.ones(4), 0)
        self.each_says(run(2, body), "rank 5 does not exist")

    def test_messages_of_different_counts_and_types_show_both_ends(self):
        def body(rank, size):
            if rank == 0:
                dist.send(torch.ones(3), 1, tag=2)
                dist.recv(torch.ones(1), 1)
            else:
                dist.recv(torch.ones(4, dtype=torch.float64), 0, tag=2)
        self.each_says(run(2, body), "rank 0 sent message(count 3, float32)", "message(count 4, float64)")

    def test_a_receive_from_whoever_sends_ends_with_the_timeout_and_with_a_death(self):
        def nobody(rank, size):
            group = group_with_a_short_timeout()
            if rank == 1:
                raised.wait(60)
                return
            try:
                dist.recv(torch.ones(4), group=group)
            finally:
                raised.set()
        raised = multiprocessing.Event()
        self.each_says(run(2, nobody)[:1], TORCHS_OWN, "recv from any rank", f"{SHORT_S}000 ms")

        def dead(rank, size):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), 9)
            if rank == 0:
                dist.recv(torch.ones(4))
            else:
                dist.recv(torch.ones(4), 0)
        results = run(3, dead)
        self.each_says([results[0], results[2]], TORCHS_OWN, "rank 1", "died")

    def test_a_receive_from_whoever_sends_that_is_left_open_holds_nobody_up(self):
        def body(rank, size):
            keep.append(torch.ones(4))
            keep.append(dist.group.WORLD.recv_anysource([keep[0]], 0))
            dist.barrier()
        keep = []
        self.assertEqual(run(2, body, limit_s=20), ["", ""])

    def test_different_roots_and_operations_raise_on_every_rank(self):
        def roots(rank, size):
            dist.reduce(torch.ones(4), rank)
            dist.barrier()  # a root's part may have been done
        self.each_says(run(2, roots), "reduce", "root 0", "root 1")

        def operations(rank, size):
            dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
        self.each_says(run(2, operations), "all_reduce", "max", "sum")

    def test_lists_that_do_not_fit_raise_on_every_rank(self):
        def counts(rank, size):
            dist.all_gather([torch.empty(4 + rank) for _ in range(size)], torch.ones(4))
        self.each_says(run(2, counts), "rank 1", "Float[5]", "Float[4]")

        def splits(rank, size):
            given = [2, 1] if rank == 0 else [2, 2]
            dist.all_to_all_single(torch.empty(4), torch.ones(4), [2, 2], given)
        self.each_says(run(2, splits), "rank 0", "the split sizes add up to 3 of 4 rows")

    def test_split_sizes_of_one_rank_alone_raise_on_every_rank(self):
        def on_one(rank, size):
            dist.all_to_all_single(torch.empty(4), torch.ones(4), *([[2, 2]] * 2 if rank == 0 else []))
        self.each_says(run(2, on_one), "rank 0 called all_to_all_v(float32)",
                       "rank 1 called all_to_all(count 2, float32)")

        def unlike(rank, size):
            expected = [3, 2] if rank == 1 else [2, 2]
            dist.all_to_all_single(torch.empty(sum(expected)), torch.ones(4), expected, [2, 2])
            dist.barrier()  # rank 0's part was done
        self.each_says(run(2, unlike), "message(count 3, float32) from rank 0 to rank 1")

    def test_a_tensor_on_another_device_raises_on_every_rank(self):
        def body(rank, size):
            group = dist.group.WORLD  # of torch 2 on: without torch's own judgement before ours
            if hasattr(group, "_get_backend"):
                group = group._get_backend(torch.device("cpu"))
            group.allreduce([torch.ones(4, device="meta" if rank == 1 else "cpu")]).wait()
        ours = ["the tensor is on meta"] * 2
        torchs = ["it ended with NotImplementedError", "Meta"]
        wanted = torchs if TORCHS_OWN == "RuntimeError" else ours
        for want, result in zip(wanted, run(2, body)):
            self.assertTrue(want in result, result[:300])

    def test_a_rank_that_never_comes_is_named(self):
        def body(rank, size, meeting):
            if rank != 1:
                start(rank, size, meeting, timeout_s=SHORT_S)
        results = run(3, body, init=False)
        self.assertEqual(results[1], "")
        self.each_says([results[0], results[2]], "rank 1 of 3 did not come", f"timeout after {SHORT_S}000ms", TORCHS_OWN)

    def test_a_rank_0_that_never_comes_is_named(self):
        def body(rank, size, meeting):
            if rank != 0:
                start(rank, size, meeting, timeout_s=1)
        self.each_says(run(3, body, init=False)[1:], "rank 0 of 3 did not come", TORCHS_OWN)

    def test_a_timeout_is_torchs_exception_with_peer_and_operation(self):
        raised = multiprocessing.Event()

        def body(rank, size):
            group = group_with_a_short_timeout()
            if rank == 1:
                raised.wait(60)
            try:
                dist.all_reduce(torch.ones(4), group=group)
            finally:
                raised.set()
        results = run(2, body)
        self.each_says(results, TORCHS_OWN, "all_reduce", "rank 1", "timeout of the process group")

    def test_a_receive_that_nobody_answers_times_out(self):
        raised = multiprocessing.Event()

        def body(rank, size):
            group = group_with_a_short_timeout()
            if rank == 1:
                raised.wait(60)
                return
            try:
                dist.recv(torch.ones(4), 1, group=group)
            finally:
                raised.set()
        self.each_says(run(2, body)[:1], TORCHS_OWN, "recv from rank 1", f"{SHORT_S}000 ms")

    def test_wait_with_a_limit_raises(self):
        raised = multiprocessing.Event()

        def body(rank, size):
            if rank == 1:
                raised.wait(60)
                return
            try:
                dist.all_reduce(torch.ones(4), async_op=True).wait(timedelta(seconds=1))
            finally:
                raised.set()
        self.each_says(run(2, body)[:1], TORCHS_OWN, "all_reduce", "1000 ms")

    def test_a_killed_rank_is_named_by_the_others(self):
        def body(rank, size):
            dist.all_reduce(torch.ones(4))
            if rank == 1:
                os.kill(os.getpid(), 9)
            dist.all_reduce(torch.ones(4))
        results = run(3, body)
        self.each_says([results[0], results[2]], TORCHS_OWN, "rank 1", "died", "Connection closed by peer")

    def test_monitored_barrier_names_every_rank_that_is_missing(self):
        raised = multiprocessing.Event()

        def body(rank, size):
            dist.barrier()
            if rank in (1, 3):
                raised.wait(60)
                return
            try:
                chorus_torch.monitored_barrier(timeout=timedelta(seconds=SHORT_S), wait_all_ranks=True)
            finally:
                if rank == 0:
                    raised.set()
        results = run(4, body)
        self.each_says([results[0], results[2]], TORCHS_OWN,
                       f"[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in {SHORT_S}000 ms")
        self.assertIn("Rank 2 successfully reached monitoredBarrier, but received errors while waiting for "
                      "send/recv from rank 0. Please check rank 0 logs for faulty rank", results[2])

    def test_monitored_barrier_names_the_first_rank_that_is_missing_without_waiting_for_the_next(self):
        raised = multiprocessing.Event()

        def body(rank, size):
            dist.barrier()
            if rank != 0:
                raised.wait(60)
                return
            begin = time.monotonic()
            try:
                chorus_torch.monitored_barrier(timeout=timedelta(0))
            finally:
                assert time.monotonic() - begin < 30, "it took the group's timeout for none"
                raised.set()
        self.each_says(run(3, body)[:1], "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 0 ms",
                       "Rank 0 timed out in monitoredBarrier")

    def test_nothing_of_an_earlier_attempt_is_believed(self):
        def body(rank, size, meeting):
            store = dist.FileStore(meeting, size)
            for attempt in range(3):  # each finds what the one before has left in the store
                group = chorus_torch._create(store, rank, size, timedelta(seconds=60))
                got = torch.tensor([attempt + rank])
                group.allreduce([got]).wait()
                assert got.tolist() == [2 * attempt + 1], got
        self.assertEqual(run(2, body, init=False), ["", ""])


if __name__ == "__main__":
    unittest.main()
