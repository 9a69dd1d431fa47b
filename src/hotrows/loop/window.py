"""The batches that one loop has announced to one cache, which are planned ahead of their iterations."""

from collections import deque
from contextlib import ExitStack

from hotrows.loop.depth_controller import READBACK_LAG, DepthController
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket, PlannedAhead, TicketState
from hotrows.loop.ticket_updates import read_early


class BatchWindow:
    """The tickets of the batches that one loop has announced to one cache, until the end of their iterations.

    Args:
        depth: how many batches after the current one have their rows in the cache or on the way there.
    """

    def __init__(self, scheduler: Scheduler, depth: int) -> None:
        self._scheduler = scheduler
        self._depth = depth
        self.controller = DepthController(depth)
        self._to_come: deque[BatchTicket] = deque()
        self._iteration = 0
        self._current: BatchTicket | None = None
        self._last: BatchTicket | None = None  # has trained, and stays in flight for one more iteration

    def announce(self, ticket: BatchTicket) -> None:
        """Add a batch behind all announced before."""
        self._to_come.append(ticket)

    def next(self) -> BatchTicket:
        """Begin the next iteration, and return the ticket of its batch.

        The ticket is still ANNOUNCED if the batch does not fit the cache. The forward pass then plans it.
        """
        if self._current is not None:
            self.finish()
        self._iteration += 1
        self.controller.begin_iteration()
        self._plan_ahead()
        self._scheduler.graph_planning.end_iteration()
        self._current = self._to_come.popleft()
        if self._scheduler.stale_reads is not None and self._to_come and _is_resolved(self._to_come[0]):
            read_early(self._scheduler, self._to_come[0])
        return self._current

    def finish(self) -> None:
        """The iteration of the current batch is over.

        A ticket with a plan buffer stays in flight for one more iteration if there is room. So the plans of the next
        iteration wait only for the batches before this one, and can run while this one still trains on the device.
        """
        if self._current is None:
            return
        ticket, self._current = self._current, None
        self._release_last()
        if ticket.state is TicketState.ANNOUNCED:
            self._scheduler.announcements.withdraw(ticket)  # nobody looked it up
        elif ticket.state is TicketState.READY:
            ticket.move_to(TicketState.TRAINED)
            if ticket.plan_buffer is not None and self._depth > 0 and self.controller.retains_last:
                self._last = ticket
            else:
                self._scheduler.release(ticket)

    def close(self) -> None:
        """Give up the announced batches. Rows that are on their way still arrive in the cache."""
        with ExitStack() as stack:  # if one of these fails, the others are carried out nevertheless
            while self._to_come:
                stack.callback(self._give_up, self._to_come.pop())
            stack.callback(self._release_last)
            stack.callback(self.finish)

    def _give_up(self, ticket: BatchTicket) -> None:
        """A batch that was announced does not come."""
        if ticket.state is TicketState.PLANNED:
            self._scheduler.resolve(ticket)
        if ticket.state is TicketState.REJECTED:
            self._plan_again(ticket)
        if ticket.state is TicketState.READY:
            assert ticket.counts is not None
            self._scheduler.cache.uncount_batch(ticket.counts)
            self._scheduler.release(ticket)
        else:
            self._scheduler.announcements.withdraw(ticket)

    def _plan_ahead(self) -> None:
        """Resolve the plans that are due. Then plan the batch of this iteration, and further ones ahead of theirs."""
        to_come = self._to_come
        self._resolve_due()
        self.controller.start_probe(any(ticket.ahead and ticket.ahead.probe for ticket in to_come))
        # The host learns whether a plan fits READBACK_LAG iterations after a graph made it, or one iteration after an
        # eager plan. Plan that much further ahead, so that it is known when the batch is `depth` ahead.
        furthest = self._depth + (READBACK_LAG if to_come and to_come[0].plan_buffer is not None else 1)
        for distance, ticket in enumerate(to_come):
            if distance > 0 and ticket.plan is not None:
                if ticket.ahead is not None and ticket.ahead.probe is not None:
                    return  # nothing is planned behind an unresolved probe
                continue
            if distance > furthest:
                return
            if distance > self.controller.depth and not self._scheduler.surely_fits(ticket):
                return
            if ticket.error is not None:
                if distance > 0:
                    return  # the batches before it train first
                raise RuntimeError("announcing this batch ahead of its iteration failed") from ticket.error
            if distance == 0 and ticket.ahead is not None:
                self._resolve(ticket)
            if not self._plan_until_known(ticket, distance):
                return

    def _resolve_due(self) -> None:
        for ticket in self._to_come:
            if ticket.plan is None:
                return
            ahead = ticket.ahead
            if ahead is None:
                continue
            lag = 1 if ticket.plan_buffer is None else self.controller.readback_lag(ahead.probe, ahead.distance)
            if ahead.iteration <= self._iteration - lag:
                self._resolve(ticket)

    def _plan_until_known(self, ticket: BatchTicket, distance: int) -> bool:
        """Plan a batch. If its plan is resolved here and rejected, plan it again where that may help.

        The second plan searches all slots for victims. A further one is made once the batch that has just trained is
        released.

        Returns:
            False if no batch behind this one may be planned in this iteration.
        """
        while ticket.plan is None:
            self._plan(distance)
            assert ticket.plan is not None
            assert ticket.ahead is not None
            if distance > self._depth or (distance > 0 and ticket.plan_buffer is not None):
                return ticket.ahead.probe is None  # the plan is resolved in a later iteration
            scanned_all, beside_last = ticket.plan.scanned_all, ticket.ahead.beside_last
            if not self._resolve(ticket) and scanned_all:
                if not beside_last:
                    return False
                self._release_last()  # and plan again
        return True

    def _plan(self, distance: int) -> None:
        """Plan the batch at this distance, and those it is coalesced with, which come right after it."""
        beside_last = self._last is not None
        probe = self.controller.probe_of(distance, beside_last)
        for ticket in self._scheduler.plan_ahead(self._to_come[distance], soon=distance <= 1):
            if distance >= len(self._to_come) or self._to_come[distance] is not ticket:
                # This batch is not in the window: announcing it failed half-way, so it is never trained.
                self._scheduler.resolve(ticket)
                if ticket.state is TicketState.READY:
                    self._scheduler.release(ticket)
                else:
                    self._scheduler.plan_again(ticket)
                continue
            ticket.ahead = PlannedAhead(self._iteration, distance, beside_last, probe)
            distance += 1

    def _resolve(self, ticket: BatchTicket) -> bool:
        """Read back whether a plan fits. If it does not, make the batch plannable again."""
        ahead, ticket.ahead = ticket.ahead, None
        assert ahead is not None
        assert ticket.plan is not None
        scanned_all = ticket.plan.scanned_all
        if self._scheduler.resolve(ticket):
            self.controller.fitted(ahead.probe, ahead.distance)
            return True
        self._plan_again(ticket)
        if scanned_all:
            self._scheduler.announcements.stop_coalescing(ticket)
            self.controller.rejected(ahead.probe, ahead.distance, ahead.beside_last)
            if not self.controller.retains_last:
                self._release_last()
        return False

    def _plan_again(self, ticket: BatchTicket) -> None:
        """Make a rejected batch plannable again, and the batches coalesced with it, whose plans were rejected too."""
        self._scheduler.plan_again(ticket)
        for other in self._to_come:
            is_coalesced = ticket.coalesced is not None and other.coalesced is ticket.coalesced
            if is_coalesced and other.plan is not None:
                self._scheduler.resolve(other)
                self._scheduler.plan_again(other)

    def _release_last(self) -> None:
        """Release the batch before the current one."""
        if self._last is not None:
            last, self._last = self._last, None
            self._scheduler.release(last)


def _is_resolved(ticket: BatchTicket) -> bool:
    return ticket.plan is not None and ticket.ahead is None
