"""The trainer: loader → planner and mover → training step, with its metrics. Read it from `train` down."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hotrows.batch import Batch, Jagged
from hotrows.cache.stats import Stats
from hotrows.data.read_ahead import iterate_ahead_if_slow
from hotrows.data.schema import DataSet, Loader
from hotrows.dense.bce_loss import bce_loss
from hotrows.dense.optimizer_override import optimizer_override
from hotrows.graphs.capturable_optimizers import CannotCaptureError, make_capturable
from hotrows.graphs.training_step import graphed
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.strategies import Strategy
from hotrows.train.config import RunConfig, TrainConfig
from hotrows.train.metrics import ClickMetrics
from hotrows.train.schedule import make_schedules, num_changing
from hotrows.train.timeline import Timeline


class Observer(Protocol):
    """Is told how a run goes: progress bar, metrics file, TensorBoard."""

    def begin(self, num_steps: int) -> None: ...

    def trained(self, record: dict[str, Any]) -> None:
        """Every `log_every` steps: what happened since the last time."""

    def evaluated(self, record: dict[str, Any]) -> None: ...

    def end(self) -> None: ...


@dataclass
class Parts:
    """What is trained."""

    model: nn.Module
    bags: EmbeddingBagCollection
    dense_optimizer: torch.optim.Optimizer
    device: torch.device


@dataclass
class Outcome:
    """What came of it."""

    steps: int
    seconds: float
    samples: int
    loss: float  # mean over all steps
    valid: dict[str, float] | None
    test: dict[str, float] | None
    interrupted: bool

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0


class Trainer:
    """Trains a model on a data set.

    Args:
        observers: are told how it goes.
        timeline: takes the time of the stages.
    """

    def __init__(
        self,
        config: RunConfig,
        data: DataSet,
        parts: Parts,
        strategy: Strategy,
        observers: list[Observer],
        timeline: Timeline,
    ) -> None:
        self._config = config
        self._data = data
        self._parts = parts
        self._strategy = strategy
        self._observers = observers
        self._timeline = timeline
        self._log = _Log(parts, timeline)
        self.graphed = graphed(self._step, parts.bags) if config.train.graphs else None
        self._run_step: Callable[[Batch], Tensor] = self.graphed or optimizer_override()(self._step)

    def train(self) -> Outcome:
        """Train, evaluate, and leave every row in the store. Ctrl-C ends it early, with all that was trained."""
        config = self._config.train
        loader = self._data.loader("train", config.batch_size, shuffle=config.shuffle, seed=self._config.seed)
        num_steps = _num_steps(config, len(loader))
        schedules = make_schedules(self._config.schedule, self._optimizers(), num_steps)
        changing = num_changing(self._config.schedule, num_steps)
        self._compute_as_recorded()
        for observer in self._observers:
            observer.begin(num_steps)
        start, evaluating, step, interrupted = time.perf_counter(), 0.0, 0, False
        valid: dict[str, float] | None = None
        try:
            for batch, ends_epoch in self._epochs(loader, num_steps):
                with self._timeline.span("train", "train"):
                    loss = self._run_step(batch)
                    for schedule in schedules if step < changing else ():
                        schedule.step()
                step += 1
                self._log.add(loss, batch.label.shape[0])
                last = step == num_steps
                if step % config.log_every == 0 or last:
                    self._tell(self._log.flush(step, time.perf_counter() - start - evaluating))
                if last or (ends_epoch if config.eval_every is None else step % config.eval_every == 0):
                    began = time.perf_counter()
                    valid = self.evaluate("valid", step)
                    evaluating += time.perf_counter() - began
                if last:
                    break
        except KeyboardInterrupt:
            interrupted = True
        self._parts.bags.flush()
        seconds = time.perf_counter() - start - evaluating
        test = None if interrupted else self.evaluate("test", step)
        for observer in self._observers:
            observer.end()
        return Outcome(step, seconds, self._log.samples, self._log.mean_loss(), valid, test, interrupted)

    def evaluate(self, split: str, step: int) -> dict[str, float] | None:
        """AUC, log loss and accuracy on a split; None if it has no samples."""
        if self._data.num_samples(split) == 0:
            return None
        result = evaluate(self._parts, self._data.loader(split, self._config.train.eval_batch_size), self._precision())
        if result is not None:
            for observer in self._observers:
                observer.evaluated({"kind": split, "step": step, "samples": self._log.samples, **result})
        return result

    def _epochs(self, loader: Loader, num_steps: int) -> Iterator[tuple[Batch, bool]]:
        """Batches epoch by epoch, each with whether it is the last of its epoch."""
        for epoch in range(self._config.train.epochs):
            loader.set_epoch(epoch)
            self._parts.bags.train()
            loaded = self._timeline.timed(self._on_host(loader), "load", "load")
            planned = self._timeline.timed(self._strategy.batches(loaded, self._parts.bags), "plan", "plan")
            for number, batch in enumerate(planned, start=1):
                yield batch, number == len(loader)

    def _on_host(self, loader: Loader) -> Iterable[Batch]:
        """Batches as the strategy takes them: for a GPU pinned."""
        if self._parts.device.type != "cuda":
            return loader
        pinned = map(_pinned, loader)
        return pinned if self._strategy.loads_ahead else iterate_ahead_if_slow(pinned)

    def _step(self, batch: Batch) -> Tensor:
        parts = self._parts
        parts.model.train()
        parts.bags.train()
        dense, label = (part.to(parts.device, non_blocking=True) for part in (batch.dense, batch.label))
        with self._timeline.span("forward"):
            embedded = embed(parts, batch.ids)
            with self._precision():
                logits = parts.model(dense, embedded)
            loss = bce_loss(logits, label)
        parts.dense_optimizer.zero_grad(set_to_none=True)
        with self._timeline.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        parts.dense_optimizer.step()
        return loss.detach()

    def _precision(self) -> AbstractContextManager[object]:
        if self._config.train.precision == "bf16":
            return torch.autocast(self._parts.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def _compute_as_recorded(self) -> None:
        """Step the dense part as a recording does from the first step on, and where nothing is recorded too.

        Implementations of an optimizer differ in the last bits, strategies must not.
        """
        if self._parts.device.type == "cuda":
            with suppress(CannotCaptureError):
                make_capturable(self._parts.dense_optimizer)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        rows = self._parts.bags.optimizer
        assert rows is not None
        return [self._parts.dense_optimizer, rows]

    def _tell(self, record: dict[str, Any]) -> None:
        record["lr"] = float(self._parts.dense_optimizer.param_groups[0]["lr"])
        for observer in self._observers:
            observer.trained(record)


def embed(parts: Parts, ids: Tensor | Jagged) -> Tensor | tuple[Tensor, ...]:
    """Pooled rows where the model is, which need not be where the rows are; gradients go back the same way."""
    pooled: Tensor | tuple[Tensor, ...] = parts.bags(ids)
    if isinstance(pooled, tuple):
        return tuple(part.to(parts.device) for part in pooled)
    return pooled.to(parts.device)


def evaluate(parts: Parts, loader: Loader, precision: AbstractContextManager[object]) -> dict[str, float] | None:
    """Metrics over all batches of a loader; changes nothing."""
    metrics = ClickMetrics()
    was_training = parts.bags.training
    parts.model.eval()
    parts.bags.eval()
    try:
        with torch.no_grad(), precision:
            for batch in loader:
                metrics.add(parts.model(batch.dense.to(parts.device), embed(parts, batch.ids)), batch.label)
    finally:
        parts.bags.train(was_training)
    return metrics.result()


def _pinned(batch: Batch) -> Batch:
    """In memory that a GPU can copy from while the host goes on."""
    if not isinstance(batch.ids, Tensor):
        return batch
    return Batch(batch.dense.pin_memory(), batch.ids.pin_memory(), batch.label.pin_memory())


class _Log:
    """Sums over the steps since the last record. Losses stay on the device until a record is made."""

    def __init__(self, parts: Parts, timeline: Timeline) -> None:
        self._parts = parts
        self._timeline = timeline
        self._losses: list[Tensor] = []
        self._means: list[tuple[float, int]] = []
        self._stats = Stats()
        self._seconds = 0.0
        self._stages = dict(timeline.seconds)
        self._since = 0
        self.samples = 0

    def add(self, loss: Tensor, num_samples: int) -> None:
        self._losses.append(loss)
        self._since += num_samples
        self.samples += num_samples

    def flush(self, step: int, seconds: float) -> dict[str, Any]:
        num = len(self._losses)
        loss = float(torch.stack(self._losses).mean())
        self._means.append((loss, num))
        stats = self._parts.bags.stats()
        before = self._stats
        unique = stats.unique - before.unique
        stages = {name: 1000 * (now - self._stages[name]) / num for name, now in self._timeline.seconds.items()}
        # waiting happens while the step asks for rows
        stages["wait"] = 1000 * (stats.stall_seconds - before.stall_seconds) / num
        stages["train"] = max(0.0, stages["train"] - stages["wait"])
        record = {
            "kind": "train",
            "step": step,
            "samples": self.samples,
            "seconds": seconds,
            "loss": loss,
            "samples_per_second": self._since / max(seconds - self._seconds, 1e-9),
            "hit_rate": (stats.hits - before.hits) / unique if unique else stats.hit_rate,
            "lookups": stats.lookups - before.lookups,
            "unique": unique,
            "misses": stats.misses - before.misses,
            "stalls": stats.stalls - before.stalls,
            "bytes_in": stats.bytes_in - before.bytes_in,
            "bytes_out": stats.bytes_out - before.bytes_out,
            "stages": stages,
        }
        self._losses.clear()
        self._stats = stats + Stats()
        self._stages = dict(self._timeline.seconds)
        self._seconds = seconds
        self._since = 0
        return record

    def mean_loss(self) -> float:
        """Over all steps that were trained."""
        pending = [(float(torch.stack(self._losses).mean()), len(self._losses))] if self._losses else []
        total = sum(num for _, num in self._means + pending)
        return sum(loss * num for loss, num in self._means + pending) / total if total else float("nan")


def _num_steps(config: TrainConfig, per_epoch: int) -> int:
    steps = config.epochs * per_epoch
    return steps if config.max_steps is None else min(steps, config.max_steps)


MakeOptimizer = Callable[..., torch.optim.Optimizer]
DENSE: dict[str, MakeOptimizer] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
