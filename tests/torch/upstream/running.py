"""How test suites of others are run, with Gloo or with Chorus in its place: {test: (outcome, why)} of each."""

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "stand_in"))
from outcomes import Outcomes, of_failure


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


@contextlib.contextmanager
def nothing_left(pattern):
    """Removes what has come to be there meanwhile: tests leave it behind."""
    before = set(glob.glob(pattern))
    try:
        yield
    finally:
        for path in set(glob.glob(pattern)) - before:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def run(command, variables, limit_s, folder):
    """(exit status or None where it took longer, what it said); no process of it is left behind."""
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


def kept(run_once):
    """What becomes of a file's tests with a backend: runs them, until all have run, and keeps that in options.keep, from
    where it goes on the next time."""

    def until_whole(backend, options, file, *arguments, kept_as="", **names):
        suite = kept_as or os.path.splitext(os.path.basename(file))[0]
        with tempfile.TemporaryDirectory(prefix="chorus-suites-") as folder:
            path = os.path.join(folder if options.only or not options.keep else options.keep, f"{suite}-{backend}.jsonl")
            out = Outcomes(path)
            while not out.whole:
                if options.until and time.time() > options.until:
                    print("suites: there is more; the same command goes on", file=sys.stderr)
                    raise SystemExit(75)
                print(f"{suite} with {backend}", file=sys.stderr, flush=True)
                for name in out.begun:  # when this was ended from outside
                    out.end(name, "stopped")
                said = run_once(backend, options, file, folder, path, *arguments, **names)
                before, out = out.ended, Outcomes(path)
                for name in out.begun:
                    out.end(name, "fail", f"ended the suite: {of_failure(said)[1]}")
                if not (out.whole or out.begun or len(out.ended) > len(before) or options.until):
                    raise SystemExit(f"suites: {file} could not be run: {of_failure(said)[1]}")
                out = Outcomes(path)
        for name, (_, why) in out.ended.items():
            if missing := re.search(r"No module named '(?!torch)(\w+)", why):
                raise SystemExit(f"suites: {name} needs {missing[1]}, which is not installed")
        return out.ended

    return until_whole


def bounds(options, path):
    return {"TESTS_OUT": path, "TESTS_UNTIL": str(options.until or 0), "TESTS_LIMIT_S": str(options.limit_s)}


@kept
def of_pytest(backend, options, file, folder, path, select="", more=(), devices=None, **variables):
    """Of one file; "{folder}" in a variable is one for its files. With `devices`: of torch's tests for so many GPUs, on
    CPUs in their place (stand_in/on_cpus.py)."""
    limit_s = options.limit_s
    command = [sys.executable, "-B", "-m", "pytest", "-q", "--tb=native", "-p", "no:cacheprovider", "-p", "kept", *more]
    if devices:
        with open(file) as source:
            text = source.read()
        file = os.path.join(folder, os.path.basename(file))
        with open(file, "w") as copy:
            copy.write(on_cpus(text, devices))
        command += ["-p", "on_cpus"]
        variables["TESTS_DEVICES"] = str(devices)
        limit_s += 30  # torch's own limit comes first
    if select or options.only:
        command += ["-k", " and ".join(filter(None, [select and f"({select})", options.only]))]
    variables = {name: value.format(folder=folder) for name, value in variables.items()}
    command += ["--timeout", str(limit_s), file]
    return run(command, environment(backend, **bounds(options, path), **variables), 7200, folder)[1]


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
def of_script(backend, options, script, folder, path, ranks=2, **variables):
    """Of a script that torchrun starts on some ranks: it is a test."""
    command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", script]
    status, said = run(command, environment(backend, **variables), options.limit_s * 3, folder)
    out = Outcomes(path)
    out.end(os.path.basename(script), *{0: ("ok",), None: ("hang",)}.get(status, ("fail", of_failure(said)[1])))
    out.end_all()
    return said


@kept
def of_torch(backend, options, suite, folder, path, ranks):
    """Of the installed torch's distributed_test.py, by one_suite.py."""
    command = [sys.executable, "-B", suite, "--backend", backend, "--ranks", str(ranks), "--only", options.only]
    status, said = run(command, environment(backend, **bounds(options, path)), 7200, folder)
    if status == 77:
        print(f"suites: {said.strip()}")
        raise SystemExit(77)
    return said
