"""When gradients become updates: one backward pass is one optimizer step.

In the usual case, one cache and one forward pass per backward pass, the rows are updated in their slots at once. If a
module has several caches, they are all updated when the backward pass ends, so that no reader finds only some of them
updated. If several forward passes are open, their gradients are gathered by row until the backward pass ends (or until
`accumulate` ends).
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.cache.row_updater import LookupGrads
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket
from hotrows.loop.ticket_updates import Contribution, can_update_in_place, update, update_together
from hotrows.runtime import cuda_private
from hotrows.runtime.exclusive import Exclusive
from hotrows.runtime.streams import Event, record_event


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


@dataclass(frozen=True)
class Reached:
    """A forward pass that a backward pass has reached, and whose gradients are not applied yet.

    Args:
        contribution: makes its gradients by row, to be applied together with others.
        update: updates its rows in their slots and returns True, or False if they are elsewhere by now. None if the
            gradients of the cache must be added up first.
        done: the gradients are there.
    """

    scheduler: Scheduler
    contribution: Callable[[], Contribution]
    update: Callable[[], bool] | None
    done: Event


class OptimizerStep:
    """The gradients of the next optimizer step of a module: what its backward pass has reached so far."""

    def __init__(self, exclusive: Exclusive) -> None:
        self._exclusive = exclusive
        self._reached: list[Reached] = []
        self._backward_pass: int | None = None  # in which they were reached
        self.is_accumulating = False

    def begin(self) -> None:
        """A backward pass reaches a forward pass: forget what an earlier backward pass that failed has reached."""
        backward_pass = cuda_private.backward_pass_number()
        if not self.is_accumulating and self._backward_pass != backward_pass:
            self._reached.clear()  # of a backward pass that failed
            self._backward_pass = backward_pass

    def forget_failed(self) -> None:
        """A forward pass begins. If no backward pass is running, one that has left something here has failed."""
        if self._reached and not self.is_accumulating:
            backward_pass = cuda_private.backward_pass_number()
            if backward_pass is not None and backward_pass < 0:
                self._reached.clear()

    def has_reached(self, scheduler: Scheduler) -> bool:
        """Gradients of a cache wait to be applied."""
        return any(each.scheduler is scheduler for each in self._reached)

    def add(self, reached: Reached) -> None:
        """Apply these gradients when the backward pass ends, or `accumulate`."""
        self._reached.append(reached)
        if len(self._reached) == 1 and not self.is_accumulating:
            cuda_private.call_after_backward(self._apply)  # with private calls switched off, the anchor's hook does

    def end_backward_pass(self, num_reached: int) -> None:
        """Apply what the last `num_reached` forward passes have left. Earlier ones are of a pass that failed."""
        if self._reached and not self.is_accumulating:
            del self._reached[:-num_reached]
            self._apply()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Gather the gradients of all backward passes inside, and apply them as one optimizer step at the end."""
        if self.is_accumulating:
            raise RuntimeError("accumulate() is open already: leave it before entering it again")
        self._reached.clear()  # of a backward pass that failed
        self.is_accumulating = True
        try:
            yield
            self._apply()
        finally:
            self.is_accumulating = False
            self._reached.clear()

    @cuda_private.graph_break
    def _apply(self) -> None:
        with self._exclusive:  # around the updates of all caches: a reader must not come between two of them
            reached, self._reached = self._reached, []
            for scheduler in dict.fromkeys(each.scheduler for each in reached):
                parts = [each for each in reached if each.scheduler is scheduler]
                for each in parts:
                    each.done.wait()
                if parts[0].update is None or not parts[0].update():
                    update_together(scheduler, [each.contribution() for each in parts])
                scheduler.streams.keep_alive_until(parts, record_event(scheduler.device))


class GradientAccumulation:
    """The gradients of the rows of one cache on their way to the row optimizer.

    Args:
        step: the optimizer step of all caches of the module.
        is_only: the module has no other cache.
    """

    def __init__(self, scheduler: Scheduler, step: OptimizerStep, is_only: bool) -> None:
        self._scheduler = scheduler
        self._step = step
        self._is_only = is_only
        self._open: weakref.WeakSet[OpenPass] = weakref.WeakSet()
        self._kept: weakref.WeakSet[OpenPass] = weakref.WeakSet()  # reached, and their graphs were kept

    @property
    def has_open_passes(self) -> bool:
        """The backward pass of some forward pass has not run, and its autograd graph is alive."""
        return len(self._open) > 0

    def open(self, ticket: BatchTicket) -> OpenPass:
        """A forward pass has read the rows of a ticket."""
        self._step.forget_failed()
        opened = OpenPass(self._scheduler, ticket)
        self._open.add(opened)
        return opened

    def reach(self, opened: OpenPass, ticket: BatchTicket, grads: LookupGrads) -> Tensor | None:
        """The backward pass has reached a forward pass.

        Returns:
            The gradient of the anchor. None, unless private calls are switched off: then the anchor's gradient counts
            the forward passes that this backward pass has reached.
        """
        scheduler, step = self._scheduler, self._step
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
        step.begin()
        # A forward pass that is reached again may not be the only one of this backward pass, although none is open.
        is_alone = not (step.is_accumulating or self._open or opened.has_ended)
        is_alone = is_alone and not step.has_reached(scheduler)
        is_alone = is_alone and not self._kept  # this backward pass may be about to reach them again
        if cuda_private.keeps_graph():
            self._kept.add(opened)
        with scheduler.exclusive:
            if not is_alone:
                self._gather(ticket, grads)
                self._end(opened, ticket)
            elif self._is_only and can_update_in_place(scheduler, ticket):
                update(scheduler, ticket, grads)
                self._end(opened, ticket)
            else:
                self._wait(opened, ticket, grads)
        return torch.ones((), dtype=torch.float32, device=scheduler.device) if cuda_private.SAFE else None

    def _end(self, opened: OpenPass, ticket: BatchTicket) -> None:
        self._scheduler.note_use(ticket)
        opened.end(self._scheduler, ticket)

    def _gather(self, ticket: BatchTicket, grads: LookupGrads) -> None:
        """Add up the gradients by row now, so that neither the plan nor the slots are needed any more."""
        contribution = _contribution(ticket, grads)
        self._step.add(Reached(self._scheduler, lambda: contribution, None, record_event(self._scheduler.device)))

    def _wait(self, opened: OpenPass, ticket: BatchTicket, grads: LookupGrads) -> None:
        """Retain the ticket until the backward pass ends, and update the rows then."""
        scheduler = self._scheduler

        def update_in_place() -> bool:
            if not can_update_in_place(scheduler, ticket):
                return False
            update(scheduler, ticket, grads)
            self._end(opened, ticket)
            return True

        def contribution() -> Contribution:
            found = _contribution(ticket, grads)
            self._end(opened, ticket)
            return found

        self._step.add(Reached(scheduler, contribution, update_in_place, record_event(scheduler.device)))


def _contribution(ticket: BatchTicket, grads: LookupGrads) -> Contribution:
    assert ticket.plan is not None
    by_row = grads.by_row(ticket.plan.unique)
    rows = ticket.planned_rows[: by_row.shape[0]]
    if ticket.plan_buffer is not None:
        rows = rows.clone()  # the plan buffer belongs to another batch once this one is released
    return Contribution(ticket, rows, by_row)


def make_anchor(step: OptimizerStep, device: torch.device) -> Tensor:
    """An input of every forward pass that requires grad, because rows are no parameters and autograd must call back.

    Nothing that an autograd graph holds may refer to the anchor. PyTorch aborts the process if the interpreter shuts
    down while such a cycle through a graph is alive.
    """
    anchor = torch.zeros((), dtype=torch.float32, device=device, requires_grad=True)
    if cuda_private.SAFE:
        held = weakref.ref(step)
        register: Any = anchor.register_post_accumulate_grad_hook
        register(lambda anchor: _end_backward_pass(held(), anchor))
    return anchor


@cuda_private.graph_break
def _end_backward_pass(step: OptimizerStep | None, anchor: Tensor) -> None:
    """Every forward pass of the backward pass has been reached: autograd adds up the anchor's gradient after them."""
    if anchor.grad is None:
        return  # All forward passes of it were in eval mode.
    num_reached, anchor.grad = int(anchor.grad), None
    if step is not None:
        step.end_backward_pass(num_reached)


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
