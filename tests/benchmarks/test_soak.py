"""benchmarks/soak.py at toy size: a run of a few seconds is good, and what it looks for is found if it is planted."""

import gc
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pytest
import torch

import hotrows

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NUM_OPERATIONS = 40
NUM_FEW_OPERATIONS = 20
FEW = ("leave early",)


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # it would stay set for later tests
    module = importlib.import_module("soak")
    monkeypatch.setattr(module, "fix_malloc_thresholds", lambda: None)  # so would these
    monkeypatch.setattr(module, "NUM_IDLE", 3)
    # An operation takes a second here, so that a slow machine does as many as a fast one.
    monkeypatch.setattr(module.Soak, "elapsed", property(lambda run: float(run.num_operations)))
    num_threads = pyarrow.io_thread_count()
    hotrows.optim.SGD(lr=0.1)  # the first optimizer imports most of PyTorch
    gc.collect()
    gc.freeze()  # collecting takes most of the time otherwise
    yield module
    gc.unfreeze()
    pyarrow.set_io_thread_count(num_threads)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(BENCHMARKS)
        module = importlib.import_module("soak")
        patched.setattr(module, "LOG_SAMPLES", 20_000)
        yield module.prepare_log(tmp_path_factory.mktemp("soak"))


def run(
    soak: ModuleType, log: Path, path: Path, num_operations: int = NUM_FEW_OPERATIONS
) -> tuple[int, dict[str, Any]]:
    code = soak.main(["--hours", str(num_operations / 3600), "--data", str(log), "--out", str(path)])
    return code, json.loads(path.read_text())


def not_met(found: dict[str, Any]) -> set[str]:
    return {bound["name"] for bound in found["judged"] if not bound["is_met"]}


def plant(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, operation: Callable[[Any], None]) -> None:
    """Make this one of a few operations."""
    few = {name: soak.OPERATIONS[name] for name in FEW}
    monkeypatch.setattr(soak, "OPERATIONS", {**few, "planted": operation})
    monkeypatch.setattr(importlib.import_module("soak_pairs"), "KINDS", ("collection", "bag"))
    monkeypatch.setattr(importlib.import_module("soak_measure"), "END_SECONDS", 0.1)


def test_a_short_run_is_good(
    soak: ModuleType, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("soak_pairs"), "KINDS", ("collection", "jagged", "bag", "log"))
    code, found = run(soak, log, tmp_path / "soak.json", NUM_OPERATIONS)
    out = capsys.readouterr().out
    assert code == 0, out
    assert "verdict: yes" in out
    assert "NO " not in out
    assert found["good"]
    assert found["failures"] == []
    assert set(soak.OPERATIONS) <= set(found["counts"])
    assert found["peak"]["rss"] >= found["final"]["rss"] > 0


def test_kept_tensors_are_found(soak: ModuleType, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    plant(soak, monkeypatch, lambda pair: kept.extend(torch.ones(250_000) for _ in range(20)))
    code, found = run(soak, log, tmp_path / "soak.json")
    assert code == 1
    assert not_met(found) == {
        "tensors when idle", "RSS when idle", "RSS, trend over the last two thirds",
    }  # fmt: skip


def test_a_thread_that_does_not_end_is_found(
    soak: ModuleType, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    plant(soak, monkeypatch, lambda pair: threading.Thread(target=ended.wait, daemon=True).start())
    try:
        code, found = run(soak, log, tmp_path / "soak.json")
    finally:
        ended.set()
    assert code == 1
    assert not_met(found) == {"threads when idle"}


def test_an_open_descriptor_is_found(
    soak: ModuleType, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    plant(soak, monkeypatch, lambda pair: opened.append(os.open(os.devnull, os.O_RDONLY)))
    try:
        code, found = run(soak, log, tmp_path / "soak.json")
    finally:
        for descriptor in opened:
            os.close(descriptor)
    assert code == 1
    assert not_met(found) == {"descriptors when idle"}


def test_a_wrong_row_is_found(
    soak: ModuleType, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def change_one_bit(pair: Any) -> None:
        name = pair.shape.tables[0].name
        parts = pair.everything(pair.subject, [name])
        parts[name]["weight"][0].view(torch.int32)[0] ^= 1
        pair.restore(pair.subject, parts)
        pair.compare()

    plant(soak, monkeypatch, change_one_bit)
    monkeypatch.setattr(soak, "MAX_FAILURES", 1)
    code, found = run(soak, log, tmp_path / "soak.json")
    assert code == 1
    assert "WrongRowsError: weight of table" in found["failures"][0]
    assert "differs in 1 rows" in found["failures"][0]
    assert "verdict: NO" in capsys.readouterr().out
