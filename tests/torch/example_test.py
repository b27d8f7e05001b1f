"""An example prints the same losses through Chorus as through Gloo, on two ranks.

    example_test.py SCRIPT [MODULE:NAME[.NAME...]...]    skipped where torch has no NAME in MODULE
"""

import importlib
import operator
import os
import signal
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(script, backend):
    forgetful = not absent("torch.distributed.pipelining.schedules:Schedule1F1B") and absent(
        "torch.distributed.pipelining.schedules:_wait_batch_p2p")
    keeper = [os.path.join(os.path.dirname(__file__), "keep_works.py")] if backend == "gloo" and forgetful else []
    return [sys.executable, *keeper, script, backend]


def losses(script, backend):
    variables = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE="2")
    ranks = [
        subprocess.Popen(command(script, backend), text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=dict(variables, RANK=str(r), LOCAL_RANK=str(r)))
        for r in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=250) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (out, err) in zip(ranks, outputs):
        # Gloo may abort when its threads end (torch 1.13, "terminate called without an active exception"): what counts
        # of it are the losses.
        if rank.returncode != 0 and (backend, rank.returncode) != ("gloo", -signal.SIGABRT):
            raise SystemExit(f"{backend}: exit {rank.returncode}\n{out}\n{err}")
    out, err = outputs[0]
    found = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]
    if len(found) < 5:
        raise SystemExit(f"{backend}: no losses in:\n{out}\n{err}")
    return found


def absent(api):
    module, name = api.split(":")
    try:
        operator.attrgetter(name)(importlib.import_module(module))
    except (AttributeError, ImportError, ValueError):  # ValueError: what torch 1.13 ends with on Python 3.11
        return True
    return False


script = sys.argv[1]
for api in sys.argv[2:]:
    if absent(api):
        import torch
        print(f"skipped: torch {torch.__version__} has no {api.replace(':', '.')}")
        raise SystemExit(77)
chorus, gloo = losses(script, "chorus"), losses(script, "gloo")
print("chorus", chorus)
print("gloo  ", gloo)
# Two contributions add up to the same bits in either order.
if chorus != gloo:
    raise SystemExit("the losses differ")
if not chorus[-1] < chorus[0]:
    raise SystemExit("nothing was learnt")
