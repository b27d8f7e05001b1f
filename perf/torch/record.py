"""Saves what was measured with what it takes to measure it again."""

import json
import os
import platform
import subprocess
import sys

import torch


def commit():
    """Of what was measured: "-dirty" where sources differ from it, not for what records and their tables change."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], text=True, cwd=os.path.dirname(os.path.abspath(__file__)),
                              capture_output=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)perf/results",
                      ":(exclude,top)docs", ":(exclude,top)README.md")
        return git("describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def save(path, note, result):
    """`note`: the state of the machine, in words."""
    command = [os.path.relpath(sys.argv[0]), *sys.argv[1:]]
    if "--note" in command:
        at = command.index("--note")
        del command[at:at + 2]
    record = {"commit": commit(), "command": " ".join(command), "torch": torch.__version__,
              "machine": {"processor": processor(), "cores": os.cpu_count(), "state": note}}
    with open(path, "w") as file:
        json.dump({**record, **result}, file, indent=1)
        file.write("\n")
