"""Runs test suites of projects that use torch.distributed, as installed beside this Python's torch, with Gloo and with
Chorus in its place, and prints what passed with which as Markdown.

    PYTHONPATH=build/release/python python3 tests/torch/upstream/suites.py torchft accelerate
    python3 tests/torch/upstream/suites.py deepspeed --sources ~/DeepSpeed --keep results/

Each needs its project (pip install torchft-nightly accelerate deepspeed, and pytest with pytest-timeout). Ends with 1
if something passes with Gloo and not with Chorus, unless KNOWN says why it cannot.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
# Tests that pass with Gloo and cannot with Chorus, by regular expressions on "SUITE NAME".
KNOWN = {
    r"^torchft .*with_resiliency": "the test takes only the words of Gloo and NCCL for a failure; Chorus names the rank "
                                   "that has left the group",
    r"^torchft .*test_gloo_timeout": "the test looks for Gloo's words; Chorus says which rank did not come, and within "
                                     "what time",
}


def installed(package, *parts):
    found = importlib.util.find_spec(package)
    if found is None:
        raise SystemExit(f"suites: {package} is not installed")
    return os.path.join(os.path.dirname(found.origin), *parts)


def environment(backend, **more):
    variables = dict(os.environ, OMP_NUM_THREADS="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0",
                     PYTHONHASHSEED="0", **more)  # some name their tests in the order of a set
    variables.setdefault("CHORUS_FLIGHT_DIR", "")
    folders = [os.path.join(HERE, "stand_in"), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    variables["CHORUS_AS_GLOO"] = "1" if backend == "chorus" else "0"
    return variables


def descendants(process):
    """Of a process, itself first: torchrun's workers have sessions of their own."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
        except OSError:
            pass  # it has ended
    found = [process]
    for one in found:
        found += children.get(one, [])
    return found


def run(command, variables, limit_s, folder):
    """(exit status or None where it took longer, what it said); nothing of it is left behind."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=variables, stdout=said, stderr=said, cwd=folder, start_new_session=True)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
            for one in descendants(process.pid):
                try:
                    os.kill(one, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        process.wait()
        said.seek(0)
        return status, said.read()


def last_words(text):
    """The exception that ended a rank, rather than torchrun's, which only says that one did."""
    lines = re.findall(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception): +\S.*)", text, re.M)
    return (lines or text.strip().splitlines() or [""])[-1]


def of_pytest(backend, options, folder, file, select="", more=(), **variables):
    """{test: (outcome, why)} of one file."""
    report = os.path.join(folder, "report.xml")
    command = [sys.executable, "-B", "-m", "pytest", "-q", "--tb=native", "-p", "no:cacheprovider", "--timeout", str(options.limit_s),
               "--junitxml", report, *more, *(["-k", select] if select else []), file]
    status, said = run(command, environment(backend, **variables), 3600, folder)
    if not os.path.exists(report):
        raise SystemExit(f"suites: {file} could not be run: {last_words(said)}")
    results = {}
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        kind = (case.get("classname") or "collection").split(".")[-1]
        name = f"{os.path.basename(file)}: {kind}.{case.get('name')}"
        outcome, why = "ok", ""
        for child in case:
            if child.tag == "skipped":
                outcome, why = "skip", child.get("message") or ""
            elif child.tag in ("failure", "error"):
                message = (child.get("message") or "").strip() or last_words(child.text or "")
                outcome, why = ("hang" if "from pytest-timeout" in message else "fail"), message
        results[name] = (outcome, why)
    return results


def of_scripts(backend, options, folder, scripts, **variables):
    """The same of scripts that torchrun starts on two ranks: each is a test."""
    results = {}
    for script in scripts:
        command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script]
        status, said = run(command, environment(backend, **variables), options.limit_s * 3, folder)
        outcome = {0: "ok", None: "hang"}.get(status, "fail")
        results[os.path.basename(script)] = (outcome, last_words(said) if outcome == "fail" else "")
    return results


def torchft(backend, options, folder):
    # Groups in a child process ("baby") are the same over again, with limits of 10 s in which a busy machine starts none.
    file = installed("torchft", "process_group_test.py")
    return of_pytest(backend, options, folder, file, "not nccl and not baby")


def accelerate(backend, options, folder):
    names = ("test_script", "test_ops", "test_sync", "test_distributed_data_loop")
    scripts = [installed("accelerate", "test_utils", "scripts", f"{name}.py") for name in names]
    return of_scripts(backend, options, folder, scripts, ACCELERATE_USE_CPU="1", CUDA_VISIBLE_DEVICES="")


def deepspeed(backend, options, folder):
    if not options.sources:
        raise SystemExit("suites: DeepSpeed's tests are in its sources alone: --sources FOLDER")
    tests = os.path.join(options.sources, "tests")
    results = {}
    for file in ("comm/test_dist.py", "runtime/comm/test_coalesced_collectives.py"):
        results |= of_pytest(backend, options, folder, os.path.join(tests, "unit", file),
                             more=["--rootdir", tests, "--confcutdir", tests], DS_ACCELERATOR="cpu",
                             DS_UNITTEST_FILE_STORE_DIR=folder)
    return results


SUITES = {"torchft": torchft, "accelerate": accelerate, "deepspeed": deepspeed}


def results_of(suite, backend, options):
    path = options.keep and os.path.join(options.keep, f"{suite}-{backend}.json")
    if path and os.path.exists(path):
        with open(path) as file:
            return {name: tuple(result) for name, result in json.load(file).items()}
    with tempfile.TemporaryDirectory(prefix="chorus-suites-") as folder:
        results = SUITES[suite](backend, options, folder)
    if path:
        with open(path, "w") as file:
            json.dump(results, file, indent=1)
    return results


def counts(results):
    return " / ".join(str(sum(outcome == kind for outcome, _ in results.values()))
                      for kind in ("ok", "fail", "hang", "skip"))


def cell(text):
    return " ".join(text.split()).replace("|", "\\|")[:200]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("suites", nargs="+", choices=sorted(SUITES))
    arguments.add_argument("--sources", help="of DeepSpeed")
    arguments.add_argument("--limit-s", type=int, default=60, help="after which a test hangs")
    arguments.add_argument("--keep", help="a folder for what each test gave; what is there is not run again")
    options = arguments.parse_args()
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    differences, unknown = [], 0
    print("| suite | tests | Gloo: ok / fail / hang / skip | Chorus: ok / fail / hang / skip |\n| --- | --- | --- | --- |")
    for suite in options.suites:
        gloo, chorus = (results_of(suite, backend, options) for backend in ("gloo", "chorus"))
        print(f"| {suite} | {len(gloo)} | {counts(gloo)} | {counts(chorus)} |", flush=True)
        for name in {**gloo, **chorus}:
            (before, why), (after, why_after) = (results.get(name, ("missing", "")) for results in (gloo, chorus))
            if before == after == "ok" or before == after == "skip":
                continue
            known = next((reason for pattern, reason in KNOWN.items() if re.search(pattern, f"{suite} {name}")), "")
            unknown += before == "ok" and not known
            reason = known or (f"Gloo: {why} Chorus: {why_after}" if before == after else why or why_after)
            differences.append(f"| {suite} | {name} | {before} | {after} | {cell(reason)} |")
    print("\n| suite | test | Gloo | Chorus | why |\n| --- | --- | --- | --- | --- |")
    print("\n".join(differences))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
