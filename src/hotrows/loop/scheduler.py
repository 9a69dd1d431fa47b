"""The scheduler of a cache: owns the tickets of its batches and decides when each is announced, planned and released.

The rules that make the result exact (docs/architecture.md gives the argument):

1. The planner is the only writer of the index, and plans one batch after the other.
2. All moves run in the order of the plans (`cache.streams`): a row's eviction is done before any later fetch of it.
3. A plan takes no slot that a batch in flight uses. Its moves wait for the last uses of all batches that were released
   when it was made.
4. A batch waits for its own moves, and for nothing else.
5. The current value of a row is in its slot if the index knows the row, else in the store. The overflow buffer holds
   copies, which are written back only if nothing was planned since they were read.
"""

import time
from collections import deque
from typing import TYPE_CHECKING

from hotrows.cache import maintenance
from hotrows.cache.planning.protocol import Counts, Placement, Plan
from hotrows.cache.row_cache import RowCache
from hotrows.cache.row_updater import RowUpdater
from hotrows.cache.stale_reads import StaleReads
from hotrows.cache.stats import Stats
from hotrows.cache.streams import CacheStreams
from hotrows.loop.announcements import Announcements
from hotrows.loop.bad_ids import BadIdChecks
from hotrows.loop.graph_planning import GraphPlanning
from hotrows.loop.in_flight import InFlight
from hotrows.loop.overflow_copies import OverflowCopies
from hotrows.loop.ticket import BatchTicket, TicketState
from hotrows.runtime.exclusive import Exclusive
from hotrows.runtime.readback import Readback, start_readback
from hotrows.runtime.streams import Event, record_event

if TYPE_CHECKING:  # needs Triton
    from hotrows.cache.planning.planning_graph import PlanningGraph


class Scheduler:
    """Decides the order of everything that happens in one cache.

    Args:
        exclusive: every change of the state of this cache happens inside it. The caches of one module share it.

    Attributes:
        coalesce: how many batches are planned as one. With None, the planning graph chooses the number by the size of
            the batches, and batches outside the graph are planned one by one.
    """

    def __init__(self, cache: RowCache, updater: RowUpdater, exclusive: Exclusive | None = None) -> None:
        self.cache = cache
        self.exclusive = Exclusive() if exclusive is None else exclusive
        self.updater = updater
        self.device = cache.device
        self.streams = CacheStreams(cache.device)
        self.in_flight = InFlight(cache.num_slots, cache.device)
        self.bad_ids = BadIdChecks(updater)
        self.overflow_copies = OverflowCopies(self)
        self.coalesce: int | None = None
        self.stale_reads: StaleReads | None = None
        self.graph_planning = GraphPlanning(self)
        self.announcements = Announcements(self)
        self.uses_graph = self.reason_without_graph() is None
        self._unresolved: deque[BatchTicket] = deque()  # planned; their counts are on the way to the host
        self._release_later: deque[BatchTicket] = deque()

    @property
    def planning_graph(self) -> "PlanningGraph | None":
        """The planning graph for batches of one shape, once there is one."""
        return self.graph_planning.graph

    def reason_without_graph(self) -> str | None:
        """Why no batch is planned in a graph. None if batches are, provided that their shape is suitable."""
        if self.device.type != "cuda":
            return f"the bags are on {self.device}"
        if self.cache.transfer.waits or self.cache.store.waits:
            return "the store or the transfer makes the host wait for the device when rows move"
        if self.cache.numbering is not None:
            return "the store has the rows in an order of its own"
        if self.stale_reads is not None:  # a captured step has no waits between reads and updates
            return "rows are read early, when they are fetched"
        return self.cache.planner.reason_without_kernels()

    def plan_ahead(self, ticket: BatchTicket, soon: bool = False) -> list[BatchTicket]:
        """Plan a batch, at the latest when its iteration begins: every row gets a slot, or no row is moved.

        `resolve` says which of the two happened.

        Args:
            soon: the batch trains in this iteration or in the next one.

        Returns:
            The tickets that were planned: this one, and those it was coalesced with, whose batches come right after it.
        """
        self.catch_up()
        self._resolve_unmoved()
        self.cache.check()
        try:
            tickets = self.graph_planning.plan(ticket, soon)
            if not tickets:
                if ticket.coalesced is not None and ticket.coalesced.request_buffer >= 0:
                    self.announcements.separate(ticket)
                tickets = self._plan_eagerly(ticket, Placement.ATOMIC)
            self._put_in_flight(tickets, takes_slots=True)
        except BaseException:
            self.in_flight.note_failed_plan(self.cache.planner.plan_number)
            raise
        return tickets

    def plan_now(self, ticket: BatchTicket, placement: Placement) -> None:
        """Plan a batch in its iteration. Rows without a slot are copied to the overflow buffer."""
        self.catch_up()
        self._resolve_unmoved()
        self.cache.check()
        self.announcements.separate(ticket)
        try:
            self._plan_eagerly(ticket, placement, after=(record_event(self.device),))
            self._put_in_flight([ticket], takes_slots=placement is not Placement.READ_ONLY)
        except BaseException:
            self.in_flight.note_failed_plan(self.cache.planner.plan_number)
            raise
        try:
            if placement is not Placement.READ_ONLY:
                ticket.batch_number = None  # planning has told the policy that the batch has come
                self.cache.stats.immediate_plans += 1
            may_overflow = self._may_overflow(placement)
            if may_overflow or self.device.type != "cuda":
                self.resolve_all()
                assert may_overflow or not ticket.overflows
            else:
                self._move(ticket)
        except BaseException:  # Nobody will train on this ticket. Its moves are queued before the next plan.
            self.in_flight.remove(ticket)
            raise

    def surely_fits(self, ticket: BatchTicket) -> bool:
        """True if a batch, and those it was coalesced with, are certain to fit beside those in flight."""
        num_batches = 1 if ticket.coalesced is None else len(ticket.coalesced.tickets)
        num_rows = num_batches * ticket.unique.rows.numel()
        planner = self.cache.planner
        return planner.any_slot and self.in_flight.surely_fits(num_rows, self.cache.num_pinned, planner.plan_number + 1)

    def must_scan_all(self, ticket: BatchTicket) -> bool:
        """True if a range of slots may have too few victims: a plan of this batch was rejected, or slots are pinned."""
        return ticket.was_rejected or self.cache.num_pinned > 0

    def _plan_eagerly(
        self, ticket: BatchTicket, placement: Placement, after: tuple[Event, ...] = ()
    ) -> list[BatchTicket]:
        tickets, unique, number, parts = [ticket], ticket.unique, ticket.batch_number, None
        if ticket.coalesced is not None:
            self.announcements.flush()
            if ticket.coalesced is not None and ticket.coalesced.union is None:  # announcing these batches has failed
                self.announcements.separate(ticket)
        coalesced = ticket.coalesced
        if coalesced is not None:
            assert coalesced.union is not None
            tickets, unique, parts, number = coalesced.tickets, coalesced.union, coalesced.parts, coalesced.batch_number
        scan_all = placement is not Placement.ATOMIC or self.must_scan_all(ticket)
        planner, oldest = self.cache.planner, self.in_flight.oldest
        made: list[tuple[Plan, Readback]] = []

        def work() -> None:
            plans = planner.plan(unique, placement, oldest, number, scan_all, parts)
            made.extend((plan, start_readback(plan.counts)) for plan in plans)

        event = self.streams.submit_plan(work)
        # The moves wait for the batches that were released before this plan was made.
        move_after = (*self.in_flight.released, *after)
        for planned, (plan, readback) in zip(tickets, made, strict=True):
            readback.completes_at(event)
            planned.plan, planned.placement, planned.counts_readback = plan, placement, readback
            planned.planned, planned.move_after = event, move_after
            planned.leader = None if planned is tickets[0] else tickets[0]
            planned.plan_buffer = None
            planned.move_to(TicketState.PLANNED)
        return tickets

    def _roll_back_unknown_plan(self) -> None:
        """Take back the last plan if a failure came before its ticket was added to the unresolved ones."""
        planner = self.cache.planner
        moves = planner.unconfirmed_moves
        if moves is None:
            return
        for ticket in self._unresolved:
            if ticket.plan is not None and ticket.plan.move_slots is moves:
                return
        self.streams.submit_plan(planner.roll_back)

    def _confirm(self, plan: Plan | None) -> None:
        planner = self.cache.planner
        if plan is not None and planner.unconfirmed_moves is plan.move_slots:
            planner.confirm()

    def _put_in_flight(self, tickets: list[BatchTicket], takes_slots: bool) -> None:
        self._unresolved.extend(tickets)  # first: whatever fails next, every ticket in flight gets resolved
        self.in_flight.add(tickets, takes_slots)

    def _may_overflow(self, placement: Placement) -> bool:
        """True unless it is certain, without waiting, that every row of the last plan has a slot."""
        planner = self.cache.planner
        if planner.holds_all_rows:
            return False
        if placement is Placement.READ_ONLY or not planner.any_slot:
            return True
        return self.in_flight.may_be_full(self.cache.num_pinned)

    def resolve(self, ticket: BatchTicket) -> bool:
        """Read the counts of a plan back, waiting if needed. True if it fits: then its moves are queued."""
        while ticket.state is TicketState.PLANNED:
            if not self._unresolved:  # a failure came before the ticket was among them
                self._roll_back_unknown_plan()
                self.in_flight.remove(ticket)
                ticket.move_to(TicketState.REJECTED)
                return False
            self._resolve_first()
        assert ticket.counts is not None
        return bool(ticket.counts.fits)

    def resolve_all(self) -> None:
        while self._unresolved:
            self._resolve_first()

    def catch_up(self) -> None:
        """Do whatever can be done without waiting for a readback.

        Write back overflow copies, release tickets, free memory, and resolve the first plans as long as their counts
        have arrived and their moves are queued already.
        """
        self.overflow_copies.write_back()
        while self._release_later:
            self.release(self._release_later.popleft())
        self.streams.free_completed()
        self.announcements.note_unique_counts(wait=False)
        while self._unresolved:
            first = self._unresolved[0]
            assert first.counts_readback is not None
            if first.ready is None or first.counts_readback.poll() is None:
                return
            self._resolve_first()

    def _resolve_unmoved(self) -> None:
        """Roll back a plan that no ticket knows, then queue the moves of all earlier plans in their order (rule 2)."""
        self._roll_back_unknown_plan()
        for ticket in self._unresolved:
            if ticket.ready is None:
                self.resolve_all()
                return

    def _resolve_first(self) -> None:
        """Read the counts of the oldest unresolved plan back. It stays unresolved until its moves are queued."""
        ticket = self._unresolved[0]
        assert ticket.counts_readback is not None
        assert ticket.plan is not None
        numbers = ticket.counts_readback.result()  # may wait
        if ticket.counts is None:
            ticket.counts = Counts(*numbers)
            self.cache.planner.resolve(ticket.plan, ticket.counts, ticket.placement)
            self.cache.count_plan(ticket.counts, ticket.placement, ticket.plan.scanned_all and ticket.leader is None)
        if not ticket.counts.fits:
            self._reject(ticket)
            return
        if ticket.plan_buffer is not None:
            self.graph_planning.free_request_buffer(ticket)
            ticket.unique = ticket.plan.unique
        ticket.coalesced = None
        is_moved_now = ticket.ready is None
        if is_moved_now:
            self._move(ticket)
        elif ticket.state is TicketState.PLANNED:  # the planning graph has moved its rows
            ticket.move_to(TicketState.READY)
        self._unresolved.popleft()
        if ticket not in self.in_flight:  # released already, or after a failure: its moves may still read the plan
            assert ticket.ready is not None
            self.streams.keep_alive_until(ticket, ticket.ready)
        elif is_moved_now and ticket.counts.overflow:
            self.overflow_copies.read(ticket, ticket.counts.overflow)

    def _reject(self, ticket: BatchTicket) -> None:
        """Give up the oldest unresolved plan, which did not fit."""
        assert ticket.planned is not None
        self._confirm(ticket.plan)  # it has no moves
        ticket.was_rejected = True
        self.in_flight.remove(ticket)
        if ticket.plan_buffer is not None:
            self.graph_planning.free_plan_buffer(ticket)
        self.streams.keep_alive_until(ticket.plan, ticket.planned)
        self._unresolved.popleft()  # before the ticket can be planned again
        ticket.move_to(TicketState.REJECTED)

    def plan_again(self, ticket: BatchTicket) -> None:
        """Reset a rejected ticket to ANNOUNCED, to be planned again. The policy still expects it and is not told."""
        ticket.move_to(TicketState.ANNOUNCED)
        ticket.plan = ticket.counts = ticket.counts_readback = ticket.planned = ticket.ready = None
        ticket.plan_buffer = ticket.ahead = None

    def _move(self, ticket: BatchTicket) -> None:
        """Queue the moves of a plan that was made outside the planning graph."""
        assert ticket.planned is not None
        cache, plan = self.cache, ticket.plan
        assert plan is not None
        if cache.holds_all_rows:
            ticket.ready = ticket.planned
        elif ticket.leader is not None:
            ticket.ready = ticket.leader.ready
        else:
            self._confirm(plan)  # if queueing the moves fails, the ticket stays unresolved and they are queued later
            ticket.ready = self.streams.submit_move(
                lambda: cache.move_planned(plan), (ticket.planned, *ticket.move_after)
            )
        ticket.move_to(TicketState.READY)

    def acquire(self, ticket: BatchTicket) -> Plan:
        """Make the caller's stream wait until the rows of a plan are there."""
        self.cache.check()
        assert ticket.ready is not None
        assert ticket.plan is not None
        self.wait_event(ticket.ready)
        return ticket.plan

    def wait_event(self, event: Event) -> None:
        """Make the caller's stream wait for an event, and count the stall if it is not complete."""
        if event.query():
            event.wait()  # raises if the moves failed
            return
        start = time.perf_counter()
        event.wait()
        self.cache.stats.stalls += 1
        self.cache.stats.stall_seconds += time.perf_counter() - start

    def retain(self, ticket: BatchTicket) -> None:
        ticket.references += 1

    def release(self, ticket: BatchTicket) -> None:
        """Give up one reference. With the last one, the ticket's slots may be evicted."""
        ticket.references -= 1
        if ticket.references > 0:
            return
        last_uses = [] if ticket.has_single_use else [record_event(self.device)]
        if ticket.last_use is not None:
            last_uses.append(ticket.last_use)
        ticket.move_to(TicketState.RELEASED)
        if ticket.plan_buffer is not None:
            self.graph_planning.free_plan_buffer(ticket, last_uses)
        self.in_flight.remove(ticket, last_uses)
        assert ticket.ready is not None
        if ticket.plan_buffer is None:  # the memory of a plan buffer stays
            self.streams.keep_alive_until(ticket, *last_uses, ticket.ready)

    def release_later(self, ticket: BatchTicket) -> None:
        """`release`, from any thread at any time. It takes effect before the next plan."""
        self._release_later.append(ticket)

    def note_use(self, ticket: BatchTicket, event: Event | None = None) -> None:
        """Note that the caller's stream has used a ticket's plan and slots.

        `release` may be called when another stream is the current one, so the event that it records would not cover
        this use.

        Args:
            event: recorded behind the use. Pass it only if this is the single use of the ticket: then releasing the
                ticket records no further event.
        """
        ticket.last_use = event or record_event(self.device)
        ticket.has_single_use = event is not None
        if ticket.is_released:
            self.streams.keep_alive_until(ticket, ticket.last_use)
            self.graph_planning.note_use(ticket, ticket.last_use)

    def _complete_plans(self) -> None:
        """Queue the moves of every plan."""
        self.overflow_copies.write_back()
        self._roll_back_unknown_plan()
        self.resolve_all()

    def flush(self) -> None:
        """Write every row of the cache back to the store, and wait for it."""
        with self.exclusive:
            self._complete_plans()
            maintenance.write_back_all(self.cache, self.streams)
            self.cache.store.flush()
            self.bad_ids.uncount_bad_steps(wait=True)

    def reload(self) -> None:
        """Read every row of the cache again, after the store was written from outside."""
        with self.exclusive:
            self._complete_plans()
            maintenance.read_again_all(self.cache, self.streams)
            self.cache.planner.plan_number += 1  # so that `can_update_in_place` no longer accepts overflow copies
            for ticket in self.in_flight:
                ticket.stale_read = None

    def totals(self) -> Stats:
        """The statistics, with everything counted that was queued so far."""
        with self.exclusive:
            self.resolve_all()
            if self.stale_reads is not None:
                self.cache.stats.stale = self.stale_reads.num_stale()
            return self.cache.stats
