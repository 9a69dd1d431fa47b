"""The loop that reads batches ahead, and moves their rows to the device while earlier batches train."""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Generic, Protocol, TypeVar

from hotrows.cache.policies.next_use import WINDOW_LIMIT
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket
from hotrows.loop.window import BatchWindow
from hotrows.runtime.exclusive import Exclusive
from hotrows.table import whole_number

B = TypeVar("B")
_NO_IDS = object()  # stands for the ids of a batch that is not announced


class LookaheadModule(Protocol):
    """What the loop needs of an embedding module: `EmbeddingBag` and `EmbeddingBagCollection` have it."""

    training: bool
    exclusive: Exclusive  # every change of the state of the module's caches happens inside it

    @property
    def schedulers(self) -> list[Scheduler]: ...

    def announce(self, ids: Any) -> list[BatchTicket]:
        """Announce a batch to every cache; one ticket each."""

    def open_lookahead(self, close: Callable[[], None]) -> None:
        """A loop begins; `close` ends it."""

    def close_lookahead(self, close: Callable[[], None] | None = None) -> None:
        """End the open loop; there is at most one. With `close`, only if that is the function that ends it."""

    def close_lookahead_later(self, close: Callable[[], None]) -> None:
        """Note that the loop that `close` ends must end before the next forward pass or `flush`.

        Any thread may call this at any time. It never waits.
        """

    def set_current(self, tickets: list[BatchTicket] | None) -> None:
        """Set the tickets of the batch that the next forward pass is expected to look up; None for no batch."""


def lookahead(
    loader: Iterable[B],
    bags: LookaheadModule,
    depth: int = 4,
    window: int = 32,
    ids: Callable[[B], Any] = lambda batch: batch.ids,  # type: ignore[attr-defined]
) -> Iterator[B]:
    """The batches of a loader, with the rows of each on the device when its iteration begins.

    The result is that of a plain loop, bit for bit; leave the loop whenever you like. While `bags` is in eval mode,
    batches pass through unchanged.

    Args:
        bags: the `EmbeddingBagCollection` or `EmbeddingBag` that will look the batches up.
        depth: how many batches ahead rows are moved. It shrinks by itself while the cache is too small for it.
        window: how many batches ahead ids are known to the policy, the current one included; at most 64. It is raised
            to `depth` + 3 if it is smaller.
        ids: takes a batch and returns what the bags will be called with: for an `EmbeddingBag` the input, or a tuple
            (input, offsets). Pass the same tensors to the bags.

    Example::

        for batch in hotrows.lookahead(loader, bags, ids=lambda b: b.ids):
            loss = loss_fn(model(batch.dense, bags(batch.ids)), batch.label)
            loss.backward()
    """
    depth = whole_number(depth, "depth", 0)
    window = whole_number(window, "window", 1, WINDOW_LIMIT)
    if not hasattr(bags, "schedulers"):
        raise ValueError(f"bags are a {type(bags).__name__}, give an EmbeddingBagCollection or an EmbeddingBag")
    loop = _run(iter(loader), bags, depth, max(window, min(depth + 3, WINDOW_LIMIT)), ids)
    if not _open_loops:
        atexit.unregister(_close_open_loops)
        atexit.register(_close_open_loops)
    _open_loops.add(loop)
    return loop


_open_loops: weakref.WeakSet[Any] = weakref.WeakSet()


def _close_open_loops() -> None:
    """When the program ends, close the loops that were left early.

    Otherwise the interpreter closes them while it shuts down, where PyTorch aborts the process.
    """
    for loop in list(_open_loops):
        with suppress(ValueError):  # it is running: another thread still trains
            loop.close()


def _run(batches: Iterator[B], bags: LookaheadModule, depth: int, window: int, ids: Callable[[B], Any]) -> Iterator[B]:
    if not bags.training:
        yield from batches
        return
    thread = threading.get_ident()
    bags.close_lookahead()
    loop = _Loop(batches, bags, depth, ids)
    try:
        loop.open(depth, window)
        while True:
            found = loop.iterate(loop.read(window))
            if found is None:
                return
            yield found[0]
    finally:
        with suppress(ReferenceError):  # raised if the bags are collected with this generator: nothing is left to close
            # Python may collect a generator in any thread, and in the middle of a state change. In another thread than
            # the loop's, waiting for the lock could be a deadlock, because the loop's thread may wait for that thread.
            # In a forked process there is nothing to close: the loop belongs to the parent process.
            if bags.exclusive.is_forked:
                pass
            elif threading.get_ident() == thread and not bags.exclusive.is_entered:
                bags.close_lookahead(loop.close)
            else:
                bags.close_lookahead_later(loop.close)


class _Loop(Generic[B]):
    """One loop over the batches: those read ahead, and a window of tickets for each cache."""

    def __init__(self, batches: Iterator[B], bags: LookaheadModule, depth: int, ids: Callable[[B], Any]) -> None:
        self._batches = batches
        self._bags = bags
        self._ids = ids
        self._windows = [BatchWindow(scheduler, depth) for scheduler in bags.schedulers]
        self._read: deque[tuple[B, list[BatchTicket]]] = deque()  # batches that were read ahead, and their tickets
        self._failure: Exception | None = None  # raised once all batches that were read before it have trained
        self._is_exhausted = False
        self._is_closed = False

    def open(self, depth: int, window: int) -> None:
        """The loop begins."""
        with self._bags.exclusive:
            for scheduler in self._bags.schedulers:
                scheduler.announcements.open_loop(depth, window)
            self._bags.open_lookahead(self.close)

    def read(self, window: int) -> list[tuple[B, Any]]:
        """Read further batches, until `window` of them are known, and pick the ids of each."""
        found: list[tuple[B, Any]] = []
        while len(self._read) + len(found) < window and not self._is_exhausted:
            try:
                batch = next(self._batches)
                found.append((batch, self._ids(batch) if self._announces else _NO_IDS))
            except StopIteration:
                self._is_exhausted = True
            except Exception as error:
                self._fail(error)
        return found

    def iterate(self, further: list[tuple[B, Any]]) -> tuple[B, list[BatchTicket]] | None:
        """End the current iteration, announce further batches, and begin the next iteration.

        Returns:
            The batch of the next iteration and its tickets; None if there is no further batch.
        """
        with self._bags.exclusive:
            self._finish()
            for batch, ids in further:
                try:
                    self._read.append((batch, self._announce(ids)))
                except Exception as error:
                    self._fail(error)
                    break  # the loop ends with this error, so it never reaches the batches behind this one
            return self._begin()

    @property
    def _announces(self) -> bool:
        return not self._is_closed and self._bags.training

    def _fail(self, error: Exception) -> None:
        """Raise this error in the iteration of its batch, so that the batches before it train."""
        self._failure, self._is_exhausted = error, True

    def _announce(self, ids: Any) -> list[BatchTicket]:
        if ids is _NO_IDS or not self._announces:
            return []
        tickets = self._bags.announce(ids)
        for window, ticket in zip(self._windows, tickets, strict=True):
            window.announce(ticket)
        return tickets

    def _begin(self) -> tuple[B, list[BatchTicket]] | None:
        """The next batch, with its rows on the device or on their way."""
        if not self._read:
            if self._failure is not None:
                raise self._failure
            return None
        batch, tickets = self._read.popleft()
        if tickets and not self._is_closed:  # once the loop is closed, batches are planned when they are looked up
            for window in self._windows:
                window.next().check_ids()
            self._bags.set_current(tickets)
        return batch, tickets

    def _finish(self) -> None:
        """End the iteration of the current batch, if there is one."""
        if not self._is_closed:
            self._bags.set_current(None)
            for window in self._windows:
                window.finish()

    def close(self) -> None:
        """End the loop."""
        with self._bags.exclusive, ExitStack() as stack:
            self._is_closed = True
            self._bags.set_current(None)
            for window in self._windows:
                stack.callback(window.close)
