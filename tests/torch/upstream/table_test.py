"""What table.py writes where some suites alone were run, and what suites leave behind."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from running import nothing_left
from suites import HEAD, HEAD_OF_DIFFERENCES
from table import joined

LINE = "| --- | --- | --- | --- | --- |"
MADE_WITH = "With torch 2.15.0."


def table(rows, differences):
    return "\n".join([*HEAD, *rows, "", HEAD_OF_DIFFERENCES, LINE, *differences])


OF_TORCH, OF_FSDP2 = "| torch-2 | 47d520b | 9 | 8 / 1 / 0 / 0 | 8 / 1 / 0 / 0 |", "| fsdp2 | {} | 5 | 5 / 0 / 0 / 0 | {} |"
FAILS, FAILED = "| torch-2 | test_a | fail | fail | it wants a GPU |", "| fsdp2 | b.py: B.test | ok | fail | Error |"
KEPT = f"{MADE_WITH}\n\n" + table([OF_TORCH, OF_FSDP2.format("47d520b", "4 / 1 / 0 / 0")], [FAILS, FAILED])
NOW = OF_FSDP2.format("b6fc671-dirty", "5 / 0 / 0 / 0")


def keeps_the_suites_that_were_not_run():
    text = joined(MADE_WITH, "\n".join([*HEAD, NOW]), KEPT)
    assert OF_TORCH in text and FAILS in text and NOW in text, text
    assert "47d520b | 5" not in text and FAILED not in text, text
    assert "Not run: torch-3, torch-4, torchft, accelerate, lightning, dtensor, deepspeed." in text, text


def keeps_nothing_of_other_versions():
    text = joined("With torch 2.16.0.", "\n".join([*HEAD, NOW]), KEPT)
    assert NOW in text and "| torch-2" not in text and "Not run: torch-2, " in text, text


def changes_nothing_where_nothing_was_run():
    text = joined(MADE_WITH, "", KEPT)
    assert joined(MADE_WITH, "", text) == text and FAILED in text, text


def removes_what_tests_leave_behind():
    with tempfile.TemporaryDirectory() as folder:
        mine, theirs = Path(folder, "buffer_mine"), Path(folder, "buffer_theirs")
        mine.touch()
        with contextlib.suppress(KeyboardInterrupt), nothing_left(f"{folder}/buffer_*"):
            theirs.touch()
            raise KeyboardInterrupt
        assert mine.exists() and not theirs.exists(), os.listdir(folder)


if __name__ == "__main__":
    keeps_the_suites_that_were_not_run()
    keeps_nothing_of_other_versions()
    changes_nothing_where_nothing_was_run()
    removes_what_tests_leave_behind()
    sys.exit(0)
