#!/usr/bin/env python3
"""What the trainer's own measurements show over many layouts, as a table and as JSON.

    perf/trainer/figures.py torch   [--json FILE]
    perf/trainer/figures.py ddp     [--cluster homo --ranks 4] [--json FILE]
    perf/trainer/figures.py moe     --cluster pairs [--json FILE]
    perf/trainer/figures.py plan    [--cluster lan:2,rate=0.25] [--json FILE]
    perf/trainer/figures.py overlap [--cluster homo] [--json FILE]
    perf/trainer/figures.py scaling [--cluster homo] [--json FILE]
    perf/trainer/figures.py length  [--json FILE]

torch: one rank beside PyTorch (torch_step.py) on the same model, sizes and threads, in turn.
ddp: replicas beside DistributedDataParallel over Gloo; exposed is what a step takes beyond one without communication.
moe: experts spread over all hosts, with schedules synthesized for the cluster's wiring and with flat ones, in turn.
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
import statistics
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


def compared(args, ranks, layout, option, count, model=MODEL, more=(), variables=None):
    """The figures of one run with `variables` in its environment, or None with the reason printed."""
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        command = [*launched(args, ranks), str(args.trainer), *shlex.split(model), *shlex.split(layout),
                   *shlex.split(args.train), *more, "--steps", "3", "--print-every", "1000", option, str(count),
                   "--compare-json", str(figures)]
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", CHORUS_FLIGHT_DIR=folder,
                           **(variables or {}))
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        if run.returncode != 0 or not figures.exists():
            print(f"{layout}: {run.stderr.strip().splitlines()[-1:] or run.returncode}", file=sys.stderr)
            return None
        return json.loads(figures.read_text())


TORCH_MODELS = [
    ("3.3M", MODEL.replace("--micro-batches 4", "--micro-batches 1")),
    ("10.8M", "--layers 6 --width 384 --heads 6 --context 256 --batch 8 --micro-batches 1"),
]
DDP_MODEL = "--layers 8 --width 320 --heads 5 --context 128 --batch 4 --micro-batches 1"


def torch_step(args, launcher, model, more=()):
    """What torch_step.py prints, or None with the reason printed."""
    command = [*launcher, str(ROOT / "perf/trainer/torch_step.py"), *shlex.split(model), "--steps", str(args.steps),
               *more]
    environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode != 0 or not lines:
        print(f"torch: {run.stderr.strip().splitlines()[-1:] or run.returncode}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def median(of):
    return statistics.median(of) if of else None


def torch(args):
    """Both sides' medians of each round; of these the median."""
    rows = []
    print(f"{'model':<8} {'type':<9} {'train':>10} {'PyTorch':>10} {'ratio':>6}")
    for name, model in TORCH_MODELS:
        if args.only not in name:
            continue
        times = {}
        for _ in range(args.rounds):
            for kind, flags in (("float32", ()), ("bfloat16", ("--bfloat16",))):
                ours = compared(args, 1, "", "--compare-overlap", args.steps, model, flags)
                theirs = torch_step(args, [args.python], model, flags)
                if ours and theirs:
                    times.setdefault(kind, ([], []))
                    times[kind][0].append(ours["overlap"]["with_s"])
                    times[kind][1].append(theirs["alone_s"])
                    parameters = theirs["parameters"]
        for kind, (ours, theirs) in times.items():
            row = {"model": name, "options": model, "parameters": parameters, "type": kind, "train_s": median(ours),
                   "torch_s": median(theirs), "ratio": round(median(ours) / median(theirs), 4),
                   "train_all_s": ours, "torch_all_s": theirs}
            if kind == "bfloat16" and "float32" in times:
                row["of_own_float32"] = round(median(ours) / median(times["float32"][0]), 4)
            rows.append(row)
            print(f"{name:<8} {kind:<9} {1e3 * row['train_s']:>8.1f}ms {1e3 * row['torch_s']:>8.1f}ms {row['ratio']:>6.3f}",
                  flush=True)
    return rows, {}


def ddp(args):
    rows = []
    print(f"{'':<8} {'step':>9} {'alone':>9} {'exposed':>9}")
    sides = {"train": [], "train, no overlap": [], "torch": []}
    for _ in range(args.rounds):
        figures = compared(args, args.ranks, f"--dp {args.ranks}", "--compare-overlap", args.steps, DDP_MODEL)
        if figures:
            of = figures["overlap"]
            sides["train"].append((of["with_s"], of["alone_s"]))
            sides["train, no overlap"].append((of["without_s"], of["alone_s"]))
        if args.cluster:
            figures = torch_step(args, [*launched(args, args.ranks), args.python], DDP_MODEL)
        else:
            figures = torch_step(args, [args.python], DDP_MODEL, ("--ranks", str(args.ranks)))
        if figures:
            sides["torch"].append((figures["ddp_s"], figures["alone_s"]))
    for name, pairs in sides.items():
        if not pairs:
            continue
        step, alone = median([p[0] for p in pairs]), median([p[1] for p in pairs])
        exposed = median([p[0] - p[1] for p in pairs])
        rows.append({"side": name, "options": DDP_MODEL, "ranks": args.ranks, "step_s": step, "alone_s": alone,
                     "exposed_s": exposed, "rounds": pairs})
        print(f"{name:<18} {1e3 * step:>7.1f}ms {1e3 * alone:>7.1f}ms {1e3 * exposed:>7.1f}ms", flush=True)
    summary = {}
    exposed = {row["side"]: row["exposed_s"] for row in rows}
    if len(rows) == 3:
        # No more can be hidden than there is, and than the backward pass, two thirds of a step, is long.
        hideable = min(exposed["train, no overlap"], rows[0]["alone_s"] * 2 / 3)
        summary = {"exposed_of_torch": round(exposed["train"] / exposed["torch"], 4),
                   "hidden_of_hideable": round((exposed["train, no overlap"] - exposed["train"]) / hideable, 4)}
        print(f"\nexposed: {summary['exposed_of_torch']:.3f} of PyTorch's; hidden of what is hideable: "
              f"{100 * summary['hidden_of_hideable']:.0f} %")
    return rows, summary


MOE_LAYOUTS = ["", "--zero 3"]
MOE_MODEL = MODEL.replace("--micro-batches 4", "--micro-batches 1")


def moe(args):
    """Steps, and the two collectives by themselves; flat: rings, and exchanges of pairs."""
    rows = []
    kinds = {"synthesized": {"CHORUS_TOPOLOGY": ""}, "flat": {"CHORUS_ALGORITHM": "ring"}}
    print(f"{'':<28} {'synthesized':>12} {'flat':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        wiring = pathlib.Path(folder) / "wiring.json"
        topology = subprocess.run([str(args.bin / "chorus"), "topo", args.cluster, "--json"], check=True,
                                  capture_output=True, text=True).stdout
        wiring.write_text(topology)
        kinds["synthesized"]["CHORUS_TOPOLOGY"] = str(wiring)
        for layout in args.layouts(MOE_LAYOUTS):
            full = f"--dp {args.ranks} --ep {args.ranks} --experts {2 * args.ranks} --top-k 2 {layout}".strip()
            times = {kind: [] for kind in kinds}
            for _ in range(args.rounds):
                for kind, variables in kinds.items():
                    figures = compared(args, args.ranks, full, "--compare-overlap", args.steps, MOE_MODEL,
                                       variables=variables)
                    if figures:
                        times[kind].append(figures["overlap"]["with_s"])
            if all(times.values()):
                row(rows, full, {kind: median(of) for kind, of in times.items()})
        for name, flat in (("all_to_all", "pairwise"), ("all_gather", "ring")):
            if args.only not in name:
                continue
            times = {kind: collective(args, name, variables) for kind, variables in
                     (("synthesized", {}), ("flat", {"CHORUS_ALGORITHM": flat}))}
            for size in sorted(set.intersection(*(set(of) for of in times.values()))):
                row(rows, f"{name}, {size >> 10} KiB", {kind: of[size] for kind, of in times.items()})
    return rows, {}


def row(rows, name, times):
    ratio = times["synthesized"] / times["flat"]
    rows.append({"what": name, **{kind + "_s": s for kind, s in times.items()}, "ratio": round(ratio, 4)})
    print(f"{name:<28} {1e3 * times['synthesized']:>10.2f}ms {1e3 * times['flat']:>8.2f}ms {ratio:>6.3f}", flush=True)


def collective(args, name, variables):
    """Seconds by size, by chorus-perf, which describes the cluster to its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        command = [str(args.bin / "chorus-perf"), name, "--cluster", args.cluster, "-l", "chorus", "--sizes", "256K,4M,16M",
                   "--rounds", "1", "--brief", "--json", str(figures)]
        run = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **variables), timeout=300)
        if run.returncode != 0 or not figures.exists():
            print(f"{name}: {run.stderr.strip().splitlines()[-1:] or run.returncode}", file=sys.stderr)
            return {}
        return {r["bytes"]: r["p50_us"] / 1e6 for r in json.loads(figures.read_text())["rows"] if r["p50_us"]}


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


PARTS = {"torch": torch, "ddp": ddp, "moe": moe, "plan": plan, "overlap": overlap, "scaling": scaling, "length": length}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(PARTS))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--cluster", default="", help="of chorus-perf cluster; default: this machine")
    parser.add_argument("--ranks", type=int, default=2, help="of overlap and scaling: replicas, the hosts of the cluster")
    parser.add_argument("--steps", type=int, default=20, help="or pairs of steps")
    parser.add_argument("--rounds", type=int, default=3, help="of torch, ddp and moe: both sides in turn")
    parser.add_argument("--python", default="/usr/bin/python3", help="that has PyTorch: Debian's")
    parser.add_argument("--train", default="", help="arguments for every run")
    parser.add_argument("--only", default="", help="layouts that hold this text")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--note", default="", help="kept in the record: what else the machine did, say")
    args = parser.parse_args()
    args.bin = args.build / "bin"
    args.trainer = args.build / "examples/trainer/train"
    if args.what == "moe" and not args.cluster:
        parser.error("moe is about islands: give --cluster pairs --ranks 4")
    args.layouts = lambda all: [x for x in all if args.only in x]
    rows, summary = PARTS[args.what](args)
    if args.json:
        document = {"format": "chorus-trainer-figures", "version": 1,
                    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "commit": commit(), "command": "perf/trainer/figures.py " + shlex.join(sys.argv[1:]),
                    "model": MODEL + " " + args.train, "machine": machine(), "rows": rows, **summary}
        if args.note:
            document["note"] = args.note
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
