"""When gradients become updates: one backward pass is one optimizer step.

In the usual case, one forward pass per backward pass, the rows are updated in their slots at once. If several forward
passes are open, their gradients are gathered by row until the backward pass ends (or until `accumulate` ends).
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hotrows.cache.row_updater import LookupGrads
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket
from hotrows.loop.ticket_updates import Contribution, can_update_in_place, update, update_together
from hotrows.runtime import cuda_private
from hotrows.runtime.streams import record_event


class OpenPass:
    """A forward pass that a backward pass may reach. It lives as long as its autograd graph."""

    def __init__(self, scheduler: Scheduler, ticket: BatchTicket) -> None:
        scheduler.retain(ticket)
        self._end = weakref.finalize(self, scheduler.release_later, ticket)
        self._end.atexit = False

    def end(self, scheduler: Scheduler, ticket: BatchTicket) -> bool:
        """The backward pass has reached this forward pass. False if that happened before, as with `retain_graph`."""
        if self._end.detach() is None:
            return False
        scheduler.release(ticket)
        return True

    @property
    def has_ended(self) -> bool:
        return not self._end.alive


class GradientAccumulation:
    """The gradients of the rows of one cache on their way to the row optimizer."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._open: weakref.WeakSet[OpenPass] = weakref.WeakSet()
        self._kept: weakref.WeakSet[OpenPass] = weakref.WeakSet()  # reached, and their graphs were kept
        self._gathered: list[Contribution] = []
        self._backward_pass: int | None = None  # in which they were gathered
        self.is_accumulating = False

    @property
    def has_open_passes(self) -> bool:
        """The backward pass of some forward pass has not run, and its autograd graph is alive."""
        return len(self._open) > 0

    def open(self, ticket: BatchTicket) -> OpenPass:
        """A forward pass has read the rows of a ticket."""
        opened = OpenPass(self._scheduler, ticket)
        self._open.add(opened)
        return opened

    def reach(self, opened: OpenPass, ticket: BatchTicket, grads: LookupGrads) -> Tensor | None:
        """The backward pass has reached a forward pass.

        Returns:
            The gradient of the anchor. None, unless private calls are switched off: then the anchor's gradient counts
            the forward passes that this backward pass has reached.
        """
        scheduler = self._scheduler
        self._open.discard(opened)
        self._kept.discard(opened)
        if (
            ticket.plan_buffer is not None
            and ticket.is_released
            and not scheduler.graph_planning.has_plan_buffer(ticket)
        ):
            raise RuntimeError(
                "a second backward pass through a batch whose iteration ended long ago: its plan is gone; with "
                "retain_graph, call backward() again before the loop goes on"
            )
        backward_pass = cuda_private.backward_pass_number()
        if not self.is_accumulating and self._backward_pass != backward_pass:
            self._gathered.clear()  # of a backward pass that failed
            self._backward_pass = backward_pass
        # A forward pass that is reached again may not be the only one of this backward pass, although none is open.
        is_alone = not (self.is_accumulating or self._gathered or self._open or opened.has_ended)
        is_alone = is_alone and not self._kept  # this backward pass may be about to reach them again
        if cuda_private.keeps_graph():
            self._kept.add(opened)
        with scheduler.exclusive:
            if is_alone and can_update_in_place(scheduler, ticket):
                update(scheduler, ticket, grads)
            else:
                self._gather(ticket, grads)
            scheduler.note_use(ticket)
            opened.end(scheduler, ticket)
        return torch.ones((), dtype=torch.float32, device=scheduler.device) if cuda_private.SAFE else None

    def _gather(self, ticket: BatchTicket, grads: LookupGrads) -> None:
        assert ticket.plan is not None
        by_row = grads.by_row(ticket.plan.unique)
        rows = ticket.planned_rows[: by_row.shape[0]]
        if ticket.plan_buffer is not None:
            rows = rows.clone()  # the plan buffer belongs to another batch once this one is released
        self._gathered.append(Contribution(ticket, rows, by_row))
        if len(self._gathered) == 1 and not self.is_accumulating:
            cuda_private.call_after_backward(self._apply)  # with private calls switched off, the anchor's hook does

    def end_backward_pass(self, num_reached: int) -> None:
        """Apply what the last `num_reached` forward passes have gathered. Earlier ones are of a pass that failed."""
        if self._gathered and not self.is_accumulating:
            del self._gathered[:-num_reached]
            self._apply()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Gather the gradients of all backward passes inside, and apply them as one optimizer step at the end."""
        if self.is_accumulating:
            raise RuntimeError("accumulate() is open already: leave it before entering it again")
        self._gathered.clear()  # of a backward pass that failed
        self.is_accumulating = True
        try:
            yield
            self._apply()
        finally:
            self.is_accumulating = False
            self._gathered.clear()

    def _apply(self) -> None:
        with self._scheduler.exclusive:
            gathered, self._gathered = self._gathered, []
            if gathered:
                update_together(self._scheduler, gathered)


def make_anchor(accumulation: GradientAccumulation, device: torch.device) -> Tensor:
    """An input of every forward pass that requires grad, because rows are no parameters and autograd must call back.

    Nothing that an autograd graph holds may refer to the anchor. PyTorch aborts the process if the interpreter shuts
    down while such a cycle through a graph is alive.
    """
    anchor = torch.zeros((), dtype=torch.float32, device=device, requires_grad=True)
    if cuda_private.SAFE:
        held = weakref.ref(accumulation)
        register: Any = anchor.register_post_accumulate_grad_hook
        register(lambda anchor: _end_backward_pass(held(), anchor))
    return anchor


def _end_backward_pass(accumulation: GradientAccumulation | None, anchor: Tensor) -> None:
    """Every forward pass of the backward pass has been reached: autograd adds up the anchor's gradient after them."""
    assert anchor.grad is not None
    num_reached, anchor.grad = int(anchor.grad), None
    if accumulation is not None:
        accumulation.end_backward_pass(num_reached)


class CapturedUpdates:
    """The updates of one cache in a captured step: one forward pass, one backward pass, and rows in their slots.

    Rows are updated in a stream of their own, beside the rest of the backward pass and the dense optimizers.

    Args:
        hyper: the optimizer's numbers on the device.
        pinned: host memory where a replay finds these numbers.
    """

    def __init__(self, scheduler: Scheduler, hyper: Tensor, pinned: Tensor, stream: torch.cuda.Stream) -> None:
        self._scheduler = scheduler
        self._hyper = hyper
        self._pinned = pinned
        self._stream = stream
        self._in_use: list[LookupGrads] = []  # memory that the caller's stream must not reuse before `join`
        self.anchor = torch.zeros((), dtype=torch.float32, device=scheduler.device, requires_grad=True)
        self.num_passes = (0, 0)  # forward, backward

    def open(self, ticket: BatchTicket) -> None:
        """A forward pass has read the rows of a ticket."""
        begun = record_event(self._scheduler.device)
        with torch.cuda.stream(self._stream):
            begun.wait()  # A graph begins with one kernel, because two that begin at once start later.
            self._hyper.copy_(self._pinned, non_blocking=True)
        self.num_passes = (self.num_passes[0] + 1, self.num_passes[1])

    def reach(self, opened: None, ticket: BatchTicket, grads: LookupGrads) -> None:
        """The backward pass has reached the forward pass."""
        assert ticket.plan is not None
        self.num_passes = (self.num_passes[0], self.num_passes[1] + 1)
        self._in_use.append(grads)
        ready = record_event(self._scheduler.device)
        with torch.cuda.stream(self._stream):
            ready.wait()
            self._scheduler.updater.apply(ticket.plan, grads, self._hyper)

    def join(self) -> None:
        """Order what the caller's stream does from now on behind the updates, as far as there are any."""
        if self.num_passes[0] > 0:
            with torch.cuda.stream(self._stream):
                done = record_event(self._scheduler.device)
            done.wait()
        self._in_use.clear()
