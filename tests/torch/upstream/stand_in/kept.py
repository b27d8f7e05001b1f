"""A plugin of pytest: writes what becomes of each test to TESTS_OUT (outcomes.py), leaves out those that are there, and
begins none after TESTS_UNTIL."""

import os

import pytest

import outcomes

OUT = outcomes.Outcomes(os.environ["TESTS_OUT"], float(os.environ.get("TESTS_UNTIL") or 0))
result = ("ok", "")


def name_of(nodeid):
    file, *parts = nodeid.split("::")
    return f"{os.path.basename(file)}: {'.'.join(parts) or 'collection'}"


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if name_of(item.nodeid) not in OUT.ended]


def pytest_collectreport(report):
    global result
    result = ("ok", "")
    note(report)
    if result[0] != "ok":
        OUT.end(name_of(report.nodeid), *result)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if OUT.late():
        item.session.shouldstop = "it is time"
        return True


def pytest_runtest_logstart(nodeid):
    global result
    result = ("ok", "")
    OUT.begin(name_of(nodeid))


def note(report):
    """The first thing that went otherwise than well."""
    global result
    if result[0] != "ok" or hasattr(report, "wasxfail"):
        return
    if report.skipped:
        result = ("skip", report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr))
    elif report.failed:
        result = outcomes.of_failure(str(report.longrepr))


def pytest_runtest_logreport(report):
    note(report)


def pytest_runtest_logfinish(nodeid):
    OUT.end(name_of(nodeid), *result)


def pytest_sessionfinish(session, exitstatus):
    if not session.shouldstop and exitstatus not in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        OUT.end_all()
