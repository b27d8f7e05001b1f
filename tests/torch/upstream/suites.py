"""Runs test suites of torch and of projects that use torch.distributed, as installed for this Python, with Gloo and with
Chorus in its place, and prints as Markdown what passed with which.

    PYTHONPATH=build/release/python python3 tests/torch/upstream/suites.py torch-3 --only 'all_reduce|monitored'
    python3 tests/torch/upstream/suites.py dtensor deepspeed --sources SOURCES --keep results/

torch-N is torch's own distributed_test.py on N ranks. The others need their projects (pip install accelerate deepspeed
lightning torchft-nightly, and pytest with pytest-timeout and expecttest); tests that no package has, SOURCES/pytorch and
SOURCES/DeepSpeed. Ends with 1 if something passes with Gloo and not with Chorus, unless KNOWN says why it cannot;
with 77 if this torch has no tests. table.py makes the whole table of docs/pytorch.md.
"""

import argparse
import glob
import importlib.util
import os
import re
import signal
import sys
import time

import running
from outcomes import OUTCOMES

# Why tests that pass with Gloo cannot with Chorus, and why others fail where they do not say it: by regular expressions on
# "SUITE NAME".
KNOWN = {
    r"^torch-\d test_ddp_logging_data_cpu$": "DistributedDataParallel's log reads what only an object of Gloo's has where "
                                             "a group says it is one, so Chorus's do not",
    r"^accelerate test_distributed_data_loop": "it lets ranks end unevenly: Gloo waits for its limit, Chorus says which "
                                               "rank called what",
    r"^deepspeed test_dist.py: TestDistributedFixture": "it wants an older pytest",
}


KINDS = " / ".join(OUTCOMES)
HEAD = [f"| suite | of | tests | Gloo: {KINDS} | Chorus: {KINDS} |", "| --- | --- | --- | --- | --- |"]
HEAD_OF_DIFFERENCES = "| suite | test | Gloo | Chorus | why |"


def installed(package, *parts):
    found = importlib.util.find_spec(package)
    if found is None:
        raise SystemExit(f"suites: {package} is not installed")
    return os.path.join(os.path.dirname(found.origin), *parts)


def sources(options, *parts):
    if not options.sources:
        raise SystemExit(f"suites: the tests are in {parts[0]}'s sources alone: --sources FOLDER with {parts[0]} in it")
    path = os.path.join(options.sources, *parts)
    if not glob.glob(path):
        raise SystemExit(f"suites: there is no {path}")
    return path


def torchft(backend, options):
    # Groups in a child process ("baby") are the same over again, with limits of 10 s in which a busy machine starts none.
    file = installed("torchft", "process_group_test.py")
    return running.of_pytest(backend, options, file, "not nccl and not baby")


def accelerate(backend, options):
    results = {}
    for name in ("test_script", "test_ops", "test_sync", "test_distributed_data_loop"):
        script = installed("accelerate", "test_utils", "scripts", f"{name}.py")
        results |= running.of_script(backend, options, script, ACCELERATE_USE_CPU="1", CUDA_VISIBLE_DEVICES="")
    return results


def lightning(backend, options):
    installed("lightning")
    return running.of_script(backend, options, os.path.join(running.HERE, "lightning_script.py"), CUDA_VISIBLE_DEVICES="")


def deepspeed(backend, options):
    tests = sources(options, "DeepSpeed", "tests")
    results = {}
    for file in ("comm/test_dist.py", "runtime/comm/test_coalesced_collectives.py"):
        with running.nothing_left(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_*"):  # 66 MiB of each rank
            results |= running.of_pytest(backend, options, os.path.join(tests, "unit", file),
                                         more=["--rootdir", tests, "--confcutdir", tests], DS_ACCELERATOR="cpu",
                                         DS_UNITTEST_FILE_STORE_DIR="{folder}")
    return results


def of_files(backend, options, patterns, leave_out, devices):
    folder = sources(options, "pytorch", "test", "distributed")
    files = [file for pattern in patterns for file in sorted(glob.glob(os.path.join(folder, pattern)))
             if not re.search(leave_out, file)]
    if not files:
        raise SystemExit(f"suites: there is no {' or '.join(patterns)} in {folder}")
    results = {}
    for file in files:
        results |= running.of_pytest(backend, options, file, devices=devices)
    return results


def dtensor(backend, options):
    # Left out: those that communicate with nobody or compile for GPUs.
    return of_files(backend, options, ("_tensor/test_*.py", "tensor/test_*.py", "tensor/parallel/test_*.py"),
                    "xla|compile|attention|dtensor_ops|micro_pipeline|op_strategy|common_rules|export|fake", 4)


def fsdp2(backend, options):
    # Left out: those of a GPU's memory, its streams' times and its compiler.
    return of_files(backend, options, ("_composable/fsdp/test_fully_shard_*.py",), "memory|overlap|compile|logging", 2)


def of_torch(ranks):
    suite = os.path.join(running.HERE, "one_suite.py")
    return lambda backend, options: running.of_torch(backend, options, suite, ranks, kept_as=f"torch-{ranks}")


SUITES = {f"torch-{ranks}": of_torch(ranks) for ranks in (2, 3, 4)}
SUITES |= {"dtensor": dtensor, "fsdp2": fsdp2, "torchft": torchft, "accelerate": accelerate, "lightning": lightning,
           "deepspeed": deepspeed}


def counts(results):
    return " / ".join(str(sum(outcome == kind for outcome, _ in results.values())) for kind in OUTCOMES)


def cell(text):
    text = re.sub(r"(?<![\w/.])/(?:[\w.+-]+/)+", "", text)  # of files, their names: folders are this machine's
    return " ".join(text.split()).replace("|", "\\|")[:200]


def differences(suite, gloo, chorus):
    """(rows of a table of what is not ok or skipped with both, how many of them nobody has explained). What fails alike
    with both and for the same reason is one row."""
    rows, alike, unknown = [], {}, 0
    for name in {**gloo, **chorus}:
        (before, why), (after, why_after) = (results.get(name, ("missing", "")) for results in (gloo, chorus))
        if before == after and before in ("ok", "skip"):
            continue
        known = next((reason for pattern, reason in KNOWN.items() if re.search(pattern, f"{suite} {name}")), "")
        if before == after:
            alike.setdefault((before, known or cell(why)), []).append(name)
            continue
        unknown += before == "ok" and not known
        rows.append(f"| {suite} | {name} | {before} | {after} | {known or cell(why_after if before == 'ok' or not why else why)} |")
    for (outcome, why), names in alike.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        rows.append(f"| {suite} | {names[0]}{more} | {outcome} | {outcome} | {why} |")
    return rows, unknown


def table(suites, options):
    """(Markdown, differences that nobody has explained)"""
    rows, different, unknown = [], [], 0
    for suite in suites:
        gloo, chorus = (SUITES[suite](backend, options) for backend in ("gloo", "chorus"))
        if not gloo:
            raise SystemExit(f"suites: {suite} has no test of that name")
        rows.append(f"| {suite} | {options.of} | {len(gloo)} | {counts(gloo)} | {counts(chorus)} |")
        more, unexplained = differences(suite, gloo, chorus)
        different += more
        unknown += unexplained
    text = "\n".join([*HEAD, *rows])
    if different:
        text += "\n\n" + "\n".join([HEAD_OF_DIFFERENCES, "| --- | --- | --- | --- | --- |", *different])
    return text, unknown


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("suites", nargs="+", choices=SUITES)
    arguments.add_argument("--sources", type=os.path.abspath, help="a folder with pytorch and DeepSpeed")
    arguments.add_argument("--only", default="", help="what names of tests contain; of torch-N a regular expression")
    arguments.add_argument("--limit-s", type=int, default=60, help="after which a test hangs")
    arguments.add_argument("--of", default="", help="which state of Chorus it is, for the table")
    arguments.add_argument("--keep", type=os.path.abspath,
                           help="a folder for what each test gave; what is there is not run again")
    arguments.add_argument("--for", type=float, dest="until", metavar="S",
                           help="begin no test after so long; with --keep the same command goes on. Then ends with 75")
    options = arguments.parse_args()
    if options.until:
        options.until += time.time()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started is ended, too
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    text, unknown = table(options.suites, options)
    print(text)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
