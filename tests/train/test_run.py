"""Whole runs on synthetic data: the same result in any cache, and the files of a run."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich import console

from hotrows.batch import Batch
from hotrows.models import MODELS
from hotrows.strategies import STRATEGIES
from hotrows.train import trainer
from hotrows.train.config import RunConfig
from hotrows.train.observers import ProgressBar
from hotrows.train.run import Run, evaluate_run, run
from hotrows.train.trainer import Parts, pinned

DATA = "synthetic:criteo-kaggle?scale=0.001&samples=6000&seed=3"


def train(out: Path, trace: bool = False, **changes: Any) -> Run:
    content: dict[str, Any] = {
        "data": DATA,
        "out": str(out),
        "device": "cpu",
        "model": {"name": "dlrm:rmc2", "dim": 4},
        "optimizer": {"name": "adagrad", "lr": 0.05},
        "dense_optimizer": {"name": "adam", "lr": 0.003},
        "train": {"batch_size": 256, "log_every": 5},
    }
    for key, value in changes.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    return run(RunConfig.from_dict(content, "test"), trace=trace, progress=False)


def measured(finished: Run) -> dict[str, Any]:
    return {key: finished.summary[key] for key in ("steps", "train", "valid", "test")}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "row-wise-adagrad", "adam"])
def test_the_same_in_every_digit_whatever_the_cache(tmp_path: Path, optimizer: str, device: torch.device) -> None:
    changes: dict[str, Any] = {"optimizer": {"name": optimizer, "lr": 0.05}, "device": device.type}
    whole = train(tmp_path / "whole", strategy="device", **changes)
    for size in ("100%", "5%", 2000):
        cached = train(tmp_path / f"cached{size}", cache={"size": size}, **changes)
        assert measured(cached) == measured(whole)


@pytest.mark.parametrize("dense", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"device", "host"}))
def test_every_strategy_with_a_cache_gives_the_same(
    tmp_path: Path, strategy: str, dense: str, device: torch.device
) -> None:
    """On a GPU, the steps of some strategies are replayed from graphs and those of others are not.

    `host` is left out, because on a GPU machine its rows are updated by another processor.
    """
    changes: dict[str, Any] = {"dense_optimizer": {"name": dense, "lr": 0.01}, "device": device.type}
    whole = train(tmp_path / "whole", strategy="device", **changes)
    cached = train(tmp_path / "cached", strategy=strategy, cache={"size": "5%"}, **changes)
    assert measured(cached) == measured(whole)
    assert cached.summary["cache"]["evictions"] > 0
    assert evaluate_run(cached.directory)["test"] == cached.summary["test"]


@pytest.mark.parametrize("model", sorted(set(MODELS) - {name for name in MODELS if name.startswith("dlrm:")}))
def test_every_model_trains_and_is_the_same_in_a_cache(tmp_path: Path, model: str, device: torch.device) -> None:
    changes: dict[str, Any] = {"model": {"name": model, "dim": 4}, "data": DATA.replace("6000", "12000")}
    changes["device"] = device.type
    whole = train(tmp_path / "whole", strategy="device", **changes)
    assert measured(train(tmp_path / "cached", cache={"size": "10%"}, **changes)) == measured(whole)
    assert whole.summary["test"]["auc"] > 0.55


def test_the_files_of_a_run(tmp_path: Path) -> None:
    finished = train(tmp_path / "run", trace=True, train={"eval_every": 10})
    directory = finished.directory
    names = {path.name for path in directory.iterdir()}
    assert names >= {
        "config.json", "environment.json", "metrics.jsonl", "summary.json", "cache.json", "report.html", "trace.json",
        "tensorboard", "model.pt",
    }  # fmt: skip
    assert json.loads((directory / "summary.json").read_text()) == finished.summary
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    assert trained[-1]["step"] == finished.summary["steps"]
    assert sum(line["bytes_in"] for line in trained) <= finished.summary["cache"]["bytes_in"]
    assert set(trained[0]["stages"]) == {"load", "plan", "wait", "train"}
    assert [line["step"] for line in lines if line["kind"] == "valid"][:2] == [10, 20]
    cache = json.loads((directory / "cache.json").read_text())
    assert cache["used"] == sum(table["cached"] for table in cache["tables"]) <= cache["slots"]
    events = json.loads((directory / "trace.json").read_text())["traceEvents"]
    spans = {event["name"] for event in events if event["ph"] == "X"}
    assert spans >= {"load", "plan", "train", "forward", "backward", "move"}
    assert len({event["tid"] for event in events}) >= 2


def test_a_run_can_be_evaluated_again(tmp_path: Path) -> None:
    finished = train(tmp_path / "run", optimizer={"name": "adam"})
    assert evaluate_run(finished.directory)["test"] == finished.summary["test"]
    valid = evaluate_run(finished.directory, split="valid")
    assert valid["valid"] == finished.summary["valid"]
    with pytest.raises(ValueError, match="is not a run directory"):
        evaluate_run(tmp_path)


def test_a_run_is_evaluated_in_its_own_precision(tmp_path: Path) -> None:
    directory = train(tmp_path / "run").directory
    config = json.loads((directory / "config.json").read_text())
    in_fp32 = evaluate_run(directory)["test"]
    config["train"]["precision"] = "bf16"  # training in bf16 needs a GPU, evaluating does not
    (directory / "config.json").write_text(json.dumps(config))
    in_bf16 = evaluate_run(directory)["test"]
    assert in_bf16["logloss"] != in_fp32["logloss"]
    assert in_bf16["logloss"] == pytest.approx(in_fp32["logloss"], rel=0.01)


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"train": {"shuffle": True, "epochs": 2}}
    first, second = train(tmp_path / "a", **changes), train(tmp_path / "b", **changes)
    other = train(tmp_path / "c", seed=1, **changes)
    assert measured(first) == measured(second)
    assert measured(first) != measured(other)
    assert first.summary["steps"] == 2 * train(tmp_path / "d").summary["steps"]


def test_ctrl_c_ends_cleanly_with_everything_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotrows.train.trainer import Trainer

    step = Trainer._step
    done = []

    def interrupted(self: Trainer, batch: Any) -> Any:
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(batch)
        return step(self, batch)

    monkeypatch.setattr(Trainer, "_step", interrupted)
    finished = train(tmp_path / "run")
    assert finished.summary["interrupted"]
    assert finished.summary["steps"] == 7
    assert (finished.directory / "report.html").exists()
    monkeypatch.setattr(Trainer, "_step", step)
    shorter = train(tmp_path / "shorter", train={"max_steps": 7})
    assert evaluate_run(finished.directory)["test"] == shorter.summary["test"]


def test_an_error_in_training_ends_the_observers_and_the_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotrows.graphs.training_step import GraphedStep
    from hotrows.train.observers import MetricsFile
    from hotrows.train.trainer import Trainer

    ended: list[str] = []
    monkeypatch.setattr(GraphedStep, "close", lambda _: ended.append("graphs"))
    monkeypatch.setattr(MetricsFile, "end", lambda _: ended.append("observers"))
    train(tmp_path / "whole")
    assert ended == ["graphs", "observers"]

    def failing(self: Trainer, batch: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Trainer, "_step", failing)
    with pytest.raises(RuntimeError, match="out of order"):
        train(tmp_path / "failing")
    assert ended == ["graphs", "observers"] * 2


def test_batches_that_are_on_the_device_are_not_pinned() -> None:
    """Only host memory can be pinned. `synthetic:…&device=cuda` makes batches on the GPU."""
    on_device = Batch(*(torch.empty(3, 2, device="meta", dtype=dtype) for dtype in (None, torch.int64, None)))
    assert pinned(on_device) is on_device


@pytest.mark.gpu
def test_data_that_is_made_on_the_gpu(tmp_path: Path) -> None:
    on_gpu = train(tmp_path / "gpu", data=f"{DATA}&device=cuda", device="cuda")
    on_cpu = train(tmp_path / "cpu", device="cuda")
    assert measured(on_gpu) == measured(on_cpu)


def test_learning_rates_follow_the_schedule(tmp_path: Path) -> None:
    finished = train(tmp_path / "run", schedule={"warmup_steps": 5, "decay": "cosine"}, train={"log_every": 1})
    lines = [json.loads(line) for line in (finished.directory / "metrics.jsonl").read_text().splitlines()]
    records = [line for line in lines if line["kind"] == "train"]
    for name, peak in (("lr", 0.05), ("dense_lr", 0.003)):
        rates = [line[name] for line in records]
        assert rates[0] < rates[3] > rates[-1]
        assert max(rates) == pytest.approx(peak)


def test_stalls_of_evaluations_are_not_those_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = trainer.evaluate

    def stalling(parts: Parts, *arguments: Any) -> Any:
        parts.bags.caches[0].stats.stalls += 1000
        return evaluate(parts, *arguments)

    monkeypatch.setattr(trainer, "evaluate", stalling)
    finished = train(tmp_path / "run", train={"eval_every": 5, "log_every": 3}, cache={"size": "5%"})
    lines = [json.loads(line) for line in (finished.directory / "metrics.jsonl").read_text().splitlines()]
    assert max(line["stalls"] for line in lines if line["kind"] == "train") < 1000
    assert finished.summary["cache"]["stalls"] < 1000


@pytest.mark.parametrize(
    ("strategy", "policy"), [("lookahead", "lookahead"), ("freqcache", "frequency"), ("device", None)]
)
def test_the_summary_names_the_policy_that_ran(strategy: str, policy: str | None, tmp_path: Path) -> None:
    finished = train(tmp_path / "run", strategy=strategy)
    assert finished.summary["cache"]["policy"] == policy
    report = (finished.directory / "report.html").read_text()
    assert (f">{policy}<" in report) or policy is None


def test_a_cache_that_is_too_small_is_named_once_with_the_size_that_would_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "small", cache={"size": 500, "depth": 2})
    (said,) = [record.getMessage() for record in caplog.records if "do not fit the cache" in record.getMessage()]
    found = re.fullmatch(
        r"batches do not fit the cache of 500 rows: one looks up about ([\d,]+) different rows with a margin, so "
        r"[\d,]+ rows of the last 5 steps went through an overflow buffer, which is slow and exact. Give --cache (\d+) "
        r"for a batch and the 2 after it, or a smaller --batch-size", said,
    )  # fmt: skip
    assert found is not None
    assert int(found[2]) == 3 * int(found[1].replace(",", "")) > 500
    caplog.clear()
    wide = train(tmp_path / "wide", cache={"size": int(found[2]), "depth": 2})
    assert wide.summary["cache"]["overflow"] == 0
    assert not [record for record in caplog.records if "do not fit" in record.getMessage()]


def test_the_progress_line_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    narrow = console.Console(file=shown, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "Console", lambda **arguments: narrow)
    bar = ProgressBar()
    bar.begin(123_456)
    bar.trained({
        "step": 23_456, "stalls": 12_345, "samples_per_second": 1_234_567.0, "loss": 0.4567, "hit_rate": 0.999,
    })  # fmt: skip
    bar.end()
    text = shown.getvalue()
    assert "23456/123456 1,234.6k/s loss 0.4567 hits 99.9% stalls 12345 " in text
    assert "…" not in text


def test_bad_runs_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="exists and is not empty"):
        train(tmp_path / "full")
    for changes, message in [
        ({"strategy": "magic"}, "strategy is 'magic': known are lookahead, freqcache, heca"),
        ({"data": "synthetic:nothing"}, "nothing"),
        ({"train": {"precision": "bf16"}}, "precision is 'bf16', which is for CUDA"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(tmp_path / "bad", **changes)  # type: ignore[arg-type]
        assert not (tmp_path / "bad").exists()
