"""torch's own flight recorder sees how calls end, and its analyser names the rank that is missing."""

import os
import pickle
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

try:
    from torch._C._distributed_c10d import FlightRecorderHook, _dump_fr_trace, _dump_fr_trace_file
except ImportError:
    print(f"skipped: the flight recorder of torch {torch.__version__} records its own backends alone")
    raise SystemExit(77)

from ranks import run

os.environ["CHORUS_FLIGHT_DIR"] = ""


def entries():
    return pickle.loads(_dump_fr_trace(backend="chorus"))["entries"]


class Recorder(unittest.TestCase):
    def test_calls_that_ended_are_told_from_those_under_way(self):
        def body(rank, size):
            other = 1 - rank
            waited = dist.all_reduce(torch.ones(3), async_op=True)
            dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(torch.empty(2), 0)
            waited.wait()
            dist.barrier()
            nobody_waits = dist.broadcast(torch.ones(5), 0, async_op=True)
            late = dist.irecv(torch.empty(4), other)
            deadline = time.monotonic() + 60
            while not nobody_waits.is_completed():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            seen = [(entry["profiling_name"], entry["state"]) for entry in entries()]
            message = "chorus:send 0->1" if rank == 0 else "chorus:recv 1<-0"
            want = [("chorus:all_reduce", "completed"), (message, "completed"), ("chorus:barrier", "completed"),
                    ("chorus:broadcast", "completed"), (f"chorus:recv {rank}<-{other}", "scheduled")]
            assert seen == want, seen
            dist.barrier()
            dist.send(torch.ones(4), other)
            late.wait()
            assert [entry["state"] for entry in entries()] == ["completed"] * 7, entries()

        self.assertEqual(run(2, body), ["", ""])

    def test_whoever_only_asks_sees_the_end(self):
        def body(rank, size):
            for _ in range(100):
                work = dist.all_reduce(torch.ones(3), async_op=True)
                deadline = time.monotonic() + 60
                while not work.is_completed():
                    assert time.monotonic() < deadline
            assert all(entry["state"] == "completed" for entry in entries())

        self.assertEqual(run(2, body), ["", ""])

    def test_the_analyser_names_the_rank_that_did_not_come(self):
        def body(rank, size):
            store, group = c10d._get_default_store(), dist.new_group(timeout=timedelta(seconds=3))
            for _ in range(2):
                dist.all_reduce(torch.ones(8), group=group)
            if rank == 1:  # it computes, or stands still
                store.wait(["failed"], timedelta(seconds=60))
                _dump_fr_trace_file(rank, backend="chorus")  # as torch's debug server does
                return
            try:
                dist.all_reduce(torch.ones(5), group=group)
            except RuntimeError:  # by now the others have left theirs
                store.set("failed", "1")
            else:
                raise AssertionError("it did not fail")

        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(folder, "trace_")
            try:
                self.assertEqual(run(3, body), [""] * 3)
            finally:
                del os.environ["TORCH_FR_DUMP_TEMP_FILE"]
            self.assertEqual(sorted(os.listdir(folder)), ["trace_0", "trace_1", "trace_2"])
            analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "trace_"]
            result = subprocess.run(analyser, text=True, capture_output=True, timeout=120)
            said = result.stdout + result.stderr
            self.assertEqual(result.returncode, 0, said)
            self.assertIn("Not all ranks joining collective, sequence number: 3\n", said)
            self.assertIn("collective: chorus:all_reduce\nmissing ranks: {1}\ninput sizes: [[5]]\n", said)
            self.assertEqual(said.count("missing ranks"), 1, said)  # and nothing else is wrong


if __name__ == "__main__":
    unittest.main()
