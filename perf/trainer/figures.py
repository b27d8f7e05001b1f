#!/usr/bin/env python3
"""What the trainer's own measurements show over many layouts, as a table and as JSON.

    perf/trainer/figures.py plan    [--cluster lan:2,rate=0.25] [--json FILE]
    perf/trainer/figures.py overlap [--cluster homo] [--json FILE]
    perf/trainer/figures.py scaling [--cluster homo] [--json FILE]
    perf/trainer/figures.py length  [--json FILE]

plan: the planner's step time beside the measured one for every layout of two ranks (--compare-plan).
overlap: exposed communication with overlap and without (--compare-overlap), steps in turn.
scaling: replicas, the step's sequences divided among them (strong) or multiplied by them (weak); efficiency is the
speed per rank over that of one rank.
length: bytes that the fullest rank sends per step and axis, by sequence length and layout (--dry-run; no step runs).

Without --cluster the ranks run side by side on this machine over shared memory; with it each is a host of an
emulated cluster (docs/emulated-clusters.md; root). --train adds arguments to every run, --only keeps the layouts
whose text holds it.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODEL = "--layers 4 --width 256 --heads 4 --context 128 --batch 4 --micro-batches 4"
PLAN_LAYOUTS = [
    "--dp 2",
    "--dp 2 --zero 1",
    "--dp 2 --zero 2",
    "--dp 2 --zero 3",
    "--dp 2 --zero 1 --recompute full",
    "--tp 2",
    "--tp 2 --sequence-parallel",
    "--tp 2 --recompute full",
    "--pp 2 --schedule gpipe",
    "--pp 2 --schedule 1f1b",
    "--pp 2 --schedule interleaved --virtual-stages 2",
    "--pp 2 --schedule zero-bubble",
    "--dp 2 --ep 2 --experts 4",
]
OVERLAP_LAYOUTS = ["", "--zero 1", "--zero 2", "--zero 3"]


def machine():
    def first(path, key):
        for line in pathlib.Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
        return ""

    memory = int(first("/proc/meminfo", "MemTotal").split()[0]) * 1024
    system = ""
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        if line.startswith("PRETTY_NAME="):
            system = line.split("=", 1)[1].strip('"')
    return {"cpu": first("/proc/cpuinfo", "model name"), "cpus": os.cpu_count(),
            "memory": f"{memory / 1e9:.0f} GB", "kernel": platform.release(), "system": system}


def commit():
    def git(*arguments):
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")


def launched(args, ranks):
    """The words before the program's."""
    if args.cluster:
        return [str(args.bin / "chorus-perf"), "cluster", "run", args.cluster, "--"]
    return [str(args.bin / "chorus"), "run", "-n", str(ranks), "--"]


def compared(args, ranks, layout, option, count):
    """The figures of one run, or None with the reason printed."""
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        command = [*launched(args, ranks), str(args.trainer), *shlex.split(MODEL), *shlex.split(layout),
                   *shlex.split(args.train), "--steps", "3", "--print-every", "1000", option, str(count),
                   "--compare-json", str(figures)]
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", CHORUS_FLIGHT_DIR=folder)
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        if run.returncode != 0 or not figures.exists():
            print(f"{layout}: {run.stderr.strip().splitlines()[-1:] or run.returncode}", file=sys.stderr)
            return None
        return json.loads(figures.read_text())


def plan(args):
    rows = []
    print(f"{'layout':<50} {'estimate':>10} {'measured':>10} {'ratio':>6}  {'by topology':>11}")
    for layout in args.layouts(PLAN_LAYOUTS):
        figures = compared(args, 2, layout, "--compare-plan", args.steps)
        if figures is None:
            continue
        of = figures["plan"]
        ratio = of["estimate"]["step_s"] / of["measured_s"]
        rows.append({"layout": layout, **of, "ratio": round(ratio, 4)})
        print(f"{layout:<50} {1e3 * of['estimate']['step_s']:>8.1f}ms {1e3 * of['measured_s']:>8.1f}ms {ratio:>6.3f}"
              f"  {1e3 * of['by_topology']['step_s']:>9.1f}ms", flush=True)
    dense = [r for r in rows if "--experts" not in r["layout"]]
    summary = {}
    if dense:
        chosen = min(dense, key=lambda r: r["estimate"]["step_s"])
        fastest = min(dense, key=lambda r: r["measured_s"])
        off = max(abs(r["ratio"] - 1) for r in rows)
        summary = {"chosen": chosen["layout"], "fastest": fastest["layout"],
                   "chosen_over_fastest": round(chosen["measured_s"] / fastest["measured_s"], 4),
                   "largest_error": round(off, 4), "within_15_percent": sum(abs(r["ratio"] - 1) <= 0.15 for r in rows),
                   "layouts": len(rows)}
        print(f"\nwithin 15 %: {summary['within_15_percent']} of {len(rows)}; largest error {100 * off:.1f} %; "
              f"the estimate's best of the dense ones takes {summary['chosen_over_fastest']:.3f} of the fastest")
    return rows, summary


def overlap(args):
    rows = []
    print(f"{'layout':<40} {'step':>9} {'exposed':>9} | {'step':>9} {'exposed':>9} | {'hidden':>7}   (with | without)")
    for layout in args.layouts(OVERLAP_LAYOUTS):
        full = f"--dp {args.ranks} {layout}".strip()
        figures = compared(args, args.ranks, full, "--compare-overlap", args.steps)
        if figures is None:
            continue
        of = figures["overlap"]
        hidden = 1 - of["with_exposed_s"] / of["without_exposed_s"]
        rows.append({"layout": full, **of, "hidden_share": round(hidden, 4)})
        print(f"{full:<40} {1e3 * of['with_s']:>7.1f}ms {1e3 * of['with_exposed_s']:>7.1f}ms | "
              f"{1e3 * of['without_s']:>7.1f}ms {1e3 * of['without_exposed_s']:>7.1f}ms | {100 * hidden:>6.1f}%", flush=True)
    return rows, {}


def scaling(args):
    """1, 2, 4, … ranks up to --ranks; on a cluster only all of its hosts and one rank on this machine."""
    rows = []
    print(f"{'ranks':>5} {'':<7} {'step':>9} {'tokens/s':>9} {'efficiency':>10} {'communication':>13}")
    context, sequences = 128, 16
    alone = None
    counts = [1, args.ranks] if args.cluster else [r for r in (1, 2, 4, 8) if r <= args.ranks]
    for ranks in counts:
        for kind in ("strong", "weak") if ranks > 1 else ("alone",):
            batches = sequences // 4 // (ranks if kind == "strong" else 1)
            layout = f"--dp {ranks} --micro-batches {max(1, batches)}"
            here = args if ranks > 1 else argparse.Namespace(**{**vars(args), "cluster": ""})
            figures = compared(here, ranks, layout, "--compare-overlap", args.steps)
            if figures is None:
                continue
            of = figures["overlap"]
            speed = ranks * max(1, batches) * 4 * context / of["with_s"]
            alone = alone or speed
            rows.append({"ranks": ranks, "kind": kind, "layout": layout, "step_s": of["with_s"],
                         "tokens_per_s": round(speed, 1), "efficiency": round(speed / alone / ranks, 4),
                         "communication_share": round(of["with_exposed_s"] / of["with_s"], 4)})
            print(f"{ranks:>5} {kind:<7} {1e3 * of['with_s']:>7.1f}ms {speed:>9.0f} {speed / alone / ranks:>10.3f} "
                  f"{100 * of['with_exposed_s'] / of['with_s']:>12.1f}%", flush=True)
    return rows, {}


LENGTH_LAYOUTS = ["--dp 16", "--dp 16 --zero 3", "--tp 16", "--tp 16 --recompute full", "--pp 4 --dp 4 --micro-batches 8",
                  "--pp 4 --tp 4 --micro-batches 8", "--dp 4 --tp 4 --zero 1"]


def length(args):
    """Of the 1.3B preset, by --dry-run."""
    rows = []
    print(f"{'layout':<34} {'tokens':>6}  sent per step by the rank that sends most")
    for layout in args.layouts(LENGTH_LAYOUTS):
        for context in (1024, 2048, 4096):
            command = [str(args.trainer), "--preset", "1.3B", "--context", str(context), "--batch", "4",
                       *shlex.split(layout), "--dry-run-json"]
            run = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if run.returncode != 0:
                print(f"{layout}: {run.stderr.strip()}", file=sys.stderr)
                continue
            stages = json.loads(run.stdout)["sent_bytes_by_stage"]
            most = {axis: max(stage[axis] for stage in stages) for axis in stages[0]}
            rows.append({"layout": layout, "context": context, "sent_bytes": most})
            print(f"{layout:<34} {context:>6}  " + ", ".join(f"{axis} {b / 1e9:.3f} GB" for axis, b in most.items() if b > 1e6),
                  flush=True)
    return rows, {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plan", "overlap", "scaling", "length"])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--cluster", default="", help="of chorus-perf cluster; default: this machine")
    parser.add_argument("--ranks", type=int, default=2, help="of overlap and scaling: replicas, the hosts of the cluster")
    parser.add_argument("--steps", type=int, default=20, help="or pairs of steps")
    parser.add_argument("--train", default="", help="arguments for every run")
    parser.add_argument("--only", default="", help="layouts that hold this text")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    args.bin = args.build / "bin"
    args.trainer = args.build / "examples/trainer/train"
    args.layouts = lambda all: [x for x in all if args.only in x]
    rows, summary = {"plan": plan, "overlap": overlap, "scaling": scaling, "length": length}[args.what](args)
    if args.json:
        document = {"format": "chorus-trainer-figures", "version": 1,
                    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "commit": commit(), "command": "perf/trainer/figures.py " + shlex.join(sys.argv[1:]),
                    "model": MODEL + " " + args.train, "machine": machine(), "rows": rows, **summary}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
