"""The copies of rows without a slot: when they are read into the overflow buffer, and when they are written back."""

import weakref
from typing import TYPE_CHECKING

from hotrows.cache import overflow
from hotrows.loop.ticket import BatchTicket
from hotrows.runtime.streams import record_event

if TYPE_CHECKING:  # the scheduler makes this object
    from hotrows.loop.scheduler import Scheduler


class OverflowCopies:
    """The overflow copies of the batches of one cache."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler: Scheduler = weakref.proxy(scheduler)  # no reference cycle: it is freed with its last user
        self._unwritten: BatchTicket | None = None  # its copies may have been updated and not written back

    def read(self, ticket: BatchTicket, num: int) -> None:
        """Copy the rows of a plan that have no slot, `num` in all, behind the last slot."""
        scheduler, plan = self._scheduler, ticket.plan
        cache, streams = scheduler.cache, scheduler.streams
        assert plan is not None
        try:
            overflow.reserve(cache, streams, num)
        except BaseException:
            scheduler.release(ticket)  # its rows are where the index says; only the copies could not be made
            raise
        ticket.ready = streams.submit_move(lambda: cache.read_overflow(plan), (streams.last_plan,))

    def before_update(self, ticket: BatchTicket) -> None:
        """The copies of this batch are about to be updated, if it has any."""
        if ticket.overflows:
            self._unwritten = ticket

    def write_back(self) -> None:
        """Write the copies of the last update back to the store, if that has not been done.

        The scheduler calls this before it plans anything else, so that copies are also written back if a failure came
        between their update and the write-back. Copies that were not updated have the values of the store, so writing
        them back changes nothing.
        """
        ticket = self._unwritten
        if ticket is None:
            return
        cache, streams, plan = self._scheduler.cache, self._scheduler.streams, ticket.plan
        assert plan is not None
        assert ticket.counts is not None
        ticket.ready = streams.submit_move(
            lambda: cache.write_overflow(plan), (record_event(streams.device), streams.last_plan)
        )
        if ticket.is_released:  # after a failure; nothing else keeps the plan alive until the stream has read it
            streams.keep_alive_until(ticket, ticket.ready)
        cache.stats.bytes_out += ticket.counts.overflow * cache.record_bytes
        self._unwritten = None
