#!/usr/bin/env python3
"""Makes the table of suites in docs/pytorch.md: a virtual environment with torch and the projects from PyPI, the wheel of
this checkout built and installed there, every suite of suites.py with Gloo and with Chorus.

    tests/torch/upstream/table.py --torch 2.15 --sources SOURCES --write

Takes an hour on two cores; all is kept in build/upstream, each test as it ends, so the same command goes on where it was
stopped, be it by --for; as long as the library and these scripts stay the same. Ends with 1 if something passes with Gloo alone that nobody has explained. SOURCES/pytorch and SOURCES/DeepSpeed are these
projects' sources, as `apt-get source pytorch` and `git clone` bring them; without --sources the suites that only
they have are left out, and the table says so. With --suites the document keeps what it has of the others, if that was made
with the same versions: each row says of which commit it is.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from suites import HEAD, HEAD_OF_DIFFERENCES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DOCUMENT = ROOT / "docs" / "pytorch.md"
BEGIN, END = "<!-- what table.py writes -->\n", "<!-- until here -->\n"
TOOLS = ["numpy", "setuptools>=70.1", "ninja", "pytest", "pytest-timeout", "expecttest", "hypothesis",
         "parameterized"]
PROJECTS = ["accelerate", "deepspeed", "lightning", "torchft-nightly"]
SUITES = ["torch-2", "torch-3", "torch-4", "torchft", "accelerate", "lightning"]
OF_SOURCES = ["dtensor", "fsdp2", "deepspeed"]


def run(*command, **options):
    print("+", *command, file=sys.stderr, flush=True)
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, **options)


def environment(folder, torch):
    """A Python with that torch and the projects; what is there already stays."""
    python = folder / "venv" / "bin" / "python"
    if not (folder / "installed").exists():
        run(sys.executable, "-m", "venv", folder / "venv")
        run(python, "-m", "pip", "install", "-q", f"torch=={torch}.*", *TOOLS)
        run(python, "-m", "pip", "install", "-q", *PROJECTS, env={**os.environ, "DS_BUILD_OPS": "0"})
        (folder / "installed").touch()
    return python


def install_wheel(python, folder, state):
    installed = folder / "dist" / "state"
    if installed.exists() and installed.read_text() == state and not state.endswith("-dirty"):
        return
    for old in folder.glob("dist/*.whl"):
        old.unlink()
    run(python, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder / "dist", ROOT / "src" / "torch")
    (wheel,) = folder.glob("dist/*.whl")
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel)
    installed.write_text(state)


def versions(python):
    said = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True)
    return ", ".join(f"{name} {version}" for name, version in re.findall(r"^(\S+)==(\S+)$", said.stdout, re.M)
                     if name in ["torch", *PROJECTS])


def commit():
    """The last one that touched what is tested, or what tests it; "-dirty" where that differs from it."""
    parts = ["--", "include", "src", "collectives", "synth", "topology", "transports", "tests/torch/upstream"]
    git = lambda *words: subprocess.run(["git", *words, *parts], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return git("log", "-1", "--format=%h", "--abbrev=7").strip() + ("-dirty" if git("status", "--porcelain") else "")


def divided(document):
    """(what is before the table, the table, what is behind it)"""
    before, begin, rest = document.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"table: {DOCUMENT} has not the lines {BEGIN.strip()} and {END.strip()}")
    return before + begin, table, end + after


def by_suite(table):
    """{suite: its row, and those of what is not ok or skipped with both}"""
    rows, differences = {}, False
    for line in table.splitlines():
        differences |= line == HEAD_OF_DIFFERENCES
        if line.startswith("| ") and not re.match(r"\| (suite|---) ", line):
            rows.setdefault(line.split("|")[1].strip(), ([], []))[differences].append(line)
    return rows


def joined(made_with, said, kept):
    """The table of what suites.py said and, of other suites, of what the table `kept` has."""
    rows = by_suite(kept) if kept.startswith(made_with) else {}
    rows.update(by_suite(said))
    suites = [suite for suite in SUITES + OF_SOURCES if suite in rows]
    lines = [made_with, "", *HEAD, *(line for suite in suites for line in rows[suite][0])]
    if any(rows[suite][1] for suite in suites):
        lines += ["", HEAD_OF_DIFFERENCES, "| --- | --- | --- | --- | --- |"]
        lines += [line for suite in suites for line in rows[suite][1]]
    if left := [suite for suite in SUITES + OF_SOURCES if suite not in rows]:
        lines += ["", f"Not run: {', '.join(left)}."]
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--torch", default="2.15", help="its version on PyPI")
    arguments.add_argument("--sources", help="a folder with pytorch and DeepSpeed")
    arguments.add_argument("--suites", nargs="+", default=[], help="some of those of suites.py instead of all")
    arguments.add_argument("--limit-s", type=int, default=60, help="after which a test hangs; more on a busy machine")
    arguments.add_argument("--folder", type=Path, help="where all is kept, in place of build/upstream")
    arguments.add_argument("--write", action="store_true", help="into docs/pytorch.md, too")
    arguments.add_argument("--for", dest="seconds", metavar="S", help="begin no test after so long; then ends with 75")
    options = arguments.parse_args()
    folder = (options.folder or ROOT / "build" / "upstream").resolve() / options.torch
    folder.mkdir(parents=True, exist_ok=True)
    python = environment(folder, options.torch)
    state = commit()
    install_wheel(python, folder, state)
    suites = options.suites or SUITES + (OF_SOURCES if options.sources else [])
    more = ["--sources", options.sources] if options.sources else []
    more += ["--for", options.seconds] if options.seconds else []
    said = subprocess.run([python, HERE / "suites.py", *suites, "--limit-s", str(options.limit_s), "--of", state,
                           "--keep", folder / f"results-{state}", *more],
                          stdout=subprocess.PIPE, text=True)
    if said.returncode not in (0, 1) or not said.stdout:
        return said.returncode or 1
    before, table, after = divided(DOCUMENT.read_text())
    text = joined(f"With {versions(python)}.", said.stdout, table)
    print(text)
    (folder / "table.md").write_text(text)
    if options.write:
        DOCUMENT.write_text(before + text + after)
    return said.returncode


if __name__ == "__main__":
    sys.exit(main())
