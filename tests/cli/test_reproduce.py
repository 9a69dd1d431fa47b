"""`hotrows reproduce` as a user calls it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotrows.reproduce import PAPERS, heca_runs
from hotrows.reproduce.bench import Bench
from tests.cli.test_main import call, last_line

SKEWED = "synthetic:criteo-kaggle?scale=0.0001&samples=20000"


def test_list_names_every_figure() -> None:
    shown = call("reproduce", "--list").stdout
    for paper in PAPERS.values():
        for experiment in paper.experiments:
            assert experiment.name in shown
    listed = last_line(call("reproduce", "heca", "--list", "--json"))
    assert list(listed) == ["heca"]


def test_a_figure_that_shows_what_it_must(tmp_path: Path) -> None:
    result = call("reproduce", "freqcache", "table1", "--out", tmp_path, "--json")
    assert "33,762,577" in result.stdout
    assert "yes: columns and embedding rows are the paper's" in result.stdout
    found = last_line(result)
    assert found["failed"] == []
    for ending in ("csv", "png", "json"):
        assert (tmp_path / "freqcache" / f"table1.{ending}").exists()


def test_a_figure_that_does_not_is_exit_code_1(tmp_path: Path) -> None:
    result = call("reproduce", "heca", "fig9", "--data", SKEWED, "--out", tmp_path, "--json", code=1)
    assert "NO: within a point of 26, 21, 17, 13%" in result.stdout
    assert last_line(result)["failed"] == ["fig9: within a point of 26, 21, 17, 13%"]
    assert json.loads((tmp_path / "heca" / "fig9.json").read_text())["claims"][0]["holds"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cdlrm",), "paper is 'cdlrm': known are freqcache, heca"),
        ((), "paper is None: known are"),
        (("heca", "fig2"), "heca has no 'fig2' to reproduce: known are fig1, fig6"),
        (("heca", "--scale", "huge"), "scale is 'huge': known are small, full"),
        (("heca", "--steps", "1"), "steps is 1, it must be 2 or more"),
        (("heca", "--precision", "tf32", "--device", "cpu"), "precision is 'tf32': allowed is fp32 on a CPU"),
        (("heca", "--precision", "fp8", "--device", "cpu"), "precision is 'fp8': allowed is fp32 on a CPU"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in call("reproduce", *arguments, "--out", tmp_path / "out", code=2).stderr
    assert not (tmp_path / "out").exists()


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(bench: Bench, shape: str) -> Any:
        raise KeyboardInterrupt

    original = Bench.counted
    calls: list[str] = []

    def counted(bench: Bench, shape: str) -> Any:
        calls.append(shape)
        return original(bench, shape) if len(calls) <= 2 else interrupted(bench, shape)

    monkeypatch.setattr(Bench, "counted", counted)
    result = call("reproduce", "freqcache", "table1", "fig2", "--out", tmp_path, "--json", code=130)
    assert last_line(result)["interrupted"] is True
    assert (tmp_path / "freqcache" / "table1.csv").exists()
    assert not (tmp_path / "freqcache" / "fig2.csv").exists()


def test_an_interrupt_keeps_the_passes_that_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(bench: Bench, strategy: str, size: int, cache: int, again: int) -> Any:
        if (strategy, size, again) == ("heca", 2048, 2):
            raise KeyboardInterrupt
        return SimpleNamespace(samples_per_second=1000.0 * (1 + again))

    monkeypatch.setattr(heca_runs, "train", train)
    result = call("reproduce", "heca", "fig11", "fig7", "--steps", 2, "--out", tmp_path, "--json", code=130)
    assert last_line(result)["interrupted"] is True
    assert "interrupted: 1 of 2 figures" in result.stderr
    assert "the best of 2 (3 passes were to be made)" in result.stdout
    rows = json.loads((tmp_path / "heca" / "fig11.json").read_text())["rows"]
    assert {row["samples"] for row in rows} == {2000.0}  # of the second pass, not of what the third has begun with
    assert not (tmp_path / "heca" / "fig7.json").exists()
