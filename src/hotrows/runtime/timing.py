"""Measures how long a stream's work takes: by the host's clock on the CPU, by CUDA events on CUDA."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from hotrows.runtime.streams import Event, WorkStream, current_stream

Timestamp = float | torch.cuda.Event


def timestamp(device: torch.device) -> Timestamp:
    """The present point in the work of the caller's stream."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(current_stream(device))
    return event


class Stopwatch:
    """Adds up spans of one stream's time. On CUDA a span is added once the device has passed it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._spans: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def span(self) -> Iterator[None]:
        """Time what the current stream does inside."""
        begin = timestamp(self._device)
        try:
            yield
        finally:
            self.add(begin, timestamp(self._device))

    def add(self, begin: Timestamp, end: Timestamp) -> None:
        """Add the span between two timestamps of the stream."""
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            self._spans.append((begin, end))
            while self._spans and self._spans[0][1].query():  # type: ignore[no-untyped-call]
                self._add_first()
        else:
            assert isinstance(begin, float)
            assert isinstance(end, float)
            self._seconds += end - begin

    def subtract(self, seconds: float) -> None:
        """Subtract time that was spent on something else inside a span."""
        self._seconds -= seconds

    def restart(self) -> None:
        """Set the sum to 0."""
        self._spans.clear()
        self._seconds = 0.0

    def seconds(self) -> float:
        """The sum so far. Blocks the host until the device has passed the last span."""
        while self._spans:
            self._spans[0][1].synchronize()
            self._add_first()
        return self._seconds

    def _add_first(self) -> None:
        begin, end = self._spans.popleft()
        self._seconds += begin.elapsed_time(end) / 1000


class TimedStream:
    """A stream whose work is timed, without the time for which it waits for events before it begins.

    Args:
        wanted: called at each submission; returns whether to time that work.
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
