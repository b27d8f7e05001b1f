"""Starts a function on several ranks, each a forked process, and says what became of them."""

import faulthandler
import os
import select
import sys
import time
import traceback

import chorus

try:
    import numpy  # noqa: F401  what the tests compare with
except ImportError:
    print(f"skipped: {sys.executable} has no numpy")
    sys.exit(77)


def run(size, body, limit_s=60, **options):
    """Runs body(world) on `size` ranks; returns the text each raised, "" for none, or "exit N". Kills what is left
    after `limit_s` seconds ("hung")."""
    to_rank = [os.pipe() for _ in range(size)]
    from_0 = os.pipe()
    results = [os.pipe() for _ in range(size)]
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(max(limit_s - 5, 1))
            os._exit(_child(rank, size, body, to_rank[rank][0], from_0[1], results[rank][1], options))
        children.append(child)
    meeting = os.read(from_0[0], 4096)
    for _, pipe in to_rank[1:]:
        os.write(pipe, meeting)
    deadline = time.monotonic() + limit_s
    ends = [_end_of(child, deadline, pipe[0]) for child, pipe in zip(children, results)]
    for pair in (*to_rank, from_0, *results):
        os.close(pair[0]), os.close(pair[1])
    return ends


def _child(rank, size, body, hears, tells, result, options):
    status, text = 0, ""
    try:
        if rank == 0:
            meeting = chorus.unique_id(size)
            os.write(tells, meeting.encode())
        else:
            meeting = os.read(hears, 4096).decode()
        world = chorus.join(meeting, rank, size, timeout_s=20, **options)
        body(world)
        chorus._core.leave_all("")
    except BaseException as error:
        status, text = 1, f"{type(error).__name__}: {error}"
        if isinstance(error, AssertionError):
            text = traceback.format_exc()
        os.write(result, text.encode()[:60_000])
        chorus._core.leave_all(f"this process ended with {type(error).__name__}: {error}")
    return status


def _end_of(child, deadline, pipe):
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            said = os.read(pipe, 65_536).decode() if select.select([pipe], [], [], 0)[0] else ""
            return said or ("" if status == 0 else f"exit {os.waitstatus_to_exitcode(status)}")
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return "hung"
        time.sleep(0.005)
