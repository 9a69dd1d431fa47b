"""`hotrows reproduce` as a user calls it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotrows.reproduce import PAPERS, heca_batches, heca_runs
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
    ("arguments", "message"),
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
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in call("reproduce", *arguments, "--out", tmp_path / "out", code=2).stderr
    assert not (tmp_path / "out").exists()


def test_speeds_on_a_cpu_are_printed_and_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any of these speeds can be measured: a larger cache seems slower, and the host faster."""

    def train(bench: Bench, strategy: str, size: int, cache: int = 80_000, attempt: int = 0) -> Any:
        stages = {"loader": 1.0, "collector": 1.0, "trainer": 1.0, "wall": 9.0}
        speed = 1e9 / cache if strategy == "heca" else 1e6
        return SimpleNamespace(samples_per_second=speed, summary={"strategy_outcome": {"stages_ms": stages}})

    monkeypatch.setattr(heca_runs, "train", train)
    monkeypatch.setattr(heca_batches, "train", train)
    result = call("reproduce", "heca", "fig7", "fig10", "fig11", "--device", "cpu", "--steps", 2, "--out", tmp_path)
    claims = [
        claim
        for name in ("fig7", "fig10", "fig11")
        for claim in json.loads((tmp_path / "heca" / f"{name}.json").read_text())["claims"]
    ]
    assert [claim["verdict"] for claim in claims] == ["not judged"] * 4
    assert "speeds on a CPU are not judged" in result.stdout


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(bench: Bench, shape: str) -> Any:
        raise KeyboardInterrupt

    original = Bench.counting_data
    calls: list[str] = []

    def counted(bench: Bench, shape: str) -> Any:
        calls.append(shape)
        return original(bench, shape) if len(calls) <= 2 else interrupted(bench, shape)

    monkeypatch.setattr(Bench, "counting_data", counted)
    result = call("reproduce", "freqcache", "table1", "fig2", "--out", tmp_path, "--json", code=130)
    assert last_line(result)["interrupted"] is True
    assert (tmp_path / "freqcache" / "table1.csv").exists()
    assert not (tmp_path / "freqcache" / "fig2.csv").exists()


def test_an_interrupt_keeps_the_passes_that_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(bench: Bench, strategy: str, size: int, cache: int, attempt: int) -> Any:
        if (strategy, size, attempt) == ("heca", 2048, 2):
            raise KeyboardInterrupt
        return SimpleNamespace(samples_per_second=1000.0 * (1 + attempt))

    monkeypatch.setattr(heca_runs, "train", train)
    result = call("reproduce", "heca", "fig11", "fig7", "--steps", 2, "--out", tmp_path, "--json", code=130)
    assert last_line(result)["interrupted"] is True
    assert "interrupted: 1 of 2 figures" in result.stderr
    assert "the best of 2 (3 passes were to be made)" in result.stdout
    rows = json.loads((tmp_path / "heca" / "fig11.json").read_text())["rows"]
    assert {row["samples"] for row in rows} == {2000.0}  # the second pass is complete, the third is not
    assert not (tmp_path / "heca" / "fig7.json").exists()
