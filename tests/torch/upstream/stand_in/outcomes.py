"""What becomes of tests, as lines of JSON in a file that outlives who writes it: one when a test begins, one when it
has ended, one when all have."""

import json
import os
import re
import time

OUTCOMES = ("ok", "fail", "hang", "skip")


class Outcomes:
    """Of a file's tests, at a path; `until`, if any, is when no test is to begin any more."""

    def __init__(self, path, until=None):
        self.path, self.until = path, until
        lines = []
        if os.path.exists(path):
            with open(path) as file:
                lines = [json.loads(line) for line in file if line.endswith("\n")]
        self.whole = any("whole" in line for line in lines)
        tests = {line["test"]: (line["result"], line["why"]) for line in lines if "test" in line}
        self.ended = {name: result for name, result in tests.items() if result[0] not in ("begun", "stopped")}
        self.begun = [name for name, result in tests.items() if result[0] == "begun"]

    def late(self):
        return bool(self.until) and time.time() > self.until

    def begin(self, name):
        self._write({"test": name, "result": "begun", "why": ""})

    def end(self, name, outcome, why=""):
        self._write({"test": name, "result": outcome, "why": why})

    def end_all(self):
        self._write({"whole": True})

    def _write(self, line):
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")


def of_failure(text):
    """(outcome, why) of all that a test which failed has said: the exceptions that ended its ranks."""
    lines = re.findall(r"^(?:E +)?(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception|Exit)\b.*)", text, re.M)
    hung = re.search(r"from pytest-timeout|timed out after [\d.]+ seconds", text)
    lines = [line for line in lines if not re.search(r"exited with (error code|exception)", line)]  # of whom it tells follows
    why = " | ".join(dict.fromkeys(lines)) or (text.strip().splitlines() or [""])[-1]
    return "hang" if hung else "fail", why[:2000]
