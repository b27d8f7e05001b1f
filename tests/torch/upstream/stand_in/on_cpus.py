"""A plugin of pytest: torch's tests of DTensor and FSDP2 on CPUs, TESTS_DEVICES of which stand for as many GPUs. Ranks
are forked, not spawned: each would import torch anew for every test."""

import os
import unittest

import torch
from torch.testing._internal import common_distributed

DEVICES = int(os.environ["TESTS_DEVICES"])

torch.set_num_threads(1)
common_distributed.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(
    torch.multiprocessing.get_context("fork").Process)
common_distributed.TIMEOUT_DEFAULT = int(os.environ["TESTS_LIMIT_S"])
common_distributed.TIMEOUT_OVERRIDE.clear()
common_distributed.skip_if_lt_x_gpu = lambda count, **_: unittest.skipIf(count > DEVICES, f"it wants {count} GPUs")

from torch.testing._internal import common_fsdp  # after what it imports has been replaced

common_fsdp.DEVICE_COUNT = DEVICES
torch.accelerator.device_count = lambda: DEVICES  # of which FSDP2's tests want as many as ranks
if not hasattr(common_fsdp, "test_compiled_fsdp"):  # which ran a test compiled for GPUs as well
    common_fsdp.test_compiled_fsdp = lambda **_: lambda test: test


def pytest_collection_modifyitems(items):
    """Tests of processes come first: what those of threads leave behind in this one, torch refuses to fork."""
    items.sort(key=lambda item: not (item.cls and issubclass(item.cls, common_distributed.MultiProcessTestCase)))
