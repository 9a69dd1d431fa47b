"""The time of each stage of training: its sum, and on request a timeline for Perfetto."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hotrows.cache.streams import CacheStreams
from hotrows.json_text import json_text
from hotrows.runtime.streams import Event, WorkStream

B = TypeVar("B")

STAGES = ("load", "plan", "wait", "train")


class Timeline:
    """The seconds spent in each stage; with `keep`, every span of time as well."""

    def __init__(self, keep: bool = False) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._keep = keep
        self._start = time.perf_counter()
        self._nested = _NestedStages()
        self._spans: list[tuple[str, str, float, float]] = []

    @contextmanager
    def span(self, name: str, stage: str | None = None) -> Iterator[None]:
        """Time what is done inside the context.

        Args:
            stage: the stage that the time is added to. The time of a stage nested inside, in the same thread, counts
                for the nested stage only.
        """
        begin = time.perf_counter()
        around, self._nested.seconds = self._nested.seconds, 0.0
        try:
            yield
        finally:
            end = time.perf_counter()
            nested, self._nested.seconds = self._nested.seconds, around
            if stage is not None:
                self.seconds[stage] += end - begin - nested
                nested = end - begin
            self._nested.seconds += nested
            if self._keep:
                self._spans.append((name, threading.current_thread().name, begin, end))

    def timed(self, batches: Iterable[B], name: str, stage: str) -> Iterator[B]:
        """The same batches. The time that each of them takes to arrive is added to a stage."""
        source = iter(batches)
        while True:
            with self.span(name, stage):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def watch(self, streams: CacheStreams) -> None:
        """Record the moves of a cache as spans too. On a GPU a span is the time it takes to queue the moves."""
        if self._keep:
            streams.moving = _WatchedStream(streams.moving, self)

    def write(self, path: Path) -> None:
        """Write the spans in the trace event format, which Perfetto and chrome://tracing open."""
        threads = {name: i for i, name in enumerate(dict.fromkeys(thread for _, thread, _, _ in self._spans))}
        events = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}
            for name, tid in threads.items()
        ]
        for name, thread, begin, end in self._spans:
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": 1,
                    "tid": threads[thread],
                    "ts": (begin - self._start) * 1e6,
                    "dur": (end - begin) * 1e6,
                }
            )
        path.write_text(json_text({"traceEvents": events, "displayTimeUnit": "ms"}))


class _NestedStages(threading.local):
    """Seconds of the stages nested inside the open span, by thread."""

    seconds = 0.0


class _WatchedStream:
    """A work stream whose work is recorded as spans of a timeline."""

    def __init__(self, stream: WorkStream, timeline: Timeline) -> None:
        self._stream = stream
        self._timeline = timeline

    def submit(self, work: Callable[[], None], after: Iterable[Event] = (), replays_graph: bool = False) -> Event:
        def timed() -> None:
            with self._timeline.span("move"):
                work()

        return self._stream.submit(timed, after, replays_graph)
