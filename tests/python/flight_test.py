"""chorus flight --as torch writes what torch's analyser of flight records reads.

    flight_test.py CHORUS
"""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

COMMAND = sys.argv[1]


def call(sequence, text, finished=True, **more):
    return {"sequence": sequence, "call": text, "schedule": "ring", "begun_us": 1_700_000_000_000_000 + sequence,
            "finished_us": 1_700_000_000_000_100 if finished else None, **more}


def record(rank, calls, communicator="world", job="20261123T010203-aa", size=3):
    return {"format": "chorus-flight", "version": 1, "job": job, "communicator": communicator, "rank": rank,
            "world_size": size, "host": "h", "failure": "rank 1 did not call", "waiting": "", "written_us": 7,
            "calls": calls}


GOOD = [call(1, "all_reduce(count 4, float32, sum)"), call(1, "send(count 2, int8)", peer=1),
        call(2, "all_gather(count 5, bfloat16)"), call(3, "reduce_scatter(count 6, int64, max)"),
        call(4, "barrier()"), call(5, "all_to_all(count 2, float8_e4m3)"),
        call(6, "broadcast(count 3000000000, uint8, root 2)")]
LAST = call(7, "all_reduce(count 9, float64, sum)", finished=False)


class Flight(unittest.TestCase):
    def run_on(self, records, *arguments, status=0):
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for i, one in enumerate(records):
                files.append(os.path.join(folder, f"{i}.json"))
                with open(files[-1], "w") as file:
                    json.dump(one, file)
            out = os.path.join(folder, "as", "torch")
            said = subprocess.run([COMMAND, "flight", *files, "--as", "torch", "-o", out, *arguments],
                                  capture_output=True, text=True)
            self.assertEqual(said.returncode, status, said.stdout + said.stderr)
            traces = {}
            for name in os.listdir(out) if os.path.isdir(out) else ():
                with open(os.path.join(out, name), "rb") as file:
                    traces[name] = pickle.load(file)
            analysed = ""
            if traces and importlib.util.find_spec("torch") and importlib.util.find_spec("torch.distributed"):
                module = "torch.distributed.flight_recorder.fr_trace"
                try:
                    found = importlib.util.find_spec(module)
                except ImportError:
                    found = None
                if found:
                    result = subprocess.run([sys.executable, "-m", module, out, "-p", "trace_"], capture_output=True,
                                            text=True)
                    analysed = result.stdout + result.stderr
            return said.stdout + said.stderr, traces, analysed

    def test_collectives_have_torchs_names_and_sizes(self):
        said, traces, _ = self.run_on([record(rank, GOOD + [LAST]) for rank in range(3)])
        self.assertIn("fr_trace", said)
        self.assertNotIn("--allow-incomplete-ranks", said)
        self.assertEqual(set(traces), {"trace_0", "trace_1", "trace_2"})
        trace = traces["trace_1"]
        self.assertEqual(trace["version"], "2.4")
        self.assertEqual(trace["pg_config"], {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}})
        seen = [(entry["record_id"], entry["profiling_name"], entry["input_sizes"], entry["output_sizes"],
                 entry["input_dtypes"], entry["state"]) for entry in trace["entries"]]
        self.assertEqual(seen, [
            (1, "nccl:all_reduce", [[4]], [[4]], ["Float"], "completed"),
            (2, "nccl:_all_gather_base", [[5]], [[15]], ["BFloat16"], "completed"),
            (3, "nccl:_reduce_scatter_base", [[18]], [[6]], ["Long"], "completed"),
            (4, "nccl:all_reduce_barrier", [[1]], [[1]], ["Byte"], "completed"),
            (5, "nccl:all_to_all", [[6]], [[6]], ["Float8_e4m3fn"], "completed"),
            (6, "nccl:broadcast", [[3_000_000_000]], [[3_000_000_000]], ["Byte"], "completed"),
            (7, "nccl:all_reduce", [[9]], [[9]], ["Double"], "started"),
        ])
        first = trace["entries"][0]
        self.assertEqual((first["process_group"], first["is_p2p"], first["retired"]), (("0", "default_pg"), False, True))
        self.assertEqual(first["time_created_ns"], 1_700_000_000_000_001_000)

    def test_the_analyser_names_the_rank_that_called_something_else(self):
        other = call(7, "barrier()", finished=False)
        _, _, analysed = self.run_on([record(rank, GOOD + [other if rank == 1 else LAST]) for rank in range(3)])
        if not analysed:
            self.skipTest("this Python has no torch with the analyser")
        self.assertIn("Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH", analysed)

    def test_one_communicator_of_the_last_job(self):
        records = [record(0, GOOD[:1], job="20261122T010203-zz"), record(0, GOOD[:3]),
                   record(0, GOOD, communicator="world/split0", size=2)]
        said, traces, _ = self.run_on(records)
        self.assertEqual([len(trace["entries"]) for trace in traces.values()], [2])
        self.assertIn("--allow-incomplete-ranks", said)
        _, traces, _ = self.run_on(records, "--communicator", "world/split0")
        self.assertEqual(traces["trace_0"]["pg_config"]["0"]["ranks"], "[0, 1]")
        said, _, _ = self.run_on(records, "--communicator", "nobody", status=2)
        self.assertIn("no record is of the communicator nobody", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
