"""tools/trace_batch.py: the calls that docs/architecture.md lists for one batch are calls of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_CALLS, MAX_FILES = 25, 14  # a reader can follow one batch in this many steps


def traced(*arguments: str) -> set[tuple[str, str]]:
    """The files and functions that the script prints."""
    command = [sys.executable, str(ROOT / "tools" / "trace_batch.py"), *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {(file, function) for file, function in re.findall(r"^ *\d+  (\S+) +(\S+)$", printed, re.MULTILINE)}


def test_one_batch_goes_through_the_listed_calls() -> None:
    pytest.importorskip("triton")
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("## One batch through the code")[1].split("\n## ")[0]
    listed = re.findall(r"^\| (\d+) \| `(\S+)` \| `(\S+)` \|", section, re.MULTILINE)
    files = {file for _, _, file in listed}
    assert [int(number) for number, _, _ in listed] == list(range(1, len(listed) + 1))
    assert f"{len(listed)} calls in {len(files)} files" in section
    assert len(listed) <= MAX_CALLS
    assert len(files) <= MAX_FILES
    found = traced("--planning-graph")
    assert not [(file, function) for _, function, file in listed if (file, function) not in found]


def test_without_a_planning_graph_the_eager_planner_plans() -> None:
    found = traced()
    assert ("cache/planning/planner.py", "EagerPlanner.plan") in found
    assert ("cache/row_cache.py", "RowCache.move_planned") in found
    assert ("cache/planning/planning_graph.py", "PlanningGraph.run") not in found
