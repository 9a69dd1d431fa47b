"""Several batches planned as one, outside the planning graph.

Batches that arrive one after the other share an announcement and a plan: the union of their rows is announced under one
number, and planned with one choice of victims and one run of moves. What training reads is made for each of them as if
it were alone, so the bits of a batch do not depend on the batches it was coalesced with.
"""

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

from hotrows.cache.planning.coalesce import union_of
from hotrows.loop.ticket import BatchTicket, CoalescedBatches
from hotrows.runtime.readback import Readback

if TYPE_CHECKING:  # the scheduler makes this object
    from hotrows.loop.scheduler import Scheduler


class Coalescing:
    """Gathers batches until there are enough of them to announce and plan together."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler: Scheduler = weakref.proxy(scheduler)  # no reference cycle: it is freed with its last user
        self._gathering: CoalescedBatches | None = None

    def open(self) -> None:
        """A loop begins. Batches that an interrupted loop left behind are not announced any more."""
        self._gathering = None

    def add(self, ticket: BatchTicket, num_batches: int) -> None:
        """Announce a batch together with others, once there are `num_batches`."""
        coalesced = self._gathering
        if coalesced is None:
            coalesced = self._gathering = CoalescedBatches(self._scheduler.announcements.next_batch_number())
        coalesced.tickets.append(ticket)
        ticket.coalesced = coalesced
        if len(coalesced.tickets) >= num_batches:
            self.flush()

    def flush(self) -> None:
        """Announce the gathered batches now."""
        coalesced, self._gathering = self._gathering, None
        if coalesced is None or coalesced.batch_number is None:
            return
        scheduler, number = self._scheduler, coalesced.batch_number
        uniques = [ticket.unique for ticket in coalesced.tickets]
        planner = scheduler.cache.planner

        def work() -> Tensor:
            coalesced.union, coalesced.parts = union_of(uniques)
            planner.announce(coalesced.union, number)
            return coalesced.union.num

        try:
            coalesced.unique_count, event = scheduler.streams.submit_plan_with_readback(work)
            scheduler.streams.keep_alive_until(coalesced, event)
            scheduler.announcements.count_later(coalesced)
        except BaseException:  # The policy does not know of these batches, and each is planned by itself.
            for ticket in coalesced.tickets:
                ticket.coalesced = None
            raise

    def separate(self, coalesced: CoalescedBatches) -> None:
        """Plan these batches one by one from now on. The policy no longer knows of them."""
        if coalesced is self._gathering:
            self._gathering = None
        number, coalesced.batch_number = coalesced.batch_number, None
        union = coalesced.union
        if number is not None and union is not None:
            planner, streams = self._scheduler.cache.planner, self._scheduler.streams
            event = streams.submit_plan(lambda: planner.withdraw(union, number))
            streams.keep_alive_until(coalesced, event)
        for ticket in coalesced.tickets:
            ticket.coalesced = None


def readback_of(announced: "BatchTicket | CoalescedBatches") -> Readback:
    """The readback of the number of unique rows of a batch, or of the union of coalesced batches."""
    assert announced.unique_count is not None
    return announced.unique_count
