"""The trainer: loader → strategy → training step, with its metrics. Read it from `train` down."""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hotrows.batch import Batch, Jagged
from hotrows.data.read_ahead import iterate_ahead_if_slow
from hotrows.data.schema import DataSet, Loader
from hotrows.dense.bce_loss import bce_loss
from hotrows.dense.optimizer_override import OptimizerOverride
from hotrows.graphs.capturable_optimizers import CannotCaptureError, make_capturable
from hotrows.graphs.training_step import graphed
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.strategies import Strategy
from hotrows.train.config import RunConfig, TrainConfig
from hotrows.train.diagnosis import failed_evaluation, failed_training
from hotrows.train.loss_check import BadStep, BatchPosition, LossCheck, TrainedStep
from hotrows.train.metrics import ClickMetrics
from hotrows.train.precision import computing_in
from hotrows.train.schedule import make_schedules, num_changing
from hotrows.train.step_log import StepLog
from hotrows.train.timeline import Timeline
from hotrows.train.validation import Validation

logger = logging.getLogger("hotrows")

ROOM = 1.2  # batches differ in how many different rows they look up


class Observer(Protocol):
    """Shows or records a training while it runs: a progress bar, a metrics file, TensorBoard."""

    def begin(self, num_steps: int) -> None:
        """Called before the first step, with the number of steps."""

    def trained(self, record: dict[str, Any]) -> None:
        """Called every `log_every` steps, with a record of the steps since the last call."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Called after every evaluation."""

    def end(self) -> None:
        """Called once after training and the final evaluation, also if one of them raised."""


@dataclass
class Parts:
    """The parts of a training: the model, its embedding bags, and the optimizer of the dense part."""

    model: nn.Module
    bags: EmbeddingBagCollection
    dense_optimizer: torch.optim.Optimizer
    device: torch.device


@dataclass
class Outcome:
    """The result of a training."""

    steps: int
    seconds: float
    samples: int
    loss: float  # the mean over all steps
    valid: dict[str, float] | None
    test: dict[str, float] | None
    interrupted: bool
    kept_step: int  # the step of the model that is kept, and whose results these are
    stalls: int  # of training, without evaluations

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0


class Trainer:
    """Trains a model on a data set.

    Args:
        strategy: has built `parts.bags`; it decides how batches are read and is called after every evaluation.
        observers: are called while training goes on.
        timeline: measures the time of the stages.

    Attributes:
        after_training: called when every row is back in the store, before the trained model is evaluated. Whatever
            happens in that evaluation, what was trained can be on disk by then. If the best model is kept, it is called
            instead after each evaluation on the validation split that is the best so far.
        restore: called before the test if the best model is kept and is not the last one. It must bring back what the
            last call of `after_training` found.
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
        self._log = StepLog(parts.bags, timeline)
        self._losses = LossCheck(parts.device, list(parts.model.parameters()))
        self._validation = Validation(config.train.early_stopping)
        self.after_training: Callable[[], None] = lambda: None
        self.restore: Callable[[], None] = lambda: None
        self._kept_at = 0.0  # when training has ended; 0 before
        self._has_warned_of_size = False
        self._validated_at = 0  # the step of the last evaluation on the validation split; 0 before
        # Every step is computed by the same kernels, also if the training step is not captured.
        step = OptimizerOverride(parts.dense_optimizer)(self._step)
        self.graphed = graphed(step, parts.bags, dense_kernels=False) if config.train.graphs else None
        self._run_step: Callable[[Batch], tuple[Tensor, Tensor]] = self.graphed or step

    def train(self) -> Outcome:
        """Train, evaluate, and write every row back to the store. Ctrl-C ends training early and keeps its result.

        Raises:
            NotFiniteError: the loss of a step or a prediction in an evaluation is NaN or infinite.
        """
        try:
            return self._train()
        finally:
            if self.graphed is not None:
                self.graphed.close()
            for observer in self._observers:
                observer.end()

    def _train(self) -> Outcome:
        config = self._config.train
        assert config.batch_size is not None, "a run is given to a trainer with numbers for all its defaults"
        loader = self._strategy.loader(
            self._data.loader("train", config.batch_size, shuffle=config.shuffle, seed=self._config.seed)
        )
        num_steps = _num_steps(config, len(loader))
        schedules = make_schedules(self._config.schedule, self._optimizers(), num_steps)
        changing = num_changing(self._config.schedule, num_steps)
        self._step_as_captured()
        for observer in self._observers:
            observer.begin(num_steps)
        start, evaluating, step, interrupted = time.perf_counter(), 0.0, 0, False
        valid: dict[str, float] | None = None
        epochs = self._epochs(loader)
        try:
            for batch, position in epochs:
                with defer_sigint():  # Ctrl-C comes between two steps, never between rows and the dense part
                    with self._timeline.span("train", "train"):
                        loss, logits = self._run_step(batch)
                        for schedule in schedules if step < changing else ():
                            schedule.step()
                    step += 1
                    self._log.add(loss, batch.label.shape[0])
                    self._refuse(self._losses.add(TrainedStep(step, position, loss, logits, batch.dense, batch.label)))
                    last, record = step == num_steps, None
                    if step % config.log_every == 0 or last:
                        self._refuse(self._losses.finish())
                        record = self._log.flush(step, time.perf_counter() - start - evaluating)
                if record is not None:
                    self._notify(record)
                if last:
                    break
                if position.ends_epoch if config.eval_every is None else step % config.eval_every == 0:
                    began = time.perf_counter()
                    valid = self._validate(step)
                    evaluating += time.perf_counter() - began
                    if self._validation.should_stop:
                        break
            self._keep(epochs)
        except KeyboardInterrupt:
            interrupted = True
            self._keep(epochs)
        seconds = self._kept_at - start - evaluating
        valid, test, interrupted = self._evaluate_kept(step, valid, interrupted)
        kept_step = self._validation.best_step if self._keeps_best and self._validation.best else step
        return Outcome(
            step, seconds, self._log.samples, self._log.mean_loss(), valid, test, interrupted, kept_step,
            self._log.stalls,
        )  # fmt: skip

    def _evaluate_kept(
        self, step: int, valid: dict[str, float] | None, interrupted: bool
    ) -> tuple[dict[str, float] | None, dict[str, float] | None, bool]:
        """Evaluate the model that is kept. A damaged shard or an interrupt costs no more than these results.

        Args:
            step: the last one.
            valid: the last results on the validation split.

        Returns:
            The results on validation and test, and whether there was an interrupt.
        """
        test = None
        if interrupted:
            return self._results_of_kept(valid), test, True
        try:
            if self._validated_at != step:
                valid = self._validate(step)
            if self._keeps_best and self._validation.best_step != step:
                self.restore()
            test = self.evaluate("test", step)
        except KeyboardInterrupt:
            interrupted = True
        return self._results_of_kept(valid), test, interrupted

    @property
    def _keeps_best(self) -> bool:
        return self._config.train.keep == "best"

    def _validate(self, step: int) -> dict[str, float] | None:
        """Evaluate on the validation split, and keep the model if it is the best so far and the best is wanted."""
        result = self.evaluate("valid", step)
        self._validated_at = step
        with defer_sigint():  # what is known as the best is saved
            if result is not None and self._validation.add(step, result) and self._keeps_best:
                self.after_training()
        return result

    def _results_of_kept(self, last: dict[str, float] | None) -> dict[str, float] | None:
        """The results on the validation split of the model that is kept: the last ones, or the best."""
        best = self._validation.best
        return dict(best) if self._keeps_best and best is not None else last

    def evaluate(self, split: str, step: int) -> dict[str, float] | None:
        """AUC, log loss and accuracy on a split, None if it has no samples. Calls the observers and the strategy."""
        if self._data.num_samples(split) == 0:
            return None
        self._refuse(self._losses.finish())
        loader = self._data.loader(split, self._config.train.eval_batch_size)
        with self._log.paused():
            result = evaluate(self._parts, loader, self._precision(), split, self._data.schema.dense)
        if result is not None:
            for observer in self._observers:
                observer.evaluated({"kind": split, "step": step, "samples": self._log.samples, **result})
            self._strategy.evaluated(split, step, result)
        return result

    def _keep(self, epochs: Generator[Any]) -> None:
        """End the loop, write every row back to the store and save what was trained.

        An interrupt arrives before all of it, and then this is called again. Or it arrives after all of it, and then
        calling this again does nothing.
        """
        with defer_sigint():
            if self._kept_at == 0.0:
                self._refuse(self._losses.finish())
                epochs.close()  # here, because Python ignores an interrupt of the finalizer of a loop
                self._parts.bags.flush()
                kept_at = time.perf_counter()
                if not (self._keeps_best and self._validation.best):
                    self.after_training()
                self._kept_at = kept_at

    def _refuse(self, bad: BadStep | None) -> None:
        """Raise if a step has a loss that is not finite. What was trained since then is not kept."""
        if bad is not None:
            parts = self._parts
            columns = self._data.schema.dense
            raise failed_training(bad, parts.model, parts.bags, parts.dense_optimizer, columns, self._config)

    def _epochs(self, loader: Loader) -> Generator[tuple[Batch, BatchPosition]]:
        """Iterate over the batches of all epochs. With each batch comes its position in the data."""
        for epoch in range(self._config.train.epochs):
            loader.set_epoch(epoch)
            self._parts.bags.train()
            loaded = self._timeline.timed(self._pinned_ahead(loader), "load", "load")
            planned = self._timeline.timed(self._strategy.batches(loaded, self._parts.bags), "plan", "plan")
            first = 1
            for number, batch in enumerate(planned, start=1):
                yield batch, BatchPosition(epoch + 1, number, len(loader), first)
                first += batch.label.shape[0]

    def _pinned_ahead(self, loader: Loader) -> Iterable[Batch]:
        """The loader's batches. For a GPU they are in pinned memory, and a thread reads slow loaders ahead.

        A strategy that has such a thread itself says so by `loads_ahead`.
        """
        if self._parts.device.type != "cuda":
            return loader
        batches = map(pinned, loader)
        return batches if self._strategy.loads_ahead else iterate_ahead_if_slow(batches)

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Train a batch. Returns its loss and its logits."""
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
        return loss.detach(), logits.detach()

    def _precision(self) -> AbstractContextManager[object]:
        return computing_in(self._config.train.precision, self._parts.device)

    def _step_as_captured(self) -> None:
        """Make the dense optimizer compute every step with the implementation that can be captured.

        PyTorch's implementations of an optimizer differ in the last bits. Strategies whose steps are captured must have
        the same result as strategies whose steps are not.
        """
        if self._parts.device.type == "cuda":
            with suppress(CannotCaptureError):
                make_capturable(self._parts.dense_optimizer)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        rows = self._parts.bags.optimizer
        assert rows is not None
        return [self._parts.dense_optimizer, rows]

    def _notify(self, record: dict[str, Any]) -> None:
        rows, dense = self._parts.bags.optimizer, self._parts.dense_optimizer
        if rows is not None:
            record["lr"] = float(rows.param_groups[0]["lr"])
        record["dense_lr"] = float(dense.param_groups[0]["lr"])
        if record["overflow"] and not self._has_warned_of_size:
            self._has_warned_of_size = True
            logger.warning("%s", self._advice_on_size(record))
        for observer in self._observers:
            observer.trained(record)

    def _advice_on_size(self, record: dict[str, Any]) -> str:
        """What to do about batches whose rows do not fit the cache."""
        caches = self._parts.bags.caches
        slots, num_rows = sum(each.num_slots for each in caches), sum(each.store.num_rows for each in caches)
        # A batch that does not fit is planned by itself, so this is what one batch needs.
        needed = math.ceil(ROOM * record["unique"] / record["steps"])
        wanted = min(num_rows, (self._config.cache.depth + 1) * needed)
        return (
            f"batches do not fit the cache of {slots:,} rows: one looks up about {needed:,} different rows with a "
            f"margin, so {record['overflow']:,} rows of the last {record['steps']} steps went through an overflow "
            f"buffer, which is slow and exact. Give --cache {wanted} for a batch and the {self._config.cache.depth} "
            "after it, or a smaller --batch-size"
        )


def embed(parts: Parts, ids: Tensor | Jagged) -> Tensor | tuple[Tensor, ...]:
    """Look rows up, and copy the pooled rows to the model's device. The rows may be on another device."""
    pooled: Tensor | tuple[Tensor, ...] = parts.bags(ids)
    if isinstance(pooled, tuple):
        return tuple(part.to(parts.device) for part in pooled)
    return pooled.to(parts.device)


def evaluate(
    parts: Parts, loader: Loader, precision: AbstractContextManager[object], split: str, columns: Sequence[str]
) -> dict[str, float] | None:
    """Metrics over all batches of a loader. Nothing is trained, and the cache keeps its rows.

    Args:
        precision: a context for the forward passes, see `computing_in`.
        split, columns: the name of the split and of the dense columns, for error messages.

    Raises:
        NotFiniteError: a logit is NaN or infinite.
    """
    metrics = ClickMetrics()
    was_training = parts.bags.training
    parts.model.eval()
    parts.bags.eval()
    try:
        with torch.no_grad(), precision:
            for batch in loader:
                logits = parts.model(batch.dense.to(parts.device), embed(parts, batch.ids)).cpu()
                if not bool(torch.isfinite(logits).all()):
                    first = metrics.num_samples + 1
                    raise failed_evaluation(logits, batch.dense, first, split, parts.model, parts.bags, columns)
                metrics.add(logits, batch.label)
    finally:
        parts.bags.train(was_training)
    return metrics.result()


def pinned(batch: Batch) -> Batch:
    """The batch in pinned memory, from which a GPU copies asynchronously.

    A batch that a data set made on the GPU is returned unchanged, because only host memory can be pinned.
    """
    if not isinstance(batch.ids, Tensor) or batch.ids.device.type != "cpu":
        return batch
    return Batch(batch.dense.pin_memory(), batch.ids.pin_memory(), batch.label.pin_memory())


def _num_steps(config: TrainConfig, per_epoch: int) -> int:
    steps = config.epochs * per_epoch
    return steps if config.max_steps is None else min(steps, config.max_steps)
