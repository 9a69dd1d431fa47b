"""What took how long: the three stages of training, in sums and, if wanted, as a timeline for Perfetto."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hotrows.cache.row_cache import RowCache
from hotrows.runtime.streams import Event, WorkStream

B = TypeVar("B")

STAGES = ("load", "plan", "wait", "train")


class Timeline:
    """Seconds spent in each stage; with `keep`, every span of time as well."""

    def __init__(self, keep: bool = False) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._keep = keep
        self._start = time.perf_counter()
        self._inner = _Inner()
        self._spans: list[tuple[str, str, float, float]] = []

    @contextmanager
    def span(self, name: str, stage: str | None = None) -> Iterator[None]:
        """Time what is done inside; counted in a stage, if one is named, without stages inside it in its thread."""
        begin = time.perf_counter()
        around, self._inner.seconds = self._inner.seconds, 0.0
        try:
            yield
        finally:
            end = time.perf_counter()
            inner, self._inner.seconds = self._inner.seconds, around
            if stage is not None:
                self.seconds[stage] += end - begin - inner
                inner = end - begin
            self._inner.seconds += inner
            if self._keep:
                self._spans.append((name, threading.current_thread().name, begin, end))

    def timed(self, batches: Iterable[B], name: str, stage: str) -> Iterator[B]:
        """The same batches, the waiting for each of them timed."""
        waiting = iter(batches)
        while True:
            with self.span(name, stage):
                try:
                    batch = next(waiting)
                except StopIteration:
                    return
            yield batch

    def watch(self, group: RowCache) -> None:
        """Keep the moves of a group as well. On a GPU these are the moments they are queued."""
        if self._keep:
            group.move_stream = _WatchedStream(group.move_stream, self)

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
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


class _Inner(threading.local):
    """Seconds of the stages within the span that is open, in each thread."""

    seconds = 0.0


class _WatchedStream:
    def __init__(self, stream: WorkStream, timeline: Timeline) -> None:
        self._stream = stream
        self._timeline = timeline

    def submit(self, work: Callable[[], None], after: Iterable[Event] = (), replays_graph: bool = False) -> Event:
        def timed() -> None:
            with self._timeline.span("move"):
                work()

        return self._stream.submit(timed, after, replays_graph)
