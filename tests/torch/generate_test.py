"""Tensor-parallel inference gives the same logits through Chorus as through Gloo on two ranks, and in deterministic
mode on four whatever they are connected by: bit for bit.

    generate_test.py SCRIPT    skipped without transformers 5
"""

import os
import re
import socket
import subprocess
import sys

SCRIPT = sys.argv[1]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def line_of(ranks, backend, **variables):
    """What rank 0 prints, and the logits in it."""
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(ranks), RANK=str(rank),
                           LOCAL_RANK=str(rank), **variables)
        processes.append(subprocess.Popen([sys.executable, SCRIPT, backend, "--layers", "3", "--hidden", "128",
                                           "--tokens", "6"], env=environment, text=True, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE))
    try:
        said = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, said):
        if process.returncode != 0:
            raise SystemExit(f"{backend} {variables}: exit {process.returncode}\n{out}\n{err}")
    line = next(line for line in said[0][0].splitlines() if line.startswith(backend))
    print(line, variables or "")
    return re.search(r"(\d+) collectives a step, logits (\w+)", line).groups()


try:
    import transformers
    from transformers.distributed import DistributedConfig  # noqa: F401
except ImportError:
    print("skipped: there is no transformers 5 or newer")
    raise SystemExit(77)

calls, logits = line_of(2, "chorus")
if int(calls) < 2 * 3:
    raise SystemExit(f"{calls} collectives for 3 layers: the model was not divided")
if line_of(2, "gloo") != (calls, logits):
    raise SystemExit("two ranks: the logits differ from Gloo's")
expected = line_of(4, "chorus", CHORUS_DETERMINISTIC="1")
for transport in ("tcp", "shm"):
    if line_of(4, "chorus", CHORUS_DETERMINISTIC="1", CHORUS_TRANSPORTS=transport) != expected:
        raise SystemExit(f"four ranks: the logits over {transport} differ")
