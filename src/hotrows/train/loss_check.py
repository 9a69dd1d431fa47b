"""Finds the first step whose loss or weights are not finite, some steps late: the host never waits for the device."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from hotrows.runtime.readback import copy_to_host
from hotrows.runtime.streams import Event, record_event

STEPS_AT_A_TIME = 8  # On CUDA the losses of this many steps are copied to the host together.
NUM_BEFORE = 5  # how many losses before the bad one are kept


@dataclass(frozen=True)
class BatchPosition:
    """Where a batch lies in the data.

    Args:
        epoch: from 1.
        batch: its number in the epoch, from 1.
        num_batches: the batches of an epoch.
        first_sample: the number of its first sample in the epoch, from 1.
    """

    epoch: int
    batch: int
    num_batches: int
    first_sample: int

    @property
    def ends_epoch(self) -> bool:
        return self.batch == self.num_batches


@dataclass(frozen=True, eq=False)
class TrainedStep:
    """A step that was trained, and what is needed to say what was wrong with it. The tensors stay where they are."""

    step: int
    position: BatchPosition
    loss: Tensor
    logits: Tensor
    dense: Tensor
    label: Tensor


@dataclass(frozen=True)
class BadStep:
    """The first step whose loss is not finite, or after which weights are not.

    Args:
        loss: finite only if weights are not.
        num_steps: how many steps were trained in all until its loss was known.
        losses_before: the last finite losses, in order.
        before: the step before it, if it is still kept.
    """

    trained: TrainedStep
    loss: float
    num_steps: int
    losses_before: tuple[float, ...]
    before: TrainedStep | None


class LossCheck:
    """Reads the loss of every step back and finds the first that is not finite.

    Losses are copied to the host asynchronously and read when the copy is done. Reading each one at once would make the
    host wait for the device in every step. On the CPU a loss is known at once.

    Args:
        weights: on CUDA, they are checked as often as losses are read. In bf16 on an H200, a NaN in an input left every
            loss finite.
    """

    def __init__(self, device: torch.device, weights: Sequence[Tensor] = ()) -> None:
        self._device = device
        self._steps_at_a_time = STEPS_AT_A_TIME if device.type == "cuda" else 1
        self._weights = [weight.detach() for weight in weights] if device.type == "cuda" else []
        self._unread: list[TrainedStep] = []
        self._reading: deque[tuple[list[TrainedStep], Tensor, Event]] = deque()
        self._num_steps = 0
        self._losses: deque[float] = deque(maxlen=NUM_BEFORE)
        self._before: TrainedStep | None = None

    def add(self, trained: TrainedStep) -> BadStep | None:
        """Add a step. Returns the first bad one of those whose losses have arrived. Never waits."""
        self._num_steps = trained.step
        self._unread.append(trained)
        if len(self._unread) >= self._steps_at_a_time:
            self._start_reading()
        while self._reading and self._reading[0][2].query():
            bad = self._judge_next()
            if bad is not None:
                return bad
        return None

    def finish(self) -> BadStep | None:
        """The first bad step of all that were added. Waits for their losses."""
        self._start_reading()
        while self._reading:
            self._reading[0][2].synchronize()
            bad = self._judge_next()
            if bad is not None:
                return bad
        return None

    def _start_reading(self) -> None:
        if self._unread:
            values = [trained.loss for trained in self._unread]
            if self._weights:
                values.append(get_total_norm(self._weights))
            losses = copy_to_host(torch.stack(values))
            self._reading.append((self._unread, losses, record_event(self._device)))
            self._unread = []

    def _judge_next(self) -> BadStep | None:
        steps, losses, _ = self._reading.popleft()
        values = losses.tolist()
        found = _first_bad(steps, values)
        for number, (trained, loss) in enumerate(zip(steps, values, strict=False)):
            if number == found:
                return BadStep(trained, loss, self._num_steps, tuple(self._losses), self._before)
            self._losses.append(loss)
            self._before = trained
        return None


def _first_bad(steps: Sequence[TrainedStep], values: Sequence[float]) -> int | None:
    """The first step whose loss is not finite. If only the weights are not: the first with such inputs, or the last.

    Args:
        values: the losses, perhaps followed by the norm of the weights.
    """
    for number, value in enumerate(values):
        if not math.isfinite(value):
            if number < len(steps):
                return number
            suspects = [number for number, each in enumerate(steps) if not _is_finite(each.dense, each.logits)]
            return suspects[0] if suspects else len(steps) - 1
    return None


def _is_finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
