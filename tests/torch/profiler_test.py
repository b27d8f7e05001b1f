"""torch's profilers see every call: an event with its shapes, and an operator with name, sizes and group."""

import json
import os
import tempfile
import unittest

import torch
import torch.distributed as dist

import chorus_torch
from ranks import run


def every_call(rank, size):
    """One of each, with the shapes of what goes in."""
    a, b = torch.ones(3, 2), [torch.ones(3, 2) for _ in range(size)]
    flat = torch.ones(3 * size, 2)
    yield "all_reduce", "allreduce", [[3, 2]], lambda: dist.all_reduce(a)
    yield "reduce", "reduce", [[3, 2]], lambda: dist.reduce(a, 0)
    yield "broadcast", "broadcast", [[3, 2]], lambda: dist.broadcast(a, 0)
    yield "all_gather", "all_gather", [[3, 2]], lambda: dist.all_gather(b, a)
    yield "all_gather", "_allgather_base", [[3, 2]], lambda: dist.all_gather_into_tensor(flat, a)
    yield "gather", "gather", [[3, 2]], lambda: dist.gather(a, b if rank == 0 else None, 0)
    yield "scatter", "scatter", [[3, 2]] * (size if rank == 0 else 0), \
        lambda: dist.scatter(a, b if rank == 0 else None, 0)
    yield "reduce_scatter", "reduce_scatter", [[3, 2]] * size, lambda: dist.reduce_scatter(a, b)
    yield "reduce_scatter", "_reduce_scatter_base", [[3 * size, 2]], lambda: dist.reduce_scatter_tensor(a, flat)
    yield "all_to_all", "all_to_all", [[3 * size, 2]], lambda: dist.all_to_all_single(flat, flat.clone())
    yield "all_to_all", "all_to_all", [[3, 2]] * size, lambda: dist.all_to_all(b, [a] * size)
    yield "barrier", "barrier", [], dist.barrier
    if rank == 0:
        yield "send", "send", [[3, 2]], lambda: dist.send(a, 1)
        yield "recv", "recv", [[3, 2]], lambda: dist.recv(a, 1)
    elif rank == 1:
        yield "recvAnySource", "recv", [[3, 2]], lambda: dist.recv(a)
        yield "send", "send", [[3, 2]], lambda: dist.send(a, 0)


class Profilers(unittest.TestCase):
    def test_there_is_an_event_per_call_with_the_shapes_of_its_inputs(self):
        def body(rank, size):
            for title, _, shapes, call in every_call(rank, size):
                with torch.autograd.profiler.profile(record_shapes=True) as profile:
                    call()
                events = [e for e in profile.function_events if e.name.startswith("chorus:")]
                assert [e.name for e in events] == ["chorus:" + title], (title, [e.name for e in events])
                assert events[0].is_async and events[0].count == 1 and events[0].cpu_time >= 0, events
                assert [s for s in events[0].input_shapes if s] == shapes, (title, events[0].input_shapes, shapes)
        self.assertEqual(run(2, body), ["", ""])

    def test_what_nobody_waits_for_ends_its_event_all_the_same(self):
        def body(rank, size):
            with torch.autograd.profiler.profile() as profile:
                future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
                future.wait()
            assert [e.name for e in profile.function_events].count("chorus:all_reduce") == 1
        self.assertEqual(run(2, body), ["", ""])

    @unittest.skipIf(torch.__version__.startswith("1."), "traces of torch 1.13 know nothing of collectives")
    def test_a_trace_has_collective_sizes_type_and_group(self):
        def body(rank, size):
            part = dist.new_group([0, 1])
            for _, name, _, call in every_call(rank, size):
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                    call()
                told = self.comms_of(profile)
                assert [t["Collective name"] for t in told] == [name], (name, told)
                assert told[0]["Group size"] == size and told[0]["Rank"] == rank, told
                if name not in ("barrier", "scatter"):
                    assert told[0]["dtype"] == "Float", told
                if name == "_allgather_base":
                    assert (told[0]["In msg nelems"], told[0]["Out msg nelems"]) == (6, 6 * size), told
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                dist.all_to_all_single(torch.empty(3), torch.ones(3), [1 + rank, 2 - rank], [1 + rank, 2 - rank],
                                       group=part)
            told = self.comms_of(profile)
            assert told[0]["Collective name"] == "all_to_allv", told
            assert told[0]["In split size"] == f"[{1 + rank}, {2 - rank}]", told
            assert told[0]["Process Group Name"] == part.group_name, told
        self.assertEqual(run(2, body), ["", ""])

    @staticmethod
    def comms_of(profile):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile.export_chrome_trace(path)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        return [e["args"] for e in events if e.get("name") == "record_param_comms"]


if __name__ == "__main__":
    unittest.main()
