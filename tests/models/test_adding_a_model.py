"""The example of docs/adding-a-model.md runs, with the library and with the program."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hotrows.cli.main import app
from hotrows.models import MODELS

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_example_runs_and_learns() -> None:
    names: dict[str, Any] = {}
    try:
        exec("\n".join(blocks("python")), names)
    finally:
        MODELS.pop("mean-pooling", None)
    assert names["loss"].item() < 0.01


def test_the_program_trains_and_evaluates_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mean_pooling.py").write_text(blocks("python")[0])
    Path("run.toml").write_text(blocks("toml")[0])
    (commands,) = blocks("sh")
    try:
        for command in [*commands.splitlines(), "hotrows train run.toml --out again"]:
            result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"], catch_exceptions=False)
            assert result.exit_code == 0, result.output
    finally:
        MODELS.pop("mean-pooling", None)
        sys.modules.pop("mean_pooling", None)
    first, again = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("my-run", "again"))
    assert (again["model"], again["test"]) == ("mean_pooling:MeanPooling", first["test"])
    assert first["test"]["auc"] > 0.5
