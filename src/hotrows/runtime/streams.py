"""Streams of work beside the training, and the events by which they wait for each other.

Here are the streams in which caches plan and move rows, and the events of these and other streams. On CUDA a work
stream is a CUDA stream and an event a CUDA event. On the CPU, rows move in a worker thread, whose event is a flag, and
plans are made at once in the calling thread. The caller's own stream (the current CUDA stream, or the calling thread)
trains. Events have the methods of `torch.cuda.Event`: query, wait, synchronize.
"""

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from hotrows.runtime import cuda_private
from hotrows.runtime.exclusive import FORKED


@contextmanager
def writable_state() -> Iterator[None]:
    """Tensors created inside can be written later, even if the caller is in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Event(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """True once the stream has reached the point. Never waits."""

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        """Make everything the caller's stream does from now on happen after this point.

        Args:
            stream: the caller's CUDA stream, if it is known: asking PyTorch for it is slow.
        """

    def synchronize(self) -> None:
        """Block the host until the stream has reached the point."""


def all_complete(events: Iterable[Event]) -> bool:
    """True once every event is complete."""
    for event in events:  # noqa: SIM110  (a generator is slower, and this runs in every iteration)
        if not event.query():
            return False
    return True


class WorkStream(Protocol):
    """Runs submitted work in order, beside the caller."""

    def submit(self, work: Callable[[], None], after: Iterable[Event] = (), replays_graph: bool = False) -> Event:
        """Queue work behind all work submitted before and behind the given events of other streams.

        Args:
            replays_graph: the work replays a CUDA graph. It enters `writable_state` itself wherever it creates tensors.
        """


class CompletedEvent:
    """An event of a stream that runs its work at once: the calling thread on a CPU."""

    __slots__ = ()

    def query(self) -> bool:
        return True

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class CudaEvent:
    """A recorded CUDA event. It remembers that it has completed, because asking the driver again is slow."""

    __slots__ = ("_complete", "_device", "_event")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        self._complete = False
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def record_again(self, stream: torch.cuda.Stream) -> None:
        """Record the event anew in a stream. Only valid while nobody else holds it."""
        self._complete = False
        self._event.record(stream)

    def query(self) -> bool:
        if not self._complete:
            self._complete = bool(self._event.query())  # type: ignore[no-untyped-call]
        return self._complete

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        if not self._complete:
            self._event.wait(current_stream(self._device) if stream is None else stream)

    def synchronize(self) -> None:
        if not self._complete:
            self._event.synchronize()
            self._complete = True


class EventPool(list[torch.cuda.Event]):
    """Unused CUDA events of one device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device


class PooledEvent(CudaEvent):
    """A CUDA event that returns to a pool when nobody holds it any more, because creating an event is slow.

    A stream that waits for an event waits for what was recorded when the wait was queued. So an event may be recorded
    again while a stream still waits for its old record. Do not use it inside a graph capture.

    Args:
        events: the pool of the stream's device, see `event_pool`.
    """

    __slots__ = ("_events",)

    def __init__(self, stream: torch.cuda.Stream, events: EventPool) -> None:
        self._device = events.device
        self._events = events
        self._complete = False
        try:
            self._event = events.pop()
        except IndexError:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def __del__(self) -> None:
        try:  # noqa: SIM105  (contextlib.suppress is slower)
            self._events.append(self._event)
        except AttributeError:  # creating the event failed in __init__
            pass


class CudaWorkStream:
    """A CUDA stream."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        self._events = event_pool(self._stream.device)

    def submit(self, work: Callable[[], None], after: Iterable[Event] = (), replays_graph: bool = False) -> Event:
        if not replays_graph:
            return self._submit_anything(work, after)
        switched = cuda_private.switch_stream(self._stream)
        if switched is None:  # there is no fast way: another device is current, or private calls are switched off
            return self._submit_anything(work, after)
        try:
            for event in after:
                event.wait(self._stream)
            work()
            return PooledEvent(self._stream, self._events)
        finally:
            switched()

    def _submit_anything(self, work: Callable[[], None], after: Iterable[Event]) -> Event:
        with torch.cuda.stream(self._stream), writable_state():
            for event in after:
                event.wait()
            work()
            return CudaEvent(self._stream)


class InlineStream:
    """Runs work at once in the calling thread."""

    def submit(self, work: Callable[[], None], after: Iterable[Event] = (), replays_graph: bool = False) -> Event:
        for event in after:
            event.synchronize()
        with writable_state():
            work()
        return CompletedEvent()


class ThreadEvent:
    """A flag that a worker thread sets."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: BaseException | None = None

    def query(self) -> bool:
        return self._event.is_set()

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        self.synchronize()

    def synchronize(self) -> None:
        self._event.wait()
        if self._error is not None:
            raise RuntimeError("moving rows failed; rows that were in the cache may be lost") from self._error

    def complete(self, error: BaseException | None) -> None:
        self._error = error
        self._event.set()


_Job = tuple[Callable[[], None], tuple[Event, ...], ThreadEvent]


class ThreadStream:
    """A worker thread that runs one job after the other.

    After a job has failed, no further job runs, and every later event carries the first error. Otherwise a later fetch
    could read a record that an earlier write-back should have written.
    """

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._jobs = _Jobs()
        thread = threading.Thread(target=self._jobs.run_all, name=name, daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._jobs, thread)

    def submit(self, work: Callable[[], None], after: Iterable[Event] = (), replays_graph: bool = False) -> Event:
        if os.getpid() != self._process:
            raise RuntimeError(FORKED)
        event = ThreadEvent()
        self._jobs.add((work, tuple(after), event))
        return event


class _Jobs:
    """The jobs of one thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._failed: BaseException | None = None
        self.thread_has_ended = False

    def add(self, job: _Job | None) -> None:
        """Queue a job, or None to end the thread.

        A job that comes after the thread has ended, as from the user's `atexit` functions, runs in the calling thread.
        """
        if self.thread_has_ended and job is not None:
            self._run(*job)
        else:
            self._queue.put(job)

    def run_all(self) -> None:
        """Run jobs until None arrives. This is what the thread runs."""
        while (job := self._queue.get()) is not None:
            self._run(*job)
            del job  # a finished job must not keep its tensors alive until the next one

    def _run(self, work: Callable[[], None], after: tuple[Event, ...], event: ThreadEvent) -> None:
        if self._failed is None:
            try:
                for other in after:
                    other.synchronize()
                with torch.no_grad():
                    work()
            except BaseException as error:
                self._failed = error
        event.complete(self._failed)


def _end(jobs: _Jobs, thread: threading.Thread) -> None:
    """End the thread after its queued jobs. Otherwise the interpreter would kill it in the middle of a job."""
    jobs.add(None)
    if thread is not threading.current_thread():
        thread.join()
    jobs.thread_has_ended = True


def record_event(device: torch.device) -> Event:
    """Record an event in the caller's stream."""
    return CudaEvent(current_stream(device)) if device.type == "cuda" else CompletedEvent()


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """`torch.cuda.current_stream`, without a new object for every call."""
    key = None if device.index is None else cuda_private.current_stream_key(device)
    if key is None:
        return torch.cuda.current_stream(device)
    found = _streams.get(key)
    if found is None:
        found = _streams[key] = torch.cuda.current_stream(device)
    return found


def event_pool(device: torch.device) -> EventPool:
    """The pool of unused events of a device."""
    return _event_pools.setdefault(device, EventPool(device))


PRIORITY = 0  # of the planning stream and the moving stream
_streams: dict[tuple[int, int, int], torch.cuda.Stream] = {}
_event_pools: dict[torch.device, EventPool] = {}


def use_device(device: torch.device) -> AbstractContextManager[object]:
    """A context inside which the caller launches kernels on this device, whichever device is current outside."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)


def make_streams(device: torch.device) -> tuple[WorkStream, WorkStream]:
    """One stream to plan in and one to move rows in."""
    if device.type == "cuda":
        return CudaWorkStream(device, PRIORITY), CudaWorkStream(device, PRIORITY)
    return InlineStream(), ThreadStream("hotrows-transfer")
