"""Starts a function on several ranks, each a process of its own, and says what became of them."""

import faulthandler
import os
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta

# A forked rank begins at once: importing torch again would take each one seconds.
import torch
import torch.distributed as dist

import chorus_torch

torch.set_num_threads(1)


def run(size, body, *, backend="chorus", timeout_s=60, limit_s=120, init=True):
    """Runs body(rank, size) on `size` forked ranks; returns the text each raised, "" for none, or
    "exit N". Kills what is left after `limit_s` seconds ("hung")."""
    folder = tempfile.mkdtemp(prefix="chorus-torch-")
    meeting = os.path.join(folder, "store")
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(max(limit_s - 10, 1))  # says where it hangs
            _child(rank, size, body, backend, timeout_s, init, meeting, folder)
        children.append(child)
    deadline = time.monotonic() + limit_s
    results = []
    for rank, child in enumerate(children):
        results.append(_end_of(child, deadline, os.path.join(folder, str(rank))))
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    return results


def _child(rank, size, body, backend, timeout_s, init, meeting, folder):
    status = 0
    # torch makes the pool of threads that a fork lost anew when it is first asked for, which two threads must not do
    # at once: the second finds none ("Invalid thread pool!").
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    try:
        if init:
            start(rank, size, meeting, backend, timeout_s)
            body(rank, size)
            dist.destroy_process_group()
        else:
            body(rank, size, meeting)
        chorus_torch._C.leave_all("")
    except BaseException as error:
        status = 1
        with open(os.path.join(folder, str(rank)), "w") as file:
            file.write(f"{type(error).__name__}: {error}")
        if "CHORUS_TORCH_TRACE" in os.environ:
            traceback.print_exc()
        chorus_torch._C.leave_all(f"it ended with {type(error).__name__}")
    sys.stdout.flush()
    os._exit(status)


def start(rank, size, meeting, backend="chorus", timeout_s=60):
    store = dist.FileStore(meeting, size)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )


def _end_of(child, deadline, path):
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return "hung"
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    if os.path.exists(path):
        with open(path) as file:
            return file.read()
    return "" if code == 0 else f"exit {code}"


def equal(got, want):
    assert got.dtype == want.dtype and torch.equal(got, want), f"{got} is not {want}"


class OnRanks(unittest.TestCase):
    def on_ranks(self, body, sizes=(1, 2, 3), **options):
        for size in sizes:
            with self.subTest(size=size):
                self.assertEqual(run(size, body, **options), [""] * size)
