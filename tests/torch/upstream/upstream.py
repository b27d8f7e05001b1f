"""Runs torch's own distributed_test.py, of the torch of this Python, with Gloo and with Chorus in its place,
and prints what passed with which as Markdown.

    PYTHONPATH=build/release/python python3 tests/torch/upstream/upstream.py --ranks 3
    python3 tests/torch/upstream/upstream.py --only 'all_reduce|monitored' --keep results/

Ends with 1 if a test passes with Gloo and not with Chorus, unless KNOWN says why it cannot.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

# Tests that pass with Gloo and cannot with Chorus.
KNOWN = {
    "test_ddp_logging_data_cpu": "DistributedDataParallel's log reads what only an object of Gloo's has where a "
                                 "group says it is one, so Chorus's do not",
}

SUITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "one_suite.py")


def names_of_tests():
    """All that the suite has, asked of it in a process of its own."""
    said = subprocess.run([sys.executable, SUITE, "--backend", "gloo", "--list"], capture_output=True, text=True)
    if said.returncode != 0:
        print(f"upstream: the tests of this torch cannot be imported: {said.stderr.strip().splitlines()[-1]}")
        raise SystemExit(77)
    return said.stdout.split()


def results_of(backend, ranks, names, limit_s, folder):
    """{test: line of one_suite.py}; a test that ends the suite has failed, and the rest go on."""
    path = os.path.join(folder, f"{backend}-{ranks}.jsonl")
    results = {}
    if os.path.exists(path):
        with open(path) as file:
            results = {line["test"]: line for line in map(json.loads, file)}
    left = [name for name in names if name not in results]
    while left:
        subprocess.run([sys.executable, "-B", SUITE, "--backend", backend, "--ranks", str(ranks),
                        "--limit-s", str(limit_s), "--out", path, *left], check=False)
        if os.path.exists(path):
            with open(path) as file:
                results = {line["test"]: line for line in map(json.loads, file)}
        left = [name for name in left if name not in results]
        if left:
            with open(path, "a") as file:
                file.write(json.dumps({"test": left[0], "result": "fail", "why": "ended the suite", "seconds": 0})
                           + "\n")
            left = left[1:]
    with open(path) as file:
        results = {line["test"]: line for line in map(json.loads, file)}
    return {name: results[name] for name in names}


def counts(results):
    kinds = ("ok", "fail", "hang", "skip")
    return " / ".join(str(sum(line["result"] == kind for line in results.values())) for kind in kinds)


def cell(text):
    return re.sub(r"\s+", " ", text).replace("|", "\\|")[:160]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ranks", type=int, default=3)
    arguments.add_argument("--only", default="", help="a regular expression that names of tests contain")
    arguments.add_argument("--limit-s", type=int, default=60, help="after which a test hangs")
    arguments.add_argument("--keep", help="a folder for what each test gave; what is there is not run again")
    options = arguments.parse_args()
    import torch

    names = [name for name in names_of_tests() if re.search(options.only, name)]
    if not names:
        raise SystemExit(f"upstream: no test's name has {options.only!r}")
    with tempfile.TemporaryDirectory(prefix="chorus-upstream-") as temporary:
        folder = options.keep or temporary
        os.makedirs(folder, exist_ok=True)
        gloo, chorus = (results_of(backend, options.ranks, names, options.limit_s, folder)
                        for backend in ("gloo", "chorus"))
    print("| torch | ranks | tests | Gloo: ok / fail / hang / skip | Chorus: ok / fail / hang / skip |\n"
          "| --- | --- | --- | --- | --- |\n"
          f"| {torch.__version__} | {options.ranks} | {len(names)} | {counts(gloo)} | {counts(chorus)} |")
    print("\n| test | Gloo | Chorus | why |\n| --- | --- | --- | --- |")
    unknown = 0
    for name in names:
        before, after = gloo[name]["result"], chorus[name]["result"]
        if before == after or {before, after} <= {"fail", "hang"}:
            continue
        worse = before == "ok"
        unknown += worse and name not in KNOWN
        why = KNOWN.get(name) if worse and name in KNOWN else (chorus if worse else gloo)[name]["why"]
        print(f"| {name} | {before} | {after} | {cell(why)} |")
    for name in names:
        if gloo[name]["result"] == chorus[name]["result"] == "fail":
            print(f"| {name} | fail | fail | {cell(gloo[name]['why'])} |")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
