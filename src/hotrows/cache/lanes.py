"""Lanes: where work runs in order beside the training, and marks by which lanes wait for each other.

All stream, event and thread handling of hotrows is here. On CUDA a lane is a stream and a mark an event; on the CPU a
lane is a worker thread and a mark a flag. The caller's own lane (the current stream, or the calling thread) trains.
"""

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch


@contextmanager
def writable_state() -> Iterator[None]:
    """What is made or written inside can be written ever after, also if the caller is in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Mark(Protocol):
    """A point in a lane's work."""

    def passed(self) -> bool:
        """Whether the lane has got there; does not wait."""

    def hold_caller(self, stream: torch.cuda.Stream | None = None) -> None:
        """Let what the caller's lane does from now on happen after this point.

        Args:
            stream: that of the caller, where it is known: to ask for it takes the host long.
        """

    def wait(self) -> None:
        """Block the host until the lane has got there."""


def have_passed(marks: Iterable[Mark]) -> bool:
    """Whether their lanes have got to all of these marks."""
    for mark in marks:  # noqa: SIM110  (takes longer)
        if not mark.passed():
            return False
    return True


class Lane(Protocol):
    def submit(self, work: Callable[[], None], after: Iterable[Mark] = (), recorded: bool = False) -> Mark:
        """Queue work behind all work queued before and behind the given marks of other lanes.

        Args:
            recorded: it replays a CUDA graph or copies, and makes no tensor.
        """


class Passed:
    """A mark of a lane that does all its work at once: the calling thread on a CPU."""

    __slots__ = ()

    def passed(self) -> bool:
        return True

    def hold_caller(self, stream: torch.cuda.Stream | None = None) -> None:
        pass

    def wait(self) -> None:
        pass


class StreamMark:
    """A recorded event. What is known to have passed is neither asked again nor waited for: both take the host long."""

    __slots__ = ("_device", "_event", "_passed")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        self._passed = False
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def renew(self, stream: torch.cuda.Stream) -> None:
        """Be a later point, of this stream; for who shares the mark with nobody."""
        self._passed = False
        self._event.record(stream)

    def passed(self) -> bool:
        if not self._passed:
            self._passed = bool(self._event.query())  # type: ignore[no-untyped-call]
        return self._passed

    def hold_caller(self, stream: torch.cuda.Stream | None = None) -> None:
        if not self._passed:
            self._event.wait(current_stream(self._device) if stream is None else stream)

    def wait(self) -> None:
        if not self._passed:
            self._event.synchronize()
            self._passed = True


class SpareEvents(list[torch.cuda.Event]):
    """Events of a device that no mark has any more."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device


class ReusedMark(StreamMark):
    """The same with an event of another such mark that nobody has any more: to make one takes the host long.

    Who waits for an event waits for what was recorded last when he began to. Not for marks in a recording.

    Args:
        events: of the stream's device, see `spare_events`.
    """

    __slots__ = ("_events",)

    def __init__(self, stream: torch.cuda.Stream, events: SpareEvents) -> None:
        self._device = events.device
        self._events = events
        self._passed = False
        try:
            self._event = events.pop()
        except IndexError:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def __del__(self) -> None:
        try:  # noqa: SIM105  (takes longer)
            self._events.append(self._event)
        except AttributeError:  # there was none to be had
            pass


class StreamLane:
    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        self._key = (self._stream.stream_id, self._stream.device_index, self._stream.device_type)
        self._events = spare_events(self._stream.device)

    def submit(self, work: Callable[[], None], after: Iterable[Mark] = (), recorded: bool = False) -> Mark:
        index = self._key[1]
        if not recorded or torch._C._cuda_getDevice() != index:
            return self._submit_anything(work, after)
        # the same with less ado, for it is done in every step
        before = torch._C._cuda_getCurrentStream(index)
        torch._C._cuda_setStream(*self._key)
        try:
            for mark in after:
                mark.hold_caller(self._stream)
            work()
            return ReusedMark(self._stream, self._events)
        finally:
            torch._C._cuda_setStream(*before)

    def _submit_anything(self, work: Callable[[], None], after: Iterable[Mark]) -> Mark:
        with torch.cuda.stream(self._stream), writable_state():
            for mark in after:
                mark.hold_caller()
            work()
            return StreamMark(self._stream)


class CallerLane:
    """Does work at once in the calling thread."""

    def submit(self, work: Callable[[], None], after: Iterable[Mark] = (), recorded: bool = False) -> Mark:
        for mark in after:
            mark.wait()
        with writable_state():
            work()
        return Passed()


class ThreadMark:
    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: BaseException | None = None

    def passed(self) -> bool:
        return self._event.is_set()

    def hold_caller(self, stream: torch.cuda.Stream | None = None) -> None:
        self.wait()

    def wait(self) -> None:
        self._event.wait()
        if self._error is not None:
            raise RuntimeError("moving rows failed; rows that were in the cache may be lost") from self._error

    def pass_(self, error: BaseException | None) -> None:
        self._error = error
        self._event.set()


_Job = tuple[Callable[[], None], tuple[Mark, ...], ThreadMark]


class ThreadLane:
    """A worker thread that does one job after the other.

    After a failed job nothing more is done: every later mark carries the first error, so that no later fetch can read
    what an earlier write-back did not write.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._jobs, thread)

    def submit(self, work: Callable[[], None], after: Iterable[Mark] = (), recorded: bool = False) -> Mark:
        mark = ThreadMark()
        self._jobs.put((work, tuple(after), mark))
        return mark


def _end(jobs: "queue.SimpleQueue[_Job | None]", thread: threading.Thread) -> None:
    """Let the thread finish what is queued. At the end of the program it must not be killed in the middle of it."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join()


def _work(jobs: "queue.SimpleQueue[_Job | None]") -> None:
    failed: BaseException | None = None
    while (job := jobs.get()) is not None:
        work, after, mark = job
        if failed is None:
            try:
                for other in after:
                    other.wait()
                with torch.no_grad():
                    work()
            except BaseException as error:
                failed = error
        mark.pass_(failed)
        del job, work, after, mark  # what a job holds must not live until the next one


def caller_mark(device: torch.device) -> Mark:
    """The point that the caller's lane has got to."""
    return StreamMark(current_stream(device)) if device.type == "cuda" else Passed()


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """As `torch.cuda.current_stream`, which makes a new object each time and takes long over it."""
    key = torch._C._cuda_getCurrentStream(device.index)
    found = _streams.get(key)
    if found is None:
        found = _streams[key] = torch.cuda.current_stream(device)
    return found


def spare_events(device: torch.device) -> SpareEvents:
    """Those of a device, for marks of its streams."""
    return _spare_events.setdefault(device, SpareEvents(device))


PRIORITY = 0
_streams: dict[tuple[int, int, int], torch.cuda.Stream] = {}
_spare_events: dict[torch.device, SpareEvents] = {}


def caller_device(device: torch.device) -> AbstractContextManager[object]:
    """Kernels that the caller's lane launches go to this device, whatever the current one is."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)


def make_lanes(device: torch.device) -> tuple[Lane, Lane]:
    """A lane to plan in and a lane to move rows in."""
    if device.type == "cuda":
        return StreamLane(device, PRIORITY), StreamLane(device, PRIORITY)
    return CallerLane(), ThreadLane("hotrows-mover")
