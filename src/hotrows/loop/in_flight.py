"""Which batches are in flight: planned, and not released yet. Their slots must not be evicted (rule 3)."""

from collections import deque
from collections.abc import Iterator, Sequence

import torch

from hotrows.loop.ticket import BatchTicket
from hotrows.runtime.streams import Event, record_event


class InFlight:
    """The tickets in flight of one cache, and what the host knows about their slots."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._num_slots = num_slots
        self._tickets: dict[int, BatchTicket] = {}  # by plan number, ascending
        # (plan number, upper bound on its slots) for every plan since the oldest one in flight, also for plans that
        # were released or rejected meanwhile. None of these slots may be evicted.
        self._protected: deque[tuple[int, int]] = deque()
        # The last uses of released batches. The moves of the next plan wait for them before they overwrite a slot.
        self.released: list[Event] = [record_event(device)]

    def __iter__(self) -> Iterator[BatchTicket]:
        return iter(self._tickets.values())

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: BatchTicket) -> bool:
        return ticket.plan is not None and self._tickets.get(ticket.plan.plan_number) is ticket

    @property
    def oldest(self) -> int | None:
        """The lowest plan number in flight."""
        return next(iter(self._tickets), None)

    def add(self, tickets: Sequence[BatchTicket], takes_slots: bool) -> None:
        """Put the tickets of a batch, or of coalesced batches, in flight.

        Call it while `oldest` is still what it was when these tickets were planned.

        Args:
            takes_slots: false for a READ_ONLY plan: it gives no row a slot, and is released before the next plan.
        """
        plans = [ticket.plan for ticket in tickets if ticket.plan is not None]
        if takes_slots:  # first, because a failure in between must not leave a ticket whose slots are not counted
            self._protected.append((plans[-1].plan_number, sum(plan.row_slots.numel() for plan in plans)))
            since = plans[0].plan_number if self.oldest is None else self.oldest
            while self._protected[0][0] < since:
                self._protected.popleft()
        self._tickets.update({plan.plan_number: ticket for plan, ticket in zip(plans, tickets, strict=True)})

    def note_failed_plan(self, plan_number: int) -> None:
        """Planning has failed half-way. Any slot may count as used by this plan now, and that is not undone."""
        self._protected.append((plan_number, self._num_slots))

    def remove(self, ticket: BatchTicket, last_uses: Sequence[Event] = ()) -> None:
        """Take out a ticket that was rejected or released. Does nothing if it is not in flight.

        Args:
            last_uses: events behind the last uses of a released ticket's slots.
        """
        assert ticket.plan is not None
        self._tickets.pop(ticket.plan.plan_number, None)
        if last_uses:
            self.released = [event for event in self.released if not event.query()] + list(last_uses)

    def surely_fits(self, num_rows: int, num_pinned: int, next_plan: int) -> bool:
        """True if a plan of at most this many rows is certain to fit beside those in flight, without any readback.

        That holds for an index that gives a row any slot, and a plan that searches all slots for victims.
        """
        oldest = next_plan if self.oldest is None else self.oldest
        protected = sum(num for plan, num in self._protected if plan >= oldest)
        return protected + num_rows + num_pinned <= self._num_slots

    def may_be_full(self, num_pinned: int) -> bool:
        """True unless it is certain that every row of the last plan has a slot."""
        return sum(num for _, num in self._protected) + num_pinned > self._num_slots
