"""What is wrong is said in a sentence, on every rank that it concerns, and nothing hangs."""

import os
import signal
import threading
import unittest

from ranks import run  # first: it skips without numpy

import numpy as np

import chorus
from chorus import IN_PLACE


def raised(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} took {arguments}, {named}")


class Refused(unittest.TestCase):
    """Arguments that one rank can judge: nothing is sent, and the communicator goes on."""

    def setUp(self):
        self.world = chorus.join()
        self.assertEqual((self.world.rank, self.world.size), (0, 1))

    def tearDown(self):
        x = np.ones(2)
        self.world.Allreduce(IN_PLACE, x)
        self.assertEqual(x.tolist(), [1, 1])
        self.world.Free()

    def refuses(self, sentence, call, *arguments, kind=chorus.InputError, **named):
        self.assertIn(sentence, raised(kind, call, *arguments, **named))

    def test_memory_that_cannot_be_used(self):
        x, bcast = np.ones(4), self.world.Bcast
        self.refuses("read-only", self.world.Allreduce, x, b"1234567 " * 4)
        self.refuses("not in one piece", bcast, np.ones((4, 4))[:, 1])
        self.refuses("'O'", bcast, np.array([object()]))
        self.refuses("'>d'", bcast, np.ones(2, ">f8"))
        self.refuses("'g'", bcast, np.ones(2, "g"))
        self.refuses("is a <class 'list'>", bcast, ([1, 2], "float32"), kind=TypeError)
        self.refuses("no element type 'float23'", bcast, [x, "float23"])
        self.refuses("not a whole number of int32", bcast, [bytearray(7), "int32"])
        self.refuses("not 5 elements of float64", bcast, [x, 5, "float64"])
        self.refuses("is negative", bcast, [x, -1, "float64"])
        self.refuses("but not [buffer, type]", bcast, [1, 2, 3, 4])
        self.refuses("is a <class 'NoneType'>", bcast, None, kind=TypeError)

    def test_going_on_without_ranks_that_die(self):
        os.environ["CHORUS_ON_LOSS"] = "finish"
        self.addCleanup(os.environ.pop, "CHORUS_ON_LOSS")
        self.refuses("CHORUS_ON_LOSS: communicators of this module keep their ranks: unset it", chorus.join)

    def test_sizes_types_ops_and_ranks(self):
        x = np.ones(4)
        self.refuses("sendbuf has 4 of float64, recvbuf 3 of float64", self.world.Allreduce, x, np.ones(3))
        self.refuses("recvbuf 4 of float32", self.world.Allreduce, x, np.ones(4, "f"))
        self.refuses("2 entries for 1 ranks", self.world.Reduce_scatter, x, x, [2, 2])
        self.refuses("[2, 6)", self.world.Alltoallv, [x, ([4], [2])], [x, [4]])
        self.refuses("op is not one of", self.world.Allreduce, x, x, 99)
        self.refuses("integers", self.world.Allreduce, x, np.ones(4), chorus.BOR)
        self.refuses("no average", self.world.Allreduce, IN_PLACE, np.ones(1, bool), chorus.AVG)
        self.refuses("complex", self.world.Allreduce, IN_PLACE, np.ones(1, complex), chorus.MAX)
        self.refuses("root 1 does not exist", self.world.Bcast, x, 1)
        self.refuses("dest 7 does not exist", self.world.Send, x, 7)
        self.refuses("no tags", self.world.Send, x, 0, tag=3)
        self.refuses("names its source", self.world.Recv, x)
        self.refuses("no form in place", self.world.Reduce_scatter_block, IN_PLACE, x)
        self.refuses("positive", self.world.Set_timeout, 0)
        self.refuses("go with an id", chorus.join, rank=1)

    def test_arguments_that_do_not_exist(self):
        x = np.ones(1)
        self.refuses("has no argument 'comm'", self.world.Bcast, x, comm=1, kind=TypeError)
        self.refuses("given 'buf' twice", self.world.Bcast, x, buf=x, kind=TypeError)
        self.refuses("needs the argument 'recvbuf'", self.world.Allreduce, x, kind=TypeError)
        self.refuses("takes 2 arguments", self.world.Bcast, x, 0, 0, kind=TypeError)
        self.refuses("op must be an integer", self.world.Allreduce, x, x, "sum", kind=TypeError)
        self.refuses("cannot create", chorus.Comm, kind=TypeError)

    def test_variables(self):
        os.environ["CHORUS_SLOTS"] = "many"
        try:
            self.refuses("CHORUS_SLOTS", chorus.join)
        finally:
            del os.environ["CHORUS_SLOTS"]


class Failed(unittest.TestCase):
    def test_ranks_that_call_differently_get_both_calls(self):
        def body(world):
            if world.rank == 0:
                world.Allreduce(IN_PLACE, np.ones(3, "f"))
            else:
                world.Barrier()
        for said in run(2, body):
            self.assertRegex(said, "^CollectiveError: .*all_reduce.*barrier")

    def test_a_rank_that_raised_is_named_with_what_it_raised(self):
        def body(world):
            if world.rank == 1:
                raise KeyError("no such layer")
            world.Recv(np.ones(1), 1)
        left, raised_one = run(2, body)
        self.assertRegex(left, "^CollectiveError: .*rank 1.*KeyError.*no such layer")
        self.assertIn("no such layer", raised_one)

    def test_a_rank_that_was_killed_is_named_and_the_others_go_on_without_it(self):
        def body(world):
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            said = raised(chorus.CollectiveError, world.Allreduce, IN_PLACE, np.ones(1000))
            assert "rank 1" in said and world.failure, said
            rest = world.Shrink([1])
            x = np.full(2, rest.rank)
            rest.Allreduce(IN_PLACE, x)
            assert (rest.size, x[0]) == (2, 1), (rest.size, x)
        self.assertEqual(run(3, body), ["", "exit -9", ""])

    def test_abort_from_another_thread_ends_a_wait(self):
        def body(world):
            if world.rank == 0:
                # Runs only if the wait below lets other threads of Python run.
                threading.Timer(0.05, world.Abort, ["enough of this"]).start()
            world.Recv(np.ones(1), 1 - world.rank)
        for said in run(2, body):
            self.assertIn("enough of this", said)

    def test_threads_run_while_a_call_waits(self):
        def body(world):
            theirs = np.zeros(1)
            if world.rank == 0:
                news = world.Dup()
                speaker = threading.Timer(0.02, news.Send, [np.ones(1), 1])
                speaker.start()
                world.Recv(theirs, 1)  # comes only once the thread has sent
                speaker.join()
            else:
                world.Dup().Recv(theirs, 0)
                world.Send(theirs, 0)
            assert theirs[0] == 1
        self.assertEqual(run(2, body, limit_s=30), ["", ""])

    def test_two_threads_in_one_communicator_are_told_apart(self):
        def body(world):
            gate, go = world.Dup(), np.ones(1)
            if world.rank == 1:
                gate.Recv(go, 0)
                world.Send(go, 0)
                return

            def receive():
                while True:  # until it is not the one that comes second
                    try:
                        return world.Recv(go, 1)
                    except chorus.InputError as error:
                        assert "two threads" in str(error), error
            waiting = threading.Thread(target=receive)
            waiting.start()
            while True:  # until the other thread is inside
                try:
                    world.Iprobe(1)
                except chorus.InputError as error:
                    assert "two threads" in str(error), error
                    break
            assert "another thread" in raised(chorus.InputError, world.Free)
            gate.Send(np.ones(1), 1)
            waiting.join()
        self.assertEqual(run(2, body, limit_s=30), ["", ""])

    def test_a_forked_process_is_refused_and_its_parent_goes_on(self):
        def body(world):
            child = os.fork()
            if child == 0:
                said = raised(chorus.Error, world.Barrier)
                os._exit(0 if "forked" in said else 1)
            assert os.waitpid(child, 0)[1] == 0
            x = np.ones(1)
            world.Allreduce(IN_PLACE, x)
            assert x[0] == 2
        self.assertEqual(run(2, body), ["", ""])

    def test_a_rank_that_does_not_come_is_named(self):
        def body(world):
            gate = world.Dup()
            if world.rank == 1:
                gate.Recv(np.ones(1), 0)
                return
            world.Set_timeout(0.3)
            said = raised(chorus.CollectiveError, world.Allreduce, IN_PLACE, np.ones(1))
            assert "rank 1" in said, said
            gate.Send(np.ones(1), 1)
        self.assertEqual(run(2, body, limit_s=30), ["", ""])


if __name__ == "__main__":
    unittest.main()
