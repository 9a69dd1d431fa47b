"""How long each stage of a pipeline takes: loading a batch, collecting its rows, training on it."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch

from hotrows.loop.scheduler import Scheduler
from hotrows.nn.base import CachedModule
from hotrows.runtime.timing import Stopwatch, TimedStream, Timestamp, timestamp

B = TypeVar("B")

# On CUDA the first batches are timed, and every seventh batch after them: recording events takes the host as long as a
# short step. Seven shares no factor with usual logging intervals. The batch behind a log record finds the device idle,
# so it must not be timed more often than other batches.
NUM_FIRST = 16
EVERY = 7


@dataclass(frozen=True)
class StageTimes:
    """Mean seconds per batch: of each stage by itself, and of all together. On CUDA, of the device.

    In a pipeline whose stages overlap, `wall` is close to the longest stage. Without overlap it would be the sum.
    """

    batches: int
    loader: float
    collector: float  # planning and moving rows
    trainer: float  # without waiting for rows
    wall: float  # from the end of a batch to the end of the next

    @property
    def longest(self) -> float:
        return max(self.loader, self.collector, self.trainer)

    @property
    def sum(self) -> float:
        return self.loader + self.collector + self.trainer

    def to_json(self) -> dict[str, float]:
        """In milliseconds."""
        return {name: 1000 * value for name, value in asdict(self).items() if name != "batches"}


class StageTimer:
    """Times the stages of loops over batches: of all batches on the CPU, of the first ones and then of some on CUDA.

    Batches that train while the bags are in eval mode are left out, and so is a batch that an evaluation interrupts.
    """

    def __init__(self, bags: CachedModule) -> None:
        # The streams of the bags hold this object, so it must not keep the bags alive.
        self._bags = weakref.ref(bags)
        self._device = bags.device
        self._schedulers: list[Scheduler] = [weakref.proxy(scheduler) for scheduler in bags.schedulers]
        self._loader = Stopwatch(torch.device("cpu"))
        self._trainer, self._wall = Stopwatch(bags.device), Stopwatch(bags.device)
        self._streams: list[Stopwatch] = []
        self._num_loaded = self._num_trained = self._num_intervals = self._num_collected = 0
        self._num_begun = 0
        self._is_timed = False  # the current batch, or the one whose iteration begins
        for scheduler in bags.schedulers:
            streams, plans, moves = scheduler.streams, Stopwatch(bags.device), Stopwatch(bags.device)
            streams.planning = TimedStream(streams.planning, plans, self._times_streams)
            streams.moving = TimedStream(streams.moving, moves, self._times_streams)
            self._streams += [plans, moves]

    def is_of(self, bags: CachedModule) -> bool:
        """Whether it times the stages of these bags."""
        return self._bags() is bags

    def loading(self, loader: Iterable[B]) -> Iterator[B]:
        """The same batches. How long the loader takes for each is timed."""
        batches = iter(loader)
        while True:
            with self._loader.span():
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            self._num_loaded += 1
            yield batch

    def training(self, batches: Iterable[B]) -> Iterator[B]:
        """The same batches. How long the caller takes for each is timed."""
        last_end: Timestamp | None = None  # of the batch before, if that was timed
        iterator = iter(batches)
        try:
            while True:
                self._is_timed = self._is_next_timed()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                self._num_begun += 1
                begin: Timestamp | None = None
                stalled, num_read = 0.0, 0
                if self._is_timed:
                    self._num_collected += 1
                    self._wait_for_rows()
                    begin, stalled, num_read = timestamp(self._device), self._stall_seconds(), self._num_read()
                yield batch
                end = timestamp(self._device) if begin is not None or self._is_next_timed() else None
                if begin is not None and end is not None and self._num_read() == num_read:
                    self._num_trained += 1
                    self._trainer.add(begin, end)
                    self._trainer.subtract(self._stall_seconds() - stalled)
                    if last_end is not None:  # the first batch of a loop waits for the pipeline to fill
                        self._num_intervals += 1
                        self._wall.add(last_end, end)
                last_end = end
        finally:
            self._is_timed = False

    def restart(self) -> None:
        """Forget all times so far."""
        for stopwatch in (self._loader, self._trainer, self._wall, *self._streams):
            stopwatch.restart()
        self._num_loaded = self._num_trained = self._num_intervals = self._num_collected = self._num_begun = 0

    def times(self) -> StageTimes:
        """The mean times so far. Waits for the device."""
        collected = sum(stream.seconds() for stream in self._streams)
        return StageTimes(
            batches=self._num_trained,
            loader=self._loader.seconds() / max(1, self._num_loaded),
            collector=collected / max(1, self._num_collected),
            trainer=self._trainer.seconds() / max(1, self._num_trained),
            wall=self._wall.seconds() / max(1, self._num_intervals),
        )

    def _is_next_timed(self) -> bool:
        times_all = self._device.type != "cuda" or self._num_begun < NUM_FIRST
        return times_all or self._num_begun % EVERY == 0

    def _times_streams(self) -> bool:
        bags = self._bags()
        return self._is_timed and bags is not None and bags.training

    def _wait_for_rows(self) -> None:
        """On CUDA, make the caller's stream wait for the batch's rows now, so that the trainer's time is without it."""
        bags = self._bags()
        if bags is None or bags.current is None or self._device.type != "cuda":
            return
        for ticket in bags.current:
            if ticket.ready is not None:
                ticket.ready.wait()

    def _stall_seconds(self) -> float:
        if self._device.type == "cuda":
            return 0.0  # the host does not wait
        return sum(scheduler.cache.stats.stall_seconds for scheduler in self._schedulers)

    def _num_read(self) -> int:
        return sum(scheduler.cache.stats.read_rows for scheduler in self._schedulers)
