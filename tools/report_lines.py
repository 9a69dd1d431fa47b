"""A pytest plugin that writes one line of JSON per event, so that a process that is killed still tells how far it came.

`tools/gpu_test.py` loads it into every process it starts. The file is named by the environment variable
`HOTROWS_REPORT_LINES`. A JUnit file would not do: pytest writes it at the end, and a killed process writes none.
"""

import json
import os
from typing import Any

import pytest

VARIABLE = "HOTROWS_REPORT_LINES"


def write(**event: Any) -> None:
    with open(os.environ[VARIABLE], "a", encoding="utf-8") as lines:
        lines.write(json.dumps(event) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write(event="collect_error", path=report.nodeid, text=report.longreprtext)


def pytest_collection_finish(session: pytest.Session) -> None:
    write(event="collected", nodes=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid: str) -> None:
    write(event="started", node=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for setup, call and teardown each; the reader takes the worst of the three."""
    text = report.longreprtext if report.failed else ""
    write(event="phase", node=report.nodeid, outcome=report.outcome, seconds=report.duration, text=text)


def pytest_runtest_logfinish(nodeid: str) -> None:
    write(event="finished", node=nodeid)
