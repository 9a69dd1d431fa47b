"""Sums over training steps: what the trainer logs every `log_every` steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hotrows.cache.stats import Stats
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.train.timeline import Timeline


class StepLog:
    """Sums up the steps since the last record.

    Losses stay on the device until a record is made, because reading one would make the host wait for the device.
    """

    def __init__(self, bags: EmbeddingBagCollection, timeline: Timeline) -> None:
        self._bags = bags
        self._timeline = timeline
        self._losses: list[Tensor] = []
        self._means: list[tuple[float, int]] = []
        self._stats = Stats()
        self._stalls_outside, self._stall_seconds_outside = 0, 0.0  # of evaluations
        self._seconds = 0.0
        self._stages = dict(timeline.seconds)
        self._samples_since = 0
        self.samples = 0

    def add(self, loss: Tensor, num_samples: int) -> None:
        """Add a step."""
        self._losses.append(loss)
        self._samples_since += num_samples
        self.samples += num_samples

    @contextmanager
    def paused(self) -> Iterator[None]:
        """An evaluation runs inside. Its stalls are not those of training."""
        before = self._bags.stats()
        stalls, seconds = before.stalls, before.stall_seconds
        yield
        after = self._bags.stats()
        self._stalls_outside += after.stalls - stalls
        self._stall_seconds_outside += after.stall_seconds - seconds

    def flush(self, step: int, seconds: float) -> dict[str, Any]:
        """Make a record of the steps since the last one.

        Args:
            step: the number of steps trained so far.
            seconds: training time so far.
        """
        num = len(self._losses)
        loss = float(torch.stack(self._losses).mean())
        self._means.append((loss, num))
        stats = self._training_stats()
        before = self._stats
        unique = stats.unique - before.unique
        record = {
            "kind": "train",
            "step": step,
            "steps": num,
            "samples": self.samples,
            "seconds": seconds,
            "loss": loss,
            "samples_per_second": self._samples_since / max(seconds - self._seconds, 1e-9),
            "hit_rate": (stats.hits - before.hits) / unique if unique else stats.hit_rate,
            "lookups": stats.lookups - before.lookups,
            "unique": unique,
            "misses": stats.misses - before.misses,
            "overflow": stats.overflow - before.overflow,
            "stalls": stats.stalls - before.stalls,
            "bytes_in": stats.bytes_in - before.bytes_in,
            "bytes_out": stats.bytes_out - before.bytes_out,
            "stages": self._stage_times(num, stats.stall_seconds - before.stall_seconds),
        }
        self._losses.clear()
        self._stats = stats
        self._stages = dict(self._timeline.seconds)
        self._seconds = seconds
        self._samples_since = 0
        return record

    def _training_stats(self) -> Stats:
        stats = self._bags.stats() + Stats()  # a copy
        stats.stalls -= self._stalls_outside
        stats.stall_seconds -= self._stall_seconds_outside
        return stats

    @property
    def stalls(self) -> int:
        """How often training has stalled so far."""
        return self._training_stats().stalls

    def mean_loss(self) -> float:
        """The mean over all steps."""
        pending = [(float(torch.stack(self._losses).mean()), len(self._losses))] if self._losses else []
        total = sum(num for _, num in self._means + pending)
        return sum(loss * num for loss, num in self._means + pending) / total if total else float("nan")

    def _stage_times(self, num_steps: int, stall_seconds: float) -> dict[str, float]:
        """Milliseconds per step of each stage. The training step waits for its rows, so stalls are part of its time."""
        stages = {name: 1000 * (now - self._stages[name]) / num_steps for name, now in self._timeline.seconds.items()}
        stages["wait"] = 1000 * stall_seconds / num_steps
        stages["train"] = max(0.0, stages["train"] - stages["wait"])
        return stages
