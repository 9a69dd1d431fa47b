"""When gradients become updates: one backward pass is one optimizer step.

The usual case, one forward pass per backward pass, updates the rows in their slots at once. Where several forward
passes are open, their gradients are added up by row until the backward pass ends (or until `accumulate` does).
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hotrows.cache.row_cache import RowCache
from hotrows.loop.ticket import Contribution, Flight, LookupGrads
from hotrows.runtime.streams import record_event


class OpenPass:
    """A forward pass whose backward pass has not come. Lives as long as its autograd graph."""

    def __init__(self, group: RowCache, flight: Flight) -> None:
        group.hold(flight)
        self.flight = flight
        self._end = weakref.finalize(self, group.abandon, flight)
        self._end.atexit = False

    def end(self, group: RowCache) -> None:
        """The backward pass has come; with `retain_graph` it may come again."""
        if self._end.detach():
            group.drop(self.flight)


class Updates:
    """The updates of one group."""

    def __init__(self, group: RowCache) -> None:
        self._group = group
        self._open: weakref.WeakSet[OpenPass] = weakref.WeakSet()
        self._gathered: list[Contribution] = []
        self._backward = -1  # the backward pass that they are of
        self.is_accumulating = False

    def open(self, flight: Flight) -> OpenPass:
        """A forward pass was made on a plan."""
        opened = OpenPass(self._group, flight)
        self._open.add(opened)
        return opened

    def reach(self, opened: OpenPass, flight: Flight, grads: LookupGrads) -> None:
        """The backward pass has come to a forward pass."""
        self._open.discard(opened)
        if flight.seat is not None and flight.landed and not self._group.has_seat(flight):
            raise RuntimeError(
                "a second backward pass through a batch whose turn is long over: its plan is gone; with retain_graph, "
                "call backward() again before the loop goes on"
            )
        if not self.is_accumulating and self._backward != _graph_task():
            self._gathered.clear()  # of a backward pass that failed
            self._backward = _graph_task()
        alone = not self.is_accumulating and not self._gathered and not self._open
        if alone and self._group.can_update_in_place(flight):
            self._group.update(flight, grads)
        else:
            by_row = grads.by_row(flight.plan.unique)
            rows = flight.named_rows[: by_row.shape[0]]
            if flight.seat is not None:
                rows = rows.clone()  # a seat is another batch's once this one has landed
            self._gathered.append(Contribution(rows, by_row))
            if len(self._gathered) == 1 and not self.is_accumulating:
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._apply)
        self._group.note_use(flight)
        opened.end(self._group)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        if self.is_accumulating:
            raise RuntimeError("accumulate() is open already: leave it before entering it again")
        self.is_accumulating = True
        try:
            yield
            self._apply()
        finally:
            self.is_accumulating = False
            self._gathered.clear()

    def _apply(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._group.update_together(gathered)


class CapturedUpdates:
    """The updates of one group in a recorded step: one forward pass, one backward pass, rows in their slots.

    Rows are updated in a stream of their own, beside what is left of the backward pass and the dense optimizers.

    Args:
        hyper: the optimizer's numbers on the device. pinned: where they are when the step is replayed.
    """

    def __init__(self, group: RowCache, hyper: Tensor, pinned: Tensor, stream: torch.cuda.Stream) -> None:
        self._group = group
        self._hyper = hyper
        self._pinned = pinned
        self._stream = stream
        self._in_use: list[LookupGrads] = []  # memory that the caller's stream must not get back before `join`
        self.num_passes = (0, 0)  # forward, backward

    def open(self, flight: Flight) -> None:
        begun = record_event(self._group.device)
        with torch.cuda.stream(self._stream):
            begun.wait()  # a recording begins with one kernel: two that begin at once are slower to start
            self._hyper.copy_(self._pinned, non_blocking=True)
        self.num_passes = (self.num_passes[0] + 1, self.num_passes[1])

    def reach(self, opened: None, flight: Flight, grads: LookupGrads) -> None:
        self.num_passes = (self.num_passes[0], self.num_passes[1] + 1)
        self._in_use.append(grads)
        ready = record_event(self._group.device)
        with torch.cuda.stream(self._stream):
            ready.wait()
            self._group.apply(flight.plan, grads, self._hyper)

    def join(self) -> None:
        """Let what the caller's stream does from now on happen after the updates, as far as they came."""
        if self.num_passes[0] > 0:
            with torch.cuda.stream(self._stream):
                done = record_event(self._group.device)
            done.wait()
        self._in_use.clear()


def _graph_task() -> int:
    """Number of the backward pass that is running, negative for none."""
    return int(torch._C._current_graph_task_id())
