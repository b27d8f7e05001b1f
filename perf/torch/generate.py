"""Tokens per second of examples/pytorch/generate.py through Gloo, Chorus and DeepSpeed's operation, and without
communication, in turns.

    python3 perf/torch/generate.py [--ranks 2] [--rounds 3] [--json FILE [--more]] [--note TEXT] [-- options of generate.py]

Each run is a job of torchrun of its own; a figure is the median of the rounds, to which --more adds those that FILE has
already, taken by the same command. The share of communication is what a step takes beyond one without it.
"""

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from record import save

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "pytorch" / "generate.py"
FIGURES = ["tokens_per_s", "step_ms", "cpu_ms"]
BACKENDS = ["none", "gloo", "chorus", "deepspeed"]
LINE = re.compile(r": ([\d.]+) tokens/s, ([\d.]+) ms and ([\d.]+) ms of CPU a step, (\d+) collectives a step, logits (\w+)")


def once(backend, ranks, more):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", SCRIPT, backend, *more]
    job = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    found = LINE.search(job.stdout)
    if job.returncode != 0 or not found:
        raise SystemExit(f"generate through {backend} failed:\n{job.stdout}\n{job.stderr}")
    tokens, wall, cpu, calls, logits = found.groups()
    return {"tokens_per_s": float(tokens), "step_ms": float(wall), "cpu_ms": float(cpu), "collectives": int(calls),
            "logits": logits}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--json")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--note", default="")
    parser.add_argument("options", nargs="*", help="of generate.py, behind --")
    options = parser.parse_args()
    runs = {backend: [] for backend in options.backends}
    if options.more:
        for row in json.loads(Path(options.json).read_text())["rows"]:
            kept = zip(*(row[key + "_all"] for key in FIGURES), strict=True)
            runs[row["backend"]] = [dict(zip(FIGURES, one), collectives=row["collectives"], logits=bits)
                                    for one, bits in zip(kept, itertools.cycle(row["logits"]))]
    for _ in range(options.rounds):
        for backend in options.backends:
            runs[backend].append(once(backend, options.ranks, options.options))
            print(backend, runs[backend][-1], flush=True)
    rows = []
    for backend, all_ in runs.items():
        row = {"backend": backend, "collectives": all_[0]["collectives"], "logits": sorted({run["logits"] for run in all_})}
        for key in FIGURES:
            row[key] = round(statistics.median(run[key] for run in all_), 2)
            row[key + "_all"] = [run[key] for run in all_]
        rows.append(row)
    alone = next((row["step_ms"] for row in rows if row["backend"] == "none"), None)
    for row in rows:
        if alone and row["backend"] != "none":
            row["communication_share"] = round(1 - alone / row["step_ms"], 3)
    if options.json:
        save(options.json, options.note, {"ranks": options.ranks, "rounds": len(runs[options.backends[0]]), "rows": rows})


main()
