"""benchmarks/step.py at toy size on the CPU. Its times mean nothing there; its results and its exit code do."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOY = ("--device", "cpu", "--scale", "0.0005", "--batch-sizes", "64", "--steps", "2", "--window", "8")


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The script with few cases, and one thread because tests run in parallel."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("step")
    monkeypatch.setenv("HOTROWS_PEERS", str(tmp_path))  # no peer is in this folder
    monkeypatch.setattr(module, "RATIOS", (0.01, 0.2))
    monkeypatch.setattr(module, "NUM_ROWS", (3_000_000, 15_000_000))
    before, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(before)
    torch.backends.cuda.matmul.allow_tf32 = tf32


def run(step: ModuleType, path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = step.main([*arguments, *TOY, "--json", str(path)])
    return code, json.loads(path.read_text())


def test_kaggle_runs_all_systems_and_names_those_that_are_missing(step: ModuleType, tmp_path: Path) -> None:
    code, found = run(step, tmp_path / "found.json", "kaggle")
    assert code == 0
    assert found["environment"]["torch"] == torch.__version__
    assert found["targets"] == []  # targets are for whole tables
    sgd, adam = found["shapes"]["kaggle"]["cases"]
    for case in (sgd, adam):
        (point,) = case["points"]
        assert point["identity"]["identical"]
        assert point["identity"]["num_rows"] == case["num_rows"] == 16_892
        for key in ("hotrows", "device", "naive"):
            entry = point["systems"][key]
            assert entry["samples_per_s"] == pytest.approx(64_000 / entry["ms_per_step"])
        assert set(point["systems"]) == {"hotrows", "device", *step.PEERS}
        assert "missing" in point["systems"]["fbgemm-lru"]
        ours = point["systems"]["hotrows"]
        assert 0 < ours["hit_rate"] < 1
        assert ours["cache_full"]
        assert ours["graphs"] == {"replayed": 0, "eager": point["identity"]["num_steps"],
                                  "reason": "the bags are on cpu"}  # fmt: skip
        speeds = [point["systems"][key]["samples_per_s"] for key in ("hotrows", "device")]
        assert point["figures"]["over_device"] == pytest.approx(speeds[0] / speeds[1])
        assert point["figures"]["over_fbgemm_cached"] is None
    assert "pack_cached_embedding" in sgd["points"][0]["systems"]["cached-embedding"]["missing"]
    assert "not per row" in adam["points"][0]["systems"]["cached-embedding"]["missing"]


def test_other_shapes(step: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    code, found = run(step, path, "wide-deep", "rows", "ratio", "memory", "--systems", "hotrows", "device")
    assert code == 0
    for name in ("wide-deep", "rows", "ratio"):
        points = [point for case in found["shapes"][name]["cases"] for point in case["points"]]
        assert all(point["identity"]["identical"] for point in points)
    # The same rows are looked up, whatever the size of the tables.
    rows = [case["points"][0]["systems"]["hotrows"]["each_step"] for case in found["shapes"]["rows"]["cases"]]
    assert len({(each["unique"], each["misses"]) for each in rows}) == 1
    assert found["shapes"]["rows"]["figures"]["spread"] >= 0
    small, large = [case["points"][0]["systems"]["hotrows"] for case in found["shapes"]["ratio"]["cases"]]
    assert small["hit_rate"] < large["hit_rate"]
    base, more, half = found["shapes"]["memory"]["builds"]
    assert more["rows"] == 10 * base["rows"]
    assert half["slots"] < base["slots"] == more["slots"]

    printed = importlib.import_module("step_table").render(found)
    assert "IDENTICAL" in printed
    assert "| cache 20.0% | 64 | hotrows |" in printed


def test_a_missed_target_and_a_difference_are_failures(
    step: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = importlib.import_module("step_table")
    target = tables.Target("wide-deep", "over_device", 1e9, batch_size=64, scale=0.0005)
    monkeypatch.setattr(tables, "TARGETS", [target])

    def train_wrong(ours: Any, ceiling: Any, device: torch.device) -> Any:
        ours.bags.caches[0].store.records[1] += 1  # C1 has one row at this scale, so this is row 0 of C2
        return compare(ours, ceiling, device)

    compare = step.compare
    monkeypatch.setattr(step, "compare", train_wrong)
    code, found = run(step, tmp_path / "found.json", "wide-deep", "--systems", "hotrows", "device")
    assert code == 1
    assert found["targets"][0]["verdict"].startswith("MISSED by")
    (point,) = found["shapes"]["wide-deep"]["cases"][0]["points"]
    assert point["identity"]["identical"] is False
    assert "table C2, row 0" in point["identity"]["reason"]
    assert "2 missed or failed" in capsys.readouterr().out


def test_a_system_that_fails_stops_no_other(step: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(step.PEERS["naive"].__class__, "make", fail)
    monkeypatch.setattr(step.hotrows, "graphed", fail)
    code, found = run(
        step, tmp_path / "found.json", "kaggle", "--optimizers", "sgd", "--systems", "hotrows", "device", "naive"
    )
    assert code == 1
    systems = found["shapes"]["kaggle"]["cases"][0]["points"][0]["systems"]
    assert systems["hotrows"] == systems["device"] == {"failed": "RuntimeError: no luck"}
    assert systems["naive"] == {"failed": "building it: RuntimeError: no luck"}


@pytest.mark.parametrize(
    ("limit", "at_most", "found", "verdict"),
    [
        (6, False, 6.0, "ok"),
        (6, False, 3.0, "MISSED by 50.0%"),
        (2.0, True, 2.5, "MISSED by 25.0%"),
        (0, True, 0.0, "ok"),
        (0, True, 4.0, "MISSED by 4.000"),
        (6, False, None, "not measured"),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch, limit: float, at_most: bool, found: float | None, verdict: str
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    target = importlib.import_module("step_table").Target("kaggle", "over_device", limit, at_most)
    assert target.judge(found) == verdict
