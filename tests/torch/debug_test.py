"""torch's debug server, its health check and its check for NaN work on groups of Chorus as on its own."""

import http.client
import json
import os
import re
import tempfile
import time
import unittest
import urllib.request

import torch
import torch.distributed as dist

try:
    import torch.distributed.debug  # noqa: F401: registers what the server answers
    from torch._C._distributed_c10d import HealthCheckHook, NanCheckHook, _WorkerServer  # noqa: F401
except ImportError:
    print(f"skipped: torch {torch.__version__} has no debug server")
    raise SystemExit(77)

from ranks import run

os.environ["CHORUS_FLIGHT_DIR"] = ""
os.environ["TORCH_INCLUDE_STACK_TRACE"] = "0"  # which take torch long
records = tempfile.TemporaryDirectory()  # torch's flight recorder leaves one per rank when a group fails
os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(records.name, "rank_")


def asked(server, handler, **parameters):
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    request = urllib.request.Request(f"http://localhost:{server.port}/handler/{handler}?{query}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def is_healthy(server):
    try:
        return json.loads(asked(server, "c10d_health_check"))["healthy"]
    except http.client.RemoteDisconnected:  # on a busy machine the server gives up a connection
        return True


class Debug(unittest.TestCase):
    def test_the_server_of_a_rank_tells_its_health_and_its_calls(self):
        def body(rank, size):
            server = _WorkerServer("::", 0)
            try:
                dist.all_reduce(torch.ones(3))
                dist.barrier()
                assert json.loads(asked(server, "c10d_health_check"))["healthy"] is True
                calls = json.loads(asked(server, "fr_trace_json", backend="chorus"))
                assert [group["ranks"] for group in calls["pg_config"].values()] == ["[0, 1]"], calls
                (state,) = calls["pg_status"].values()
                assert state["last_completed_collective"] == state["last_enqueued_collective"] != "-1", state
                assert "Thread" in asked(server, "dump_traceback"), "no stacks"
            finally:
                server.shutdown()

        self.assertEqual(run(2, body), ["", ""])

    def test_a_group_that_fails_is_not_healthy(self):
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                os._exit(9)
            server = _WorkerServer("::", 0)
            try:
                dist.all_reduce(torch.ones(3))
            except RuntimeError as error:
                assert re.search("rank 1.* died", str(error)), error
                deadline = time.monotonic() + 60  # who asked for word of the failure is told by a thread of its own
                while is_healthy(server):
                    assert time.monotonic() < deadline, "it says that it is healthy"
                    time.sleep(0.05)
                return
            finally:
                server.shutdown()
            raise AssertionError("it did not fail")

        self.assertEqual(run(2, body), ["", "exit 9"])

    def test_nan_is_found_before_it_is_sent(self):
        os.environ["TORCH_DIST_NAN_CHECK"] = "1"
        try:
            def body(rank, size):
                dist.all_reduce(torch.ones(3))
                bad = torch.tensor([1.0, float("nan")]) if rank == 0 else torch.ones(2)
                try:
                    dist.all_reduce(bad)
                except RuntimeError as error:
                    assert rank == 1 or "nan" in str(error).lower(), error
                else:
                    raise AssertionError(f"rank {rank} reduced NaN")
                raise SystemExit("found")

            self.assertEqual(run(2, body), ["SystemExit: found"] * 2)
        finally:
            del os.environ["TORCH_DIST_NAN_CHECK"]


if __name__ == "__main__":
    unittest.main()
