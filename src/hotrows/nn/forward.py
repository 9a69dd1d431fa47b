"""The forward pass of the embedding modules: find the ticket of the batch, wait for its rows, and pool them."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hotrows.cache.planning.protocol import Placement
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket
from hotrows.nn.accumulation import CapturedUpdates, GradientAccumulation, OptimizerStep, make_anchor
from hotrows.nn.autograd import PooledRows
from hotrows.nn.lookups import Lookups
from hotrows.nn.table_set import TableSet
from hotrows.runtime.cuda_private import run_first_in_backward
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.exclusive import Exclusive
from hotrows.runtime.streams import use_device

logger = logging.getLogger("hotrows")

CapturedParts = list[tuple[BatchTicket, CapturedUpdates]]


class ForwardPass:
    """Looks batches up in all table sets of a module.

    Attributes:
        current: the tickets of the batch whose iteration it is in `hotrows.lookahead`, one for each table set.
        step: the gradients that wait for the next optimizer step.
    """

    def __init__(self, sets: Sequence[TableSet], mode: str, device: torch.device, exclusive: Exclusive) -> None:
        self._sets = sets
        self._mode = mode
        self._device = device
        self._exclusive = exclusive
        self.step = OptimizerStep(exclusive)
        self._accumulations = [GradientAccumulation(each.scheduler, self.step, len(sets) == 1) for each in sets]
        self._anchor = make_anchor(self.step, device)
        self._trainer: int | None = None  # the thread of the last training forward pass
        self.current: list[BatchTicket] | None = None
        self._captured: CapturedParts | None = None
        self._captured_ids: list[Tensor] = []
        self._has_warned = False
        self._not_updated = _WarnOnce(
            "a backward pass went through embedding bags in eval mode, and has updated no rows: call train() on the "
            "bags to update them, or requires_grad_(False) if they are to stay as they are"
        )

    @property
    def is_captured(self) -> bool:
        """A captured training step calls the module now."""
        return self._captured is not None

    def announce(self, lookups: Sequence[Lookups]) -> list[BatchTicket]:
        """Announce a batch to every cache; one ticket each."""
        tickets: list[BatchTicket] = []
        try:
            for tables, part in zip(self._sets, lookups, strict=True):
                scheduler, ticket = tables.scheduler, None
                if part.columns is not None:
                    ticket = scheduler.announcements.announce_ids(part.key[0], part.columns, part.describe)
                if ticket is None:
                    ticket = scheduler.announcements.announce_rows(part.make, part.describe, part.key, to_policy=True)
                tickets.append(ticket)
        except BaseException:  # The other caches must not expect this batch.
            for tables, ticket in zip(self._sets, tickets, strict=False):
                tables.scheduler.announcements.withdraw(ticket)
            raise
        return tickets

    def pool(self, lookups: Sequence[Lookups], trains: bool, is_trainable: bool) -> list[Tensor]:
        """Pooled rows of each table set, float32 [bags, D].

        Args:
            trains: the backward pass will update the rows.
            is_trainable: if it does not train, because of eval mode, a backward pass warns that it updates no rows.
        """
        if self._captured is not None:
            return self._pool_captured(self._captured, lookups, trains)
        with self._exclusive, use_device(self._device):
            if trains:
                self._check_thread()
            tickets = self.current
            if tickets is not None and not _match(tickets, lookups):
                tickets = None
                if trains:
                    self._warn_of_other_ids()
            return [
                self._pool(
                    tables.scheduler,
                    part,
                    None if tickets is None else tickets[i],
                    updates if trains else None,
                    self._not_updated if is_trainable and not trains else None,
                )
                for i, (tables, part, updates) in enumerate(zip(self._sets, lookups, self._accumulations, strict=True))
            ]

    def output(self, pooled: Tensor) -> Tensor:
        """What the module returns for pooled rows.

        In a captured step, rows are updated as soon as their gradient is there, beside the rest of the backward pass.
        Elsewhere they are updated last if they were looked up first, so that a batch whose backward pass fails, as when
        memory runs out, has changed no row and can be tried again.
        """
        return run_first_in_backward(pooled) if self.is_captured else pooled

    @contextmanager
    def captured(self, parts: CapturedParts, ids: list[Tensor]) -> Iterator[None]:
        """Forward passes inside are those of a captured step on these plans.

        Args:
            ids: the tensors that stand for the planned ids.
        """
        self._captured, self._captured_ids = parts, ids
        try:
            yield
        finally:
            self._captured, self._captured_ids = None, []

    def _pool(
        self,
        scheduler: Scheduler,
        lookups: Lookups,
        current: BatchTicket | None,
        updates: GradientAccumulation | None,
        not_updated: Callable[[], None] | None,
    ) -> Tensor:
        ticket = self._planned(scheduler, lookups, current, trains=updates is not None)
        try:
            scheduler.acquire(ticket)
            anchor = self._anchor.detach() if updates is None and not_updated is None else self._anchor
            pooled: Tensor = PooledRows.apply(  # type: ignore[no-untyped-call]
                anchor, lookups.weights, scheduler, ticket, lookups.offsets, self._mode, updates, not_updated
            )
            scheduler.note_use(ticket)
            return pooled
        finally:
            scheduler.release(ticket)

    def _check_thread(self) -> None:
        """Raise if another thread is in the middle of a training step, or of a lookahead loop."""
        thread = threading.get_ident()
        if self._trainer != thread:
            is_busy = self.current is not None or any(updates.has_open_passes for updates in self._accumulations)
            if self._trainer is not None and is_busy:
                raise RuntimeError(
                    "two threads train these bags at the same time, which has no defined result: train in one thread, "
                    "and only read (torch.no_grad()) in others"
                )
            self._trainer = thread

    def _planned(
        self, scheduler: Scheduler, lookups: Lookups, current: BatchTicket | None, trains: bool
    ) -> BatchTicket:
        """A ticket with a plan, retained for this forward pass."""
        scheduler.bad_ids.check(wait=False)
        if current is not None and current.can_be_acquired:
            scheduler.retain(current)
            return current
        if current is None or current.is_released:
            ticket = scheduler.announcements.announce_rows(lookups.make, lookups.describe, lookups.key)
        else:
            ticket = scheduler.announcements.take_over(current) if trains else scheduler.announcements.copy_of(current)
        if self._device.type == "cpu":
            ticket.check_ids()
        else:
            scheduler.bad_ids.check_later(ticket)
        scheduler.plan_now(ticket, Placement.SPILL if trains else Placement.READ_ONLY)
        return ticket

    def _pool_captured(self, parts: CapturedParts, lookups: Sequence[Lookups], trains: bool) -> list[Tensor]:
        if not trains:
            raise RuntimeError("the bags are read, not trained, in a step")
        if not all(any(ids is known for known in self._captured_ids) for part in lookups for ids in part.key):
            raise RuntimeError("the bags are called with other ids than the batch's")
        return [
            PooledRows.apply(  # type: ignore[no-untyped-call]
                updates.anchor, None, tables.scheduler, ticket, None, self._mode, updates, None
            )
            for tables, (ticket, updates) in zip(self._sets, parts, strict=True)
        ]

    def _warn_of_other_ids(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the ids of this forward pass are not the tensor that lookahead() was given, so they are planned in "
                "this iteration: pass the ids of the batch as they came, or change them before lookahead()"
            )


class _WarnOnce:
    """Logs a warning at the first call."""

    def __init__(self, message: str) -> None:
        self._message: str | None = message

    def __call__(self) -> None:
        message, self._message = self._message, None
        if message is not None:
            logger.warning(message)


class OpenLoop:
    """The loop of `hotrows.lookahead` that is open on a module: there can be one at a time."""

    def __init__(self) -> None:
        self._close: Callable[[], None] | None = None
        self._to_close: deque[Callable[[], None]] = deque()

    def close_later(self, close: Callable[[], None]) -> None:
        """A loop was collected in another thread, which must not wait for the thread that uses the module."""
        self._to_close.append(close)

    def close_pending(self) -> None:
        """End the loops that another thread could not end."""
        while self._to_close:
            with defer_sigint():  # a loop that is taken off the list must also be closed
                self.close(self._to_close.popleft())

    def open(self, close: Callable[[], None]) -> None:
        """A loop begins; `close` ends it."""
        self._close = close

    def close(self, close: Callable[[], None] | None = None) -> None:
        """End the open loop; if `close` is given, only the loop that this function ends."""
        with defer_sigint():
            opened = self._close
            if opened is not None and close in (None, opened):
                self._close = None
                opened()


def _match(tickets: Sequence[BatchTicket], lookups: Sequence[Lookups]) -> bool:
    """The tickets are those of a batch with these ids."""
    for ticket, part in zip(tickets, lookups, strict=True):  # noqa: SIM110  (a generator is slower)
        if not ticket.matches(part.key):
            return False
    return True
