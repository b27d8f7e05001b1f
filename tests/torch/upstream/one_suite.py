"""Runs tests of the installed torch's own distributed_test.py on one backend, each rank forked from this
process, which has imported torch once; what becomes of them goes into TESTS_OUT (stand_in/outcomes.py), and those
that are there are left out. Ends with 77 where they cannot be imported.

    TESTS_OUT=FILE TESTS_LIMIT_S=60 PYTHONPATH=stand_in python3 one_suite.py --backend gloo|chorus --ranks 3 [--only REGEX]

"chorus" is Chorus in the place of Gloo (CHORUS_AS_GLOO=1): all that torch's tests do for Gloo, by name, is done and
asked for.
"""

import argparse
import os
import re
import sys
import tempfile
import unittest

from outcomes import Outcomes, of_failure

arguments = argparse.ArgumentParser()
arguments.add_argument("--backend", choices=["gloo", "chorus"], required=True)
arguments.add_argument("--ranks", type=int, default=3)
arguments.add_argument("--only", default="")
options = arguments.parse_args()
sys.argv = sys.argv[:1]  # torch reads it, too

folder = tempfile.mkdtemp(prefix="chorus-upstream-")
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(options.ranks), TEMP_DIR=folder, OMP_NUM_THREADS="1",
                  TORCH_DEVICE_BACKEND_AUTOLOAD="0")
os.environ.setdefault("CHORUS_FLIGHT_DIR", "")
if options.backend == "chorus":
    os.environ["CHORUS_AS_GLOO"] = "1"

try:
    import expecttest
except ModuleNotFoundError:  # a base class of torch's tests; what it adds, these do not use
    sys.modules["expecttest"] = expecttest = type(sys)("expecttest")
    expecttest.TestCase = type("TestCase", (unittest.TestCase,), {})
    expecttest.ACCEPT = False

import torch

try:
    from torch.testing._internal import common_distributed
except ImportError as error:
    print(f"the tests of this torch cannot be imported: {error}")
    raise SystemExit(77)
torch.set_num_threads(1)
try:
    import torch.distributed._shard.replicated_tensor
except ModuleNotFoundError:  # a torch that has it no more
    pass
except Exception:  # torch 1.13 on Python 3.11: DistributedDataParallel does without it
    name = "torch.distributed._shard.replicated_tensor"
    sys.modules[name] = type(sys)(name)
    sys.modules[name].ReplicatedTensor = type("ReplicatedTensor", (), {})
    from torch.nn.parallel import _replicated_tensor_ddp_utils

    _replicated_tensor_ddp_utils._set_ddp_with_replicated_tensor = lambda value: None
from torch.testing._internal.distributed import distributed_test

if options.backend == "chorus":
    import chorus_torch

common_distributed.TIMEOUT_DEFAULT = int(os.environ["TESTS_LIMIT_S"])
common_distributed.TIMEOUT_OVERRIDE.clear()


class Upstream(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


Upstream.__module__ = "__main__"


class Result(unittest.TestResult):
    """The first of what happened to a test."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = ("ok", "")

    def addSkip(self, test, reason):
        self.outcome = ("skip", reason)

    def addFailure(self, test, error):
        self.outcome = ("fail", str(error[1]))

    addError = addFailure
    addUnexpectedSuccess = lambda self, test: None

    def addExpectedFailure(self, test, error):
        self.outcome = ("ok", "")


def run(name):
    """The outcome of one test, of which ranks and this process write into a file."""
    test, result = Upstream(name), Result()
    with tempfile.TemporaryFile("w+") as said:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(1), os.dup(2)]
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        try:
            test.run(result)
        finally:
            for process in getattr(test, "processes", []):
                if process.is_alive():
                    process.kill()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
        said.seek(0)
        text = said.read()
    outcome, why = result.outcome
    return of_failure(why + "\n" + text) if outcome == "fail" else (outcome, why)


def main():
    out = Outcomes(os.environ["TESTS_OUT"], float(os.environ.get("TESTS_UNTIL") or 0))
    Upstream.setUpClass()
    for name in unittest.TestLoader().getTestCaseNames(Upstream):
        if name in out.ended or not re.search(options.only, name):
            continue
        if out.late():
            return
        out.begin(name)
        out.end(name, *run(name))
    out.end_all()


if __name__ == "__main__":
    main()
