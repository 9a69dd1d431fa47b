"""Runs that are interrupted: what is on disk is a model of a whole step, or nothing under its final name."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotrows.train import save
from hotrows.train.config import RunConfig
from hotrows.train.run import Run, evaluate_run, run
from hotrows.train.trainer import Trainer
from tests.train.test_run import train


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def model_of(finished: Run) -> dict[str, torch.Tensor]:
    saved: dict[str, Any] = torch.load(finished.directory / save.MODEL_FILE, weights_only=True)
    return {**saved["model"], **saved["bags"]}


def interrupt_after(seconds: float, number: signal.Signals = signal.SIGINT) -> None:
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.mark.parametrize("seed", range(int(os.environ.get("HOTROWS_TRAIN_INTERRUPTS", "4"))))
def test_the_model_of_an_interrupted_run_is_that_of_its_last_step(tmp_path: Path, seed: int) -> None:
    """Interrupts at random moments while it trains: the run has as many steps as it says, and their model."""
    seconds = 0.15 + 0.6 * float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
    number = [signal.SIGINT, signal.SIGTERM][seed % 2]
    original = Trainer.train

    def interrupted(trainer: Trainer) -> Any:
        interrupt_after(seconds, number)
        try:
            return original(trainer)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    settings: dict[str, Any] = {"train": {"batch_size": 64, "epochs": 20}, "cache": {"size": "4%"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train", interrupted)
        found = train(tmp_path / "interrupted", **settings)
    assert found.summary["interrupted"]
    steps = found.summary["steps"]
    if steps:
        settings["train"]["max_steps"] = steps
        whole = train(tmp_path / "whole", **settings)
        expected = model_of(whole)
        assert all(torch.equal(values, expected[name]) for name, values in model_of(found).items())
    assert not list(found.directory.glob("*.part"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("a damaged shard")])
def test_the_model_is_on_disk_before_the_test_is_evaluated(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Trainer.evaluate

    def fails(trainer: Trainer, split: str, step: int) -> dict[str, float] | None:
        if split == "test":
            raise error
        return evaluate(trainer, split, step)

    monkeypatch.setattr(Trainer, "evaluate", fails)
    if error is KeyboardInterrupt:
        assert train(tmp_path / "run").summary["interrupted"]
    else:
        with pytest.raises(OSError, match="a damaged shard"):
            train(tmp_path / "run")
    monkeypatch.undo()
    assert evaluate_run(tmp_path / "run")["test"]["auc"] > 0.5


def test_a_full_disk_is_known_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(save.shutil, "disk_usage", lambda path: Usage)
    monkeypatch.setattr(Trainer, "train", lambda trainer: pytest.fail("it trained"))
    with pytest.raises(ValueError, match=r"the model takes .* and .* has 1.0 kB free: set save = false"):
        train(tmp_path / "run")


def test_a_file_that_could_not_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(content: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        train(tmp_path / "run")
    assert not (tmp_path / "run" / save.MODEL_FILE).exists()
    assert not list((tmp_path / "run").glob("*.part"))


def test_a_run_that_cannot_be_built_leaves_no_directory(tmp_path: Path) -> None:
    content = {"data": "synthetic:criteo-kaggle?scale=0.001&samples=100", "out": str(tmp_path / "run"),
               "model": {"name": "no-such-model"}}  # fmt: skip
    with pytest.raises(ValueError, match="no-such-model"):
        run(RunConfig.from_dict(content, "test"), progress=False)
    assert not (tmp_path / "run").exists()


def test_the_handler_of_sigterm_is_there_only_while_it_trains(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    train(tmp_path / "run", train={"max_steps": 2})
    assert signal.getsignal(signal.SIGTERM) is before
