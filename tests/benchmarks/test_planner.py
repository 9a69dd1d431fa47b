"""benchmarks/planner.py and benchmarks/policies.py at toy size."""

import importlib
import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # it would stay set for later tests


def test_planner_times_plans_of_a_full_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planner = importlib.import_module("planner")
    cases = [planner.Case(lookups=64, slots=1000, rows=rows) for rows in (100_000, 1_000_000)]
    monkeypatch.setattr(planner, "SWEEPS", {"rows": cases})
    path = tmp_path / "planner.json"
    monkeypatch.setattr("sys.argv", ["planner.py", "--rounds", "3", "--json", str(path)])
    assert planner.main() == 0
    small, large = json.loads(path.read_text())["results"]["rows"]
    assert small["misses"] == large["misses"] > 64 / 8
    assert small["plan_ms"] > 0


def test_policies_compares_misses_with_the_fewest_possible(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = importlib.import_module("policies")
    path = tmp_path / "policies.json"
    monkeypatch.setattr(policies, "SHARES", (1.5, 6.0))
    monkeypatch.setattr(
        "sys.argv",
        ["policies.py", "--rows", "4000", "--batches", "40", "--lookups", "64", "--window", "8", "--json", str(path)],
    )
    policies.main()
    found = json.loads(path.read_text())
    small, large = (result["misses"] for result in found["results"])
    assert small["belady"] == min(small.values())
    assert large["belady"] < small["belady"]
    assert f"A window of 8 batches has {found['window']['unique']} unique rows" in capsys.readouterr().out
