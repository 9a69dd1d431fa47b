"""What a run has if nothing is said: rates by optimizer, a batch size by the size of the log, and what is kept."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hotrows.data.dataset import open_dataset
from hotrows.models import DLRM
from hotrows.train.config import RunConfig, with_defaults
from hotrows.train.run import evaluate_run, run
from hotrows.train.validation import Validation
from tests.train.test_run import DATA, train


def config(**content: Any) -> RunConfig:
    return RunConfig.from_dict({"data": DATA, **content}, "test")


@pytest.mark.parametrize(
    ("num_samples", "batch_size"),
    [(10**9, 2048), (1_024_000, 2048), (1_023_999, 1024), (96_000, 128), (400, 32), (1, 32)],
)
def test_the_batch_size_of_a_small_log(num_samples: int, batch_size: int) -> None:
    found = with_defaults(config(), num_samples).train
    assert found.batch_size == batch_size
    assert found.eval_every is not None
    assert 4 * found.eval_every * batch_size >= num_samples


def test_what_is_given_stays() -> None:
    given = {"optimizer": {"name": "sgd", "lr": 0.5}, "train": {"batch_size": 4096, "eval_every": 7}}
    found = with_defaults(config(**given), 1000)
    assert (found.optimizer.lr, found.train.batch_size, found.train.eval_every) == (0.5, 4096, 7)
    assert found.dense_optimizer.lr == 0.001


@pytest.mark.parametrize(("name", "lr"), [("sgd", 0.1), ("adagrad", 0.02), ("row-wise-adagrad", 0.02), ("adam", 0.001)])
def test_the_rate_is_that_of_the_optimizer(name: str, lr: float) -> None:
    assert with_defaults(config(optimizer={"name": name}), 1000).optimizer.lr == lr


def test_the_run_directory_has_the_numbers(tmp_path: Path) -> None:
    finished = run(
        config(model={"name": "dlrm:rmc2", "dim": 4}, out=str(tmp_path / "run"), device="cpu"), progress=False
    )
    found = json.loads((finished.directory / "config.json").read_text())
    assert found["train"]["batch_size"] >= 1
    assert found["optimizer"]["lr"] == 0.02
    assert found["model"]["init"] == "uniform(0.01)"
    lines = [json.loads(line) for line in (finished.directory / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if line["kind"] == "valid"]) == 4


def test_options_of_a_model(tmp_path: Path) -> None:
    options = {"bottom": [8, 4], "top": [16], "dropout": 0.1}
    finished = train(tmp_path / "run", model={"name": "dlrm", "dim": 4, **options})
    assert {key: finished_model(finished)[key] for key in options} == options
    assert evaluate_run(finished.directory)["test"]["auc"] == finished.summary["test"]["auc"]
    saved = torch.load(finished.directory / "model.pt")["model"]
    assert set(saved) == set(DLRM(13, 26, 4, bottom=(8, 4), top=(16,), dropout=0.1).state_dict())


def finished_model(finished: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((finished.directory / "config.json").read_text())["model"]
    return found


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"name": "dlrm", "num_cross": 3},
            r"\[model\]: unknown 'num_cross'; known are bottom, dim, dropout, init, name, top",
        ),
        ({"name": "dcn", "num_cross": 2.5}, "num_cross is 2.5, it must be a whole number"),
        ({"name": "dlrm", "top": 5}, r"top is 5, it must be a list of widths such as \[512, 256\]"),
        ({"name": "dlrm", "top": [0]}, "top: a width is 0"),
        ({"name": "dlrm", "dropout": "much"}, "dropout is 'much', it must be a number"),
        ({"name": "dlrm", "init": "zeros"}, r"init is 'zeros': give one of uniform"),
    ],
)
def test_options_that_are_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(model=model).check()


def aucs(*values: float) -> list[dict[str, float]]:
    return [{"auc": value, "logloss": 0.5} for value in values]


def test_training_ends_when_validation_gets_no_better() -> None:
    seen = Validation(patience=2)
    stops = []
    for step, result in enumerate(aucs(0.6, 0.7, 0.65, 0.71, 0.70, 0.70), start=1):
        seen.add(step, result)
        stops.append(seen.should_stop)
    assert stops == [False, False, False, False, False, True]
    assert (seen.best_step, seen.best) == (4, {"auc": 0.71, "logloss": 0.5})


def test_without_an_auc_the_log_loss_decides() -> None:
    seen = Validation(patience=1)
    assert seen.add(1, {"auc": float("nan"), "logloss": 0.5})
    assert seen.add(2, {"auc": float("nan"), "logloss": 0.4})
    assert not seen.add(3, {"auc": float("nan"), "logloss": 0.6})
    assert seen.should_stop


OVERFIT = {"epochs": 6, "eval_every": 2, "batch_size": 64}


def test_the_best_model_is_kept_and_tested(tmp_path: Path) -> None:
    """Its results are those of `hotrows evaluate`, and better on validation than those of the last model."""
    best = train(tmp_path / "best", train={**OVERFIT, "keep": "best"}, optimizer={"name": "adagrad", "lr": 0.3})
    last = train(tmp_path / "last", train=OVERFIT, optimizer={"name": "adagrad", "lr": 0.3})
    assert best.summary["kept_step"] < best.summary["steps"] == last.summary["steps"] == last.summary["kept_step"]
    assert best.summary["valid"]["auc"] > last.summary["valid"]["auc"]
    lines = [json.loads(line) for line in (best.directory / "metrics.jsonl").read_text().splitlines()]
    by_step = {line["step"]: line["auc"] for line in lines if line["kind"] == "valid"}
    assert max(by_step.values()) == by_step[best.summary["kept_step"]] == best.summary["valid"]["auc"]
    for split in ("valid", "test"):
        assert evaluate_run(best.directory, split=split)[split] == best.summary[split]


def test_early_stopping(tmp_path: Path) -> None:
    settings = {**OVERFIT, "keep": "best", "early_stopping": 3}
    found = train(tmp_path / "run", train=settings, optimizer={"name": "adagrad", "lr": 0.3}).summary
    assert found["steps"] == found["kept_step"] + 3 * OVERFIT["eval_every"]
    assert not found["interrupted"]


@pytest.mark.parametrize("settings", [{"keep": "best"}, {"early_stopping": 2}])
def test_no_validation_split(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset(DATA)
    monkeypatch.setattr(type(data), "num_samples", lambda self, split: 0 if split == "valid" else 100)
    with pytest.raises(ValueError, match=r"need a validation split, and synthetic:.* has none: prepare it"):
        train(tmp_path / "run", train=settings)


def test_the_best_model_without_saving() -> None:
    with pytest.raises(ValueError, match=r"train\.keep is 'best', which needs a saved model: set save = true"):
        config(train={"keep": "best"}, save=False).check()


def test_an_interrupt_leaves_the_best_model_with_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives as soon as the second evaluation is over, and what is said is that of the model on disk."""
    add = Validation.add

    def interrupting(self: Validation, step: int, result: dict[str, float]) -> bool:
        is_best = add(self, step, result)
        if step == 2 * OVERFIT["eval_every"]:
            signal.raise_signal(signal.SIGINT)
        return is_best

    monkeypatch.setattr(Validation, "add", interrupting)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored
    try:
        found = train(tmp_path / "run", train={**OVERFIT, "keep": "best"})
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.summary["interrupted"]
    assert evaluate_run(found.directory, split="valid")["valid"] == found.summary["valid"]
    lines = [json.loads(line) for line in (found.directory / "metrics.jsonl").read_text().splitlines()]
    by_step = {line["step"]: line["auc"] for line in lines if line["kind"] == "valid"}
    assert found.summary["valid"]["auc"] == max(by_step.values()) == by_step[found.summary["kept_step"]]
