"""The program as a user calls it."""

import json
import re
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import hotrows
from hotrows.cli.main import app
from hotrows.data.prepare.pipeline import KINDS
from hotrows.data.sample import write_criteo_log
from hotrows.data.schema import SPLITS
from hotrows.data.shapes import SHAPES
from hotrows.models import MODELS
from hotrows.optim import OPTIMIZERS
from hotrows.reproduce import PAPERS
from hotrows.strategies import STRATEGIES
from hotrows.train.config import PRECISIONS, RunConfig, read_run


def call(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "1000"})
    assert result.exit_code == code, result.output
    return result


def last_line(result: Result) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    write_criteo_log(directory / "log.txt", 4000, seed=1)
    call("prepare", "criteo", directory / "log.txt", "--out", directory / "data")
    return directory / "data"


TRAIN = ("--model", "dlrm:rmc2", "--dim", "4", "--batch-size", "128", "--device", "cpu", "--json")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_a_log_becomes_a_model_that_is_the_same_in_any_cache(data: Path, tmp_path: Path, optimizer: str) -> None:
    found = [
        last_line(
            call("train", "--data", data, "--cache", cache, "--optimizer", optimizer, "--lr", "0.05", "--out",
                 tmp_path / cache, *TRAIN)
        )
        for cache in ("100%", "5%")
    ]  # fmt: skip
    for key in ("steps", "train", "valid", "test"):
        assert found[0][key] == found[1][key]
    cache = found[1]["cache"]
    assert isinstance(cache, dict)
    assert set(cache) >= {"rows", "hit_rate", "bytes_in", "bytes_out"}
    again = last_line(call("evaluate", tmp_path / "5%", "--json"))
    assert again["test"] == found[1]["test"]


def test_a_run_file_and_options_over_it(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(f'data = "{data}"\ndevice = "cpu"\n[model]\nname = "deepfm"\ndim = 4\n[train]\nmax_steps = 3\n')
    summary = last_line(call("train", run, "--out", tmp_path / "out", "--max-steps", "2", "--trace", "--json"))
    assert (summary["model"], summary["steps"]) == ("deepfm", 2)
    assert (tmp_path / "out" / "trace.json").exists()


def test_profile_prints_and_writes(data: Path, tmp_path: Path) -> None:
    result = call("profile", data, "--batch-size", "128", "--hit-rate", "0.5", "--out", tmp_path, "--json")
    found = last_line(result)
    assert set(found) >= {"deduplication", "miss_ratio", "suggestion"}
    assert (tmp_path / "profile.png").stat().st_size > 1000
    assert json.loads((tmp_path / "profile.json").read_text()) == found


def test_the_program_and_the_library_prepare_with_the_same_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotrows.data import prepare as package

    log = tmp_path / "log.txt"
    log.touch()
    given: dict[str, Any] = {}

    def prepare(*arguments: Any, **options: Any) -> Any:
        given.update(options)
        raise ValueError("not today")

    expected = {
        name: parameter.default
        for name, parameter in signature(package.prepare).parameters.items()
        if parameter.default is not Parameter.empty and name != "progress"
    }
    monkeypatch.setattr(package, "prepare", prepare)
    call("prepare", "criteo", log, "--out", tmp_path / "out", code=2)
    assert {name: given[name] for name in expected} == expected


def test_doctor_shows_what_there_is() -> None:
    found = last_line(call("doctor", "--json"))
    assert found["uses"]
    assert "PyTorch" in call("doctor").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "data: name a prepared directory"),
        (("train", "--data", "nowhere", "--device", "cpu"), "nowhere"),
        (("train", "missing.toml"), "there is no such file"),
        (("evaluate", "nowhere"), "is not a run directory"),
        (("prepare", "criteo", "nowhere", "--out", "x"), "nowhere"),
        (("profile", "synthetic:nothing"), "nothing"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    result = call(*arguments, code=2)
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["prepare", "profile", "train", "evaluate", "doctor"])
def test_help_is_there(command: str) -> None:
    assert "--help" in call(command, "--help").stdout


DATA_SETS = [f"synthetic:{name}" for name in SHAPES]
CHOICES = {
    "prepare": {"kind": KINDS, "--split": ["time", "day", "random"], "--engine": ["duckdb", "spark"],
                "--on-error": ["stop", "skip"]},
    "profile": {"data": DATA_SETS},
    "train": {"--data": DATA_SETS, "--model": MODELS, "--strategy": STRATEGIES, "--policy": hotrows.POLICIES,
              "--optimizer": OPTIMIZERS, "--device": ["auto", "cpu", "cuda"]},
    "evaluate": {"--data": DATA_SETS, "--split": SPLITS},
    "reproduce": {"paper": PAPERS, "--scale": ["small", "full"], "--precision": PRECISIONS,
                  "--device": ["auto", "cpu", "cuda"],
                  "figures...": [each.name for paper in PAPERS.values() for each in paper.experiments]},
}  # fmt: skip


@pytest.mark.parametrize("command", CHOICES)
def test_the_help_lists_every_choice_of_an_option(command: str) -> None:
    lines = [line.strip("│* ") for line in call(command, "--help").stdout.splitlines()]
    for option, choices in CHOICES[command].items():
        (line,) = (line for line in lines if line.split(" ")[0] == option)
        words = set(re.findall(r"[^\s,.;()]+", line))
        assert {each.rstrip(":") for each in words} >= set(choices), line


def test_the_version() -> None:
    assert call("--version").stdout == f"hotrows {hotrows.__version__}\n"


def test_the_printed_configuration_is_a_run_file_of_the_same_run(data: Path, tmp_path: Path) -> None:
    given = ("--data", data, "--strategy", "heca", "--lr", "1e-7", "--out", tmp_path / 'a "b" \x7f é', *TRAIN[:-1])
    printed = call("train", *given, "--print-config").stdout
    assert "\n# weight_decay = (left out)\n" in printed
    assert "\n[heca]\n" in printed
    run = tmp_path / "run.toml"
    run.write_text(printed)
    config = read_run(run)
    assert (config.data, config.strategy, config.optimizer.lr) == (str(data), "heca", 1e-7)
    assert config.out == str(given[7])
    assert call("train", run, "--print-config").stdout == printed
    assert RunConfig.from_dict(last_line(call("train", run, "--print-config", "--json")), "printed") == config
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
    assert last_line(call("train", run, "--max-steps", "1", "--json"))["steps"] == 1


def test_a_configuration_that_cannot_run_is_not_printed() -> None:
    result = call("train", "--data", "synthetic:avazu", "--epochs", "0", "--print-config", code=2)
    assert "train.epochs is 0" in result.stderr
    assert not result.stdout


def test_names_with_brackets_are_printed_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("columns.toml").write_text('label = "y"\ncategorical = ["c[red]"]\n')
    Path("log[a].csv").write_text("y,c[red]\n" + "1,a\n0,b\n" * 10 + "1\n")
    given = ("table", "log[a].csv", "--config", "columns.toml", "--on-error", "skip")
    printed = call("prepare", *given, "--out", "data[/bold]").stdout
    assert "data[/bold] is ready" in printed
    assert "(first: log[a].csv, line 22)" in printed
    assert "  c[red]  " in call("prepare", *given, "--vocabulary", "data[/bold]", "--out", "more").stdout
    assert "c[red]" in call("profile", "more", "--batch-size", "4").stdout
    train = ("--device", "cpu", "--model", "deepfm", "--dim", "2", "--max-steps", "1", "--out", "run[b]")
    assert "run[b]/report.html" in call("train", "--data", "more", *train).stdout
