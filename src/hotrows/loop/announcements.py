"""Announcements: the tickets of batches before they are planned, and what the policy is told about them.

A batch is announced alone, or coalesced with others: outside of the planning graph by `Coalescing`, in it by
`GraphPlanning`.
"""

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from hotrows.cache.planning.id_columns import IdColumns
from hotrows.loop.coalescing import Coalescing, readback_of
from hotrows.loop.ticket import BatchTicket, CheckedRows, CoalescedBatches, TicketState
from hotrows.ops.unique import UniqueRows
from hotrows.runtime.readback import Readback, start_readback
from hotrows.runtime.streams import record_event

if TYPE_CHECKING:  # the scheduler makes this object
    from hotrows.loop.scheduler import Scheduler


class Announcements:
    """Makes the tickets of one cache.

    Attributes:
        is_separate: True once coalesced batches had no room as one plan: from then on this loop plans batches one by
            one.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler: Scheduler = weakref.proxy(scheduler)  # no reference cycle: it is freed with its last user
        self._coalescing = Coalescing(scheduler)
        self.is_separate = False
        self._uncounted: deque[BatchTicket | CoalescedBatches] = deque()
        self._next_batch_number = 0

    def open_loop(self, depth: int, window: int) -> None:
        """A loop begins that looks this far ahead."""
        self.is_separate = False
        self._coalescing.open()
        self._scheduler.graph_planning.open(depth, window)

    def announce_rows(
        self,
        make: Callable[[], CheckedRows],
        describe: Callable[[list[int]], str] | None = None,
        ids: tuple[Tensor, ...] = (),
        to_policy: bool = False,
    ) -> BatchTicket:
        """Find the unique rows of a batch in the planning stream.

        Args:
            make: makes the rows from tensors of the caller's stream, and keeps these tensors alive.
            describe: makes the error message from the numbers in `CheckedRows.bad`.
            ids: the user's tensors from which the rows are computed: ids, or the values and lengths of a `Jagged`.
            to_policy: also tell the policy that the batch will come.
        """
        scheduler = self._scheduler
        scheduler.catch_up()
        num_coalesced = 1 if self.is_separate else scheduler.coalesce or 1
        number = None
        if to_policy:
            scheduler.graph_planning.flush_announcement()  # batches are announced in their order
            if num_coalesced == 1:
                self._coalescing.flush()
                number = self.next_batch_number()
        cache, found = scheduler.cache, list[tuple[UniqueRows, Tensor | None, Readback | None]]()

        def work() -> Tensor:
            checked = make()
            unique, by_table = cache.find_unique(checked.rows)
            if number is not None:
                cache.planner.announce(unique, number)
            found.append((unique, by_table, None if checked.bad is None else start_readback(checked.bad)))
            return unique.num

        unique_count, event = scheduler.streams.submit_plan_with_readback(work, [record_event(scheduler.device)])
        unique, by_table, bad = found[0]
        if bad is not None:
            bad.completes_at(event)
        ticket = BatchTicket(unique, ids, unique_count, bad, describe, by_table, number, event)
        scheduler.streams.keep_alive_until((ticket, make), event)
        if to_policy and num_coalesced > 1:
            self._coalescing.add(ticket, num_coalesced)
        elif to_policy:
            self.count_later(ticket)
        return ticket

    def announce_ids(self, ids: Tensor, columns: IdColumns, describe: Callable[[list[int]], str]) -> BatchTicket | None:
        """Announce a batch of one id per bag in the planning graph; None if the graph does not take this batch."""
        scheduler = self._scheduler
        return scheduler.graph_planning.announce(ids, columns, describe) if scheduler.uses_graph else None

    def copy_of(self, ticket: BatchTicket) -> BatchTicket:
        """A ticket of the same batch, to be planned once more. The copy is not announced to the policy."""
        self.separate(ticket)
        return BatchTicket(
            ticket.unique, ticket.ids, ticket.unique_count, ticket.bad_id, ticket.describe, ticket.rows_by_table,
            announced=ticket.announced, checked=ticket.checked,
        )  # fmt: skip

    def take_over(self, ticket: BatchTicket) -> BatchTicket:
        """A ticket of the same batch, to be planned instead of the given one.

        It takes over the batch number. The given ticket keeps its state, ANNOUNCED, and is released without a plan.
        """
        taken = self.copy_of(ticket)
        taken.batch_number, ticket.batch_number = ticket.batch_number, None
        return taken

    def withdraw(self, ticket: BatchTicket) -> None:
        """An announced batch will not be planned."""
        scheduler = self._scheduler
        self.separate(ticket)
        if ticket.batch_number is not None:
            number, ticket.batch_number = ticket.batch_number, None
            planner = scheduler.cache.planner
            event = scheduler.streams.submit_plan(lambda: planner.withdraw(ticket.unique, number))
            scheduler.streams.keep_alive_until(ticket, event)
        ticket.move_to(TicketState.RELEASED)

    def separate(self, ticket: BatchTicket) -> None:
        """Take a ticket out of the batches it was coalesced with: each is planned by itself from now on."""
        if ticket.coalesced is None:
            return
        if ticket.coalesced.request_buffer >= 0:
            self._scheduler.graph_planning.separate(ticket)
        else:
            self._coalescing.separate(ticket.coalesced)

    def stop_coalescing(self, ticket: BatchTicket) -> None:
        """Coalesced batches had no room as one plan: in this loop, plan batches one by one from now on."""
        if ticket.coalesced is not None and len(ticket.coalesced.tickets) > 1:
            self.separate(ticket)
            self.is_separate = True

    def next_batch_number(self) -> int:
        """The number under which the next batch is announced to the policy."""
        self._next_batch_number += 1
        return self._next_batch_number - 1

    def count_later(self, announced: BatchTicket | CoalescedBatches) -> None:
        """Tell the policy the number of unique rows once it is read back."""
        self._uncounted.append(announced)

    def note_unique_counts(self, wait: bool) -> None:
        """Tell the policy the numbers of unique rows that have arrived, or with `wait`, of all announced batches."""
        while self._uncounted:
            announced = self._uncounted[0]
            readback = readback_of(announced)
            found = readback.result() if wait else readback.poll()
            if found is None:
                return
            self._uncounted.popleft()
            if announced.batch_number is not None:
                self._scheduler.cache.planner.note_unique_count(announced.batch_number, found[0])

    def flush(self) -> None:
        """Announce the batches that wait for others to be coalesced with."""
        self._coalescing.flush()
