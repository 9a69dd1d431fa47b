"""benchmarks/iteration.py at toy size: in Triton's interpreter, and on a GPU."""

import importlib
import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOY = "--scale 0.0003 --batch-sizes 2 --depth 1 --window 4 --iterations 1"


def test_it_times_iterations_with_a_full_cache(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    iteration = importlib.import_module("iteration")
    path = tmp_path / "iteration.json"
    assert iteration.main([*TOY.split(), "--device", device.type, "--json", str(path)]) == 0
    (found,) = json.loads(path.read_text())["results"]
    assert found["ms"] > 0
    assert 0 < found["misses"] < found["unique"] <= 2 * 26
