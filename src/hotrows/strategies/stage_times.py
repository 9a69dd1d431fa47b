"""What each stage of a pipeline takes: loading a batch, collecting its rows, training on it."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch

from hotrows.nn.base import CachedModule
from hotrows.runtime.timing import Stopwatch, TimedStream, Timestamp, timestamp

B = TypeVar("B")

# On CUDA the first batches are timed, and one in so many after them: events take the host as long as a short step. Of
# the batches after a record is logged, which find the device with nothing to do, these are no more than of others.
ALL_OF = 16
EVERY = 7


@dataclass(frozen=True)
class StageTimes:
    """Mean seconds per batch: of each stage by itself, and of all together. On CUDA, of the device.

    In a pipeline that overlaps, `wall` is close to the longest stage; without one it would be the sum.
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


class StageClock:
    """Times the stages of loops over batches: on the CPU of all, on CUDA of all at first and then of some.

    What happens while the bags are in eval mode is left out, and with it the batches of a loop that it interrupts.
    """

    def __init__(self, bags: CachedModule) -> None:
        self._of = weakref.ref(bags)
        self._bags: CachedModule = weakref.proxy(bags)  # type: ignore[assignment]  # whose lanes hold this
        self._loader = Stopwatch(torch.device("cpu"))
        self._trainer, self._wall = Stopwatch(bags.device), Stopwatch(bags.device)
        self._streams: list[Stopwatch] = []
        self._num_loaded = self._num_trained = self._num_turns = self._num_collected = 0
        self._num_begun = 0
        self._is_timed = False  # the batch that is on its way, or trains
        for group in bags.groups:
            plans, moves = Stopwatch(bags.device), Stopwatch(bags.device)
            group.planning_stream = TimedStream(group.planning_stream, plans, self._times_lanes)
            group.move_stream = TimedStream(group.move_stream, moves, self._times_lanes)
            self._streams += [plans, moves]

    def is_of(self, bags: CachedModule) -> bool:
        return self._of() is bags

    def loading(self, loader: Iterable[B]) -> Iterator[B]:
        """The same batches, the making of each of them timed."""
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
        """The same batches, what is done with each of them timed."""
        before: Timestamp | None = None  # when the batch before ended, where it is wanted
        coming = iter(batches)
        try:
            while True:
                self._is_timed = self._next_is_timed()
                try:
                    batch = next(coming)
                except StopIteration:
                    return
                self._num_begun += 1
                begin: Timestamp | None = None
                stalled, num_read = 0.0, 0
                if self._is_timed:
                    self._num_collected += 1
                    self._hold_for_rows()
                    begin, stalled, num_read = timestamp(self._bags.device), self._stall_seconds(), self._num_read()
                yield batch
                end = timestamp(self._bags.device) if begin is not None or self._next_is_timed() else None
                if begin is not None and end is not None and self._num_read() == num_read:
                    self._num_trained += 1
                    self._trainer.add(begin, end)
                    self._trainer.subtract(self._stall_seconds() - stalled)
                    if before is not None:  # the first batch of a loop waits for the pipeline to fill
                        self._num_turns += 1
                        self._wall.add(before, end)
                before = end
        finally:
            self._is_timed = False

    def restart(self) -> None:
        """Forget what was timed so far."""
        for stopwatch in (self._loader, self._trainer, self._wall, *self._streams):
            stopwatch.restart()
        self._num_loaded = self._num_trained = self._num_turns = self._num_collected = self._num_begun = 0

    def times(self) -> StageTimes:
        """Waits for the device."""
        collected = sum(stream.seconds() for stream in self._streams)
        return StageTimes(
            batches=self._num_trained,
            loader=self._loader.seconds() / max(1, self._num_loaded),
            collector=collected / max(1, self._num_collected),
            trainer=self._trainer.seconds() / max(1, self._num_trained),
            wall=self._wall.seconds() / max(1, self._num_turns),
        )

    def _next_is_timed(self) -> bool:
        is_all = self._bags.device.type != "cuda" or self._num_begun < ALL_OF
        return is_all or self._num_begun % EVERY == 0

    def _times_lanes(self) -> bool:
        return self._is_timed and self._bags.training

    def _hold_for_rows(self) -> None:
        """On CUDA the stream waits for the batch's rows here, so that the wait is not part of the training's time."""
        ahead = self._bags.current
        if ahead is None or self._bags.device.type != "cuda":
            return
        for flight in ahead.flights:
            if flight is not None and flight.moved is not None:
                flight.moved.wait()

    def _stall_seconds(self) -> float:
        if self._bags.device.type == "cuda":
            return 0.0  # its host does not wait
        return sum(group.stats.stall_seconds for group in self._bags.groups)

    def _num_read(self) -> int:
        return sum(group.stats.read_rows for group in self._bags.groups)
