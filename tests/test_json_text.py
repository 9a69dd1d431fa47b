"""JSON that every reader takes: no bare NaN or Infinity, wherever a number came from."""

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotrows.json_text import json_text

ROOT = Path(__file__).parents[1]
WRITE_TOML = {"src/hotrows/cli/toml_text.py", "benchmarks/soak.py"}  # text and numbers of a run file


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_that_are_not_finite_become_null(bad: float) -> None:
    text = json_text({"a": [1.5, bad, {"b": (bad, 2)}], "c": bad, "d": "NaN"})
    assert json.loads(text, parse_constant=refuse) == {"a": [1.5, None, {"b": [None, 2]}], "c": None, "d": "NaN"}


def test_all_json_of_the_package_and_the_benchmarks_is_written_by_it() -> None:
    calls = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("dump", "dumps")
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
    }
    assert "src/hotrows/json_text.py" in calls
    others = calls - {"src/hotrows/json_text.py"} - WRITE_TOML
    assert not others, f"use hotrows.json_text in place of json.dumps in {others}"
