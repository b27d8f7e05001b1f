"""How test suites of others are run, with Gloo or with Chorus in its place: {test: (outcome, why)} of each, where an
outcome is ok, fail, hang or skip. What a file gave is kept in options.keep, and taken from there the next time."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
OUTCOMES = ("ok", "fail", "hang", "skip")


def environment(backend, **more):
    variables = dict(os.environ, OMP_NUM_THREADS="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0", BACKEND=backend,
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
        status = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(limit_s)
        finally:
            if status is None:
                for one in descendants(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)
                process.wait()
        said.seek(0)
        return status, said.read()


def last_words(text):
    """The exception that ended a rank, rather than torchrun's, which only says that one did."""
    lines = re.findall(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception): +\S.*)", text, re.M)
    return (lines or text.strip().splitlines() or [""])[-1]


def kept(results_of):
    """Takes what a file gave from options.keep, if it is there, and leaves it there."""

    def once(backend, options, file, *arguments, **names):
        suite = f"{names.pop('kept_as', '')}{os.path.splitext(os.path.basename(file))[0]}"
        path = options.keep and not options.only and os.path.join(options.keep, f"{suite}-{backend}.json")
        if path and os.path.exists(path):
            with open(path) as kept_file:
                return {name: tuple(result) for name, result in json.load(kept_file).items()}
        print(f"{suite} with {backend}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="chorus-suites-") as folder:
            results = results_of(backend, options, file, folder, *arguments, **names)
        if path:
            with open(path + ".part", "w") as kept_file:
                json.dump(results, kept_file, indent=1)
            os.replace(path + ".part", path)
        return results

    return once


@kept
def of_pytest(backend, options, file, folder, select="", more=(), devices=None, **variables):
    """Of one file; "{folder}" in a variable is one for its files. With `devices`: of torch's tests for so many GPUs, on
    CPUs in their place (stand_in/on_cpus.py)."""
    report = os.path.join(folder, "report.xml")
    command = [sys.executable, "-B", "-m", "pytest", "-q", "--tb=native", "-p", "no:cacheprovider",
               "--timeout", str(options.limit_s), "--junitxml", report, *more]
    name = os.path.basename(file)
    if devices:
        with open(file) as source:
            text = source.read()
        file = os.path.join(folder, name)
        with open(file, "w") as copy:
            copy.write(on_cpus(text, devices))
        command += ["-p", "on_cpus"]
        variables |= {"TESTS_DEVICES": str(devices), "TESTS_LIMIT_S": str(options.limit_s)}
        command[command.index("--timeout") + 1] = str(options.limit_s + 30)  # torch's own limit comes first
    command += ["-k", " and ".join(filter(None, [select and f"({select})", options.only]))] if select or options.only else []
    variables = {name: value.format(folder=folder) for name, value in variables.items()}
    status, said = run([*command, file], environment(backend, **variables), 7200, folder)
    if not os.path.exists(report):
        raise SystemExit(f"suites: {file} could not be run: {last_words(said)}")
    results = {}
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        kind = (case.get("classname") or "collection").split(".")[-1]
        outcome, why = "ok", ""
        for child in case:
            if child.tag == "skipped":
                outcome, why = "skip", child.get("message") or ""
            elif child.tag in ("failure", "error"):
                text = f"{child.get('message') or ''}\n{child.text or ''}"
                hung = re.search(r"from pytest-timeout|timed out after \d+ seconds", text)
                outcome, why = ("hang" if hung else "fail"), last_words(text)
                if missing := re.search(r"No module named '(?!torch)(\w+)", why):
                    raise SystemExit(f"suites: {name} needs {missing[1]}, which is not installed")
        results[f"{name}: {kind}.{case.get('name')}"] = (outcome, why)
    return results


def on_cpus(text, devices):
    """A test's source with the CPU where it says CUDA."""
    for old, new in (
        (r"torch\.cuda\.device_count\(\)", str(devices)),
        (r"torch\.cuda\.", "torch.cpu."),
        (r"\.cuda\(\)", ".cpu()"),
        (r"device_ids=\[[^]]*\]", "device_ids=None"),
        (r"(['\" ])cuda\b(?=[:'\"])", r"\1cpu"),
        (r"not TEST_CUDA\b", "False"),
    ):
        text = re.sub(old, new, text)
    return text


@kept
def of_script(backend, options, script, folder, ranks=2, **variables):
    """Of a script that torchrun starts on some ranks: it is a test."""
    command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", script]
    status, said = run(command, environment(backend, **variables), options.limit_s * 3, folder)
    outcome = {0: "ok", None: "hang"}.get(status, "fail")
    return {os.path.basename(script): (outcome, last_words(said) if outcome == "fail" else "")}


def of_torch(backend, options, ranks):
    """Of the installed torch's distributed_test.py; a test that ends the suite has failed, and the rest go on."""
    suite = os.path.join(HERE, "one_suite.py")
    said = subprocess.run([sys.executable, suite, "--backend", "gloo", "--list"], capture_output=True, text=True)
    if said.returncode != 0:
        print(f"suites: the tests of this torch cannot be imported: {said.stderr.strip().splitlines()[-1]}")
        raise SystemExit(77)
    names = [name for name in said.stdout.split() if re.search(options.only, name)]
    with tempfile.TemporaryDirectory(prefix="chorus-suites-") as temporary:
        path = os.path.join(options.keep or temporary, f"torch-{ranks}-{backend}.jsonl")
        while left := [name for name in names if name not in lines_of(path)]:
            print(f"torch on {ranks} ranks with {backend}: {len(left)} tests", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-B", suite, "--backend", backend, "--ranks", str(ranks),
                            "--limit-s", str(options.limit_s), "--out", path, *left], check=False)
            ended = [name for name in left if name not in lines_of(path)]
            if ended:
                with open(path, "a") as file:
                    file.write(json.dumps({"test": ended[0], "result": "fail", "why": "ended the suite"}) + "\n")
        return {name: lines_of(path)[name] for name in names}


def lines_of(path):
    """What one_suite.py has written."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return {line["test"]: (line["result"], line["why"]) for line in map(json.loads, file)}
