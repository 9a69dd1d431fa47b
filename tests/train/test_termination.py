"""Runs that are interrupted: what is on disk is a model of a whole step, or nothing under its final name."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hotrows.data.dataset import open_dataset
from hotrows.strategies import DataKnowledge
from hotrows.train import save
from hotrows.train.config import RunConfig
from hotrows.train.run import build, evaluate_run, run, strategy_of
from hotrows.train.timeline import Timeline
from hotrows.train.trainer import Parts, Trainer
from tests.train.forked_program import Programs
from tests.train.test_run import train


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs() as started:
        yield started


RUN = """
data = "synthetic:criteo-kaggle?scale=0.0002&samples=1500&seed=3"
device = "cpu"
cache.size = "4%"
model = {name = "dlrm:rmc2", dim = 4}
optimizer = {name = "adagrad", lr = 0.05}
dense_optimizer = {name = "adam", lr = 0.003}
train = {batch_size = 128, epochs = 2, eval_every = 4, log_every = 5}
"""
Model = dict[str, torch.Tensor]


class Recorder:
    """An observer that keeps the model after every step, rows and dense part."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.models: list[Model] = []
        self.losses: list[float] = []

    def keep(self) -> None:
        state = {**self._parts.model.state_dict(), **self._parts.bags.state_dict()}
        self.models.append({name: values.clone() for name, values in state.items()})

    def begin(self, num_steps: int) -> None:
        self.keep()

    def trained(self, record: dict[str, Any]) -> None:
        self.losses.append(record["loss"])
        self.keep()

    def evaluated(self, record: dict[str, Any]) -> None:
        pass

    def end(self) -> None:
        pass


@cache
def recorded() -> Recorder:
    """The run of `RUN`, with all rows on the device and on one thread as in `programs`."""
    config = RunConfig.from_dict(tomllib.loads(RUN), "test")
    config.strategy, config.train.log_every = "device", 1
    data, threads = open_dataset(config.data), torch.get_num_threads()
    torch.set_num_threads(1)
    strategy = strategy_of(config, DataKnowledge(data))
    parts = build(config, data.schema, torch.device("cpu"), strategy)
    recorder = Recorder(parts)
    Trainer(config, data, parts, strategy, [recorder], Timeline()).train()
    torch.set_num_threads(threads)
    return recorder


def model_of(directory: Path) -> Model:
    saved: dict[str, Any] = torch.load(directory / save.MODEL_FILE, weights_only=True)
    return {**saved["model"], **saved["bags"]}


def step_of(found: Model) -> int | None:
    """The number of steps after which a run has this model."""
    for step, expected in enumerate(recorded().models):
        if found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found):
            return step
    return None


SIGNALS = {
    "SIGINT": [signal.SIGINT],
    "SIGTERM": [signal.SIGTERM],
    "SIGINT twice": [signal.SIGINT, signal.SIGINT],
    "SIGINT, then SIGTERM": [signal.SIGINT, signal.SIGTERM],
}
NUM_INTERRUPTS = int(os.environ.get("HOTROWS_TRAIN_INTERRUPTS", "8"))


@pytest.mark.parametrize("kind", sorted(SIGNALS))
def test_what_an_interrupted_run_leaves_is_of_a_whole_step(
    kind: str, programs: Programs, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Signals from another process at random moments of `hotrows train`: building, training, evaluating and saving.

    What is left is nothing, or a directory with a model whose rows and dense part are those of one step, and with
    results that belong to it.
    """
    (tmp_path / "run.toml").write_text(RUN)
    seconds = min(programs.run("train", "run.toml", "--out", f"whole{n}", cwd=tmp_path).seconds for n in range(2))
    assert step_of(model_of(tmp_path / "whole0")) == len(recorded().losses) == 22
    random, outcomes, out = torch.Generator().manual_seed(len(kind)), Counter[str](), tmp_path / "out"
    for number in range(-(-NUM_INTERRUPTS // len(SIGNALS))):
        moment = 1.05 * seconds * float(torch.rand((), generator=random))
        pause = 0.03 * float(torch.rand((), generator=random))
        first, *second = SIGNALS[kind]
        ended = programs.run(
            "train", "run.toml", "--out", out, cwd=tmp_path, signals=((moment, first), *((pause, s) for s in second))
        )
        where = f"{kind} number {number} after {moment:.4f} s, and {pause:.4f} s: code {ended.code}, {ended.output}"
        assert "Traceback" not in ended.output, where
        assert ended.code in ((0, 130, -signal.SIGTERM) if signal.SIGTERM in SIGNALS[kind] else (0, 130)), where
        assert not list(tmp_path.rglob("*.part")), where
        if ended.code == 0:
            outcomes["after the end"] += 1
        elif not out.exists():
            outcomes["before the first step: nothing is left"] += 1
        elif (out / save.MODEL_FILE).exists():
            step = step_of(model_of(out))
            assert step is not None, f"{where}: the model is of no step"
            outcomes["with the model of a step"] += 1
            if (out / "summary.json").exists():
                check_summary(json.loads((out / "summary.json").read_text()), step, where)
            else:
                outcomes["with that model, and without a summary"] += 1
        else:
            assert second, f"{where}: {sorted(path.name for path in out.iterdir())}"
            outcomes["twice, and without a model"] += 1
        shutil.rmtree(out, ignore_errors=True)
    record_property("count", f"{kind} at random moments of hotrows train: {dict(outcomes)}, 0 models of no step")
    print(f"{kind} at random moments of hotrows train: {dict(outcomes)}, 0 models of no step")


def check_summary(summary: dict[str, Any], step: int, where: str) -> None:
    assert summary["steps"] == step, where
    assert summary["interrupted"] or step == 22, where
    if step:
        assert summary["train"]["loss"] == pytest.approx(sum(recorded().losses[:step]) / step, rel=1e-5), where


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_program_starts_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """In a process just started, which imports PyTorch when the signal comes."""
    (tmp_path / "run.toml").write_text(RUN)
    program = [sys.executable, "-c", "from hotrows.cli.main import app; print('started', flush=True); app()"]
    started = subprocess.Popen(
        [*program, "train", "run.toml", "--out", "out"], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )  # fmt: skip
    assert started.stdout is not None
    started.stdout.readline()
    time.sleep(0.3)
    started.send_signal(number)
    _, messages = started.communicate(timeout=60)
    assert started.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert "Traceback" not in messages
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("failing", ["valid", "test"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("a damaged shard")])
def test_the_model_is_on_disk_before_it_is_evaluated(
    tmp_path: Path, error: BaseException, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Trainer.evaluate

    def fails(trainer: Trainer, split: str, step: int) -> dict[str, float] | None:
        if split == failing:
            raise error
        return evaluate(trainer, split, step)

    monkeypatch.setattr(Trainer, "evaluate", fails)
    settings = {"train": {"eval_every": 1000}}  # a single evaluation on the validation split, the last one
    if error is KeyboardInterrupt:
        assert train(tmp_path / "run", **settings).summary["interrupted"]
    else:
        with pytest.raises(OSError, match="a damaged shard"):
            train(tmp_path / "run", **settings)
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


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_an_interrupt_in_a_finalizer_ends_the_run(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Python prints an exception of a finalizer and goes on, so the run has to send the signal to itself again.

    It must not do so before Python has left the hook for such exceptions, however long that takes.
    """
    run_step = Trainer._step

    class SlowStart(threading.Thread):
        def start(self) -> None:
            super().start()
            time.sleep(seconds)

    monkeypatch.setattr("hotrows.train.termination.threading.Thread", SlowStart)

    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def step(trainer: Trainer, batch: Any) -> torch.Tensor:
        if trainer._log.samples == 0:
            Collected()
        time.sleep(0.01)  # the signal comes back from another thread
        return run_step(trainer, batch)

    monkeypatch.setattr(Trainer, "_step", step)
    monkeypatch.setattr("hotrows.train.trainer.defer_sigint", contextlib.nullcontext)
    finished = train(tmp_path / "run")
    assert finished.summary["interrupted"]
    assert "Traceback" not in capfd.readouterr().err
