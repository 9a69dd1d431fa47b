"""How long work takes, as the lane that does it sees it: the host's time on the CPU, the stream's on CUDA."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from hotrows.runtime.streams import Event, WorkStream, current_stream

Timestamp = float | torch.cuda.Event


def timestamp(device: torch.device) -> Timestamp:
    """Now, in the caller's lane."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(current_stream(device))
    return event


class Stopwatch:
    """Adds up spans of time of one lane. On CUDA a span is known when the device has passed it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._spans: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def span(self) -> Iterator[None]:
        """Time what the current lane does inside."""
        begin = timestamp(self._device)
        try:
            yield
        finally:
            self.add(begin, timestamp(self._device))

    def add(self, begin: Timestamp, end: Timestamp) -> None:
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            self._spans.append((begin, end))
            while self._spans and self._spans[0][1].query():  # type: ignore[no-untyped-call]
                self._add_first()
        else:
            assert isinstance(begin, float)
            assert isinstance(end, float)
            self._seconds += end - begin

    def take_off(self, seconds: float) -> None:
        """So much of it was something else."""
        self._seconds -= seconds

    def restart(self) -> None:
        """Begin anew from 0."""
        self._spans.clear()
        self._seconds = 0.0

    def seconds(self) -> float:
        """The sum so far; waits for the device."""
        while self._spans:
            self._spans[0][1].synchronize()
            self._add_first()
        return self._seconds

    def _add_first(self) -> None:
        begin, end = self._spans.popleft()
        self._seconds += begin.elapsed_time(end) / 1000


class TimedStream:
    """A lane whose work is timed, from when it begins: what it waits for does not count.

    Args:
        wanted: whether to time what is submitted now.
    """

    def __init__(self, stream: WorkStream, stopwatch: Stopwatch, wanted: Callable[[], bool]) -> None:
        self._stream = stream
        self._stopwatch = stopwatch
        self._wanted = wanted

    def submit(self, work: Callable[[], None], after: Iterable[Event] = (), replays_graph: bool = False) -> Event:
        if not self._wanted():
            return self._stream.submit(work, after, replays_graph)

        def timed() -> None:
            with self._stopwatch.span():
                work()

        return self._stream.submit(timed, after, replays_graph)
