"""A group of rows: a store seen through a cache. Plans, moves and updates of one group meet here.

The rules that make it exact (docs/architecture.md gives the argument):

1. The planner is the only writer of the index, and plans one batch after the other.
2. All moves run in the order of the plans, in the ring on the planning lane and otherwise on the moving lane, each
   waiting for the other: a row's eviction is done before any later fetch of it.
3. A plan is *in flight* until its batch has trained. A plan takes no slot that a plan in flight uses, and its moves
   wait for the batches that had been released when it was made.
4. A batch waits for its own moves, nothing else.
5. The current value of a row is in its slot if the index knows it, else in the store. The overflow buffer holds copies:
   they are written back only if nothing was planned since they were read, otherwise the rows are planned anew.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotrows.cache import overflow as overflow_buffer
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.planner import Counts, EagerPlanner, Placement, Plan
from hotrows.cache.stale_reads import StaleRead, StaleReads
from hotrows.cache.stats import Stats
from hotrows.cache.transfer import Transfer, ZeroCopy
from hotrows.loop.coalescing import Seating
from hotrows.loop.ticket import Contribution, Flight, LookupGrads, Party, Request, Rows
from hotrows.ops.backward_update import backward_update
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from hotrows.ops.unique import UniqueRows, unique_rows
from hotrows.optim import RowOptimizer
from hotrows.runtime.readback import Readback, start_readback, submit_with_readback
from hotrows.runtime.streams import Event, WorkStream, all_complete, make_streams, record_event, writable_state
from hotrows.stores import Store
from hotrows.stores.row_order import Numbering

if TYPE_CHECKING:  # needs Triton
    from hotrows.cache.planning.planning_graph import PlanningGraph


@dataclass
class RowCache:
    """The rows of tables of one dim, their cache and their optimizer.

    Args:
        store: all rows. planner: over as many slots as the cache has.
        mover: moves them. numbering: of the rows in the store, None where it is table after table.
    """

    store: Store
    planner: EagerPlanner | IdentityPlanner
    optimizer: RowOptimizer | None
    device: torch.device
    stats: Stats = field(default_factory=Stats)
    steps: int = 0  # of the optimizer
    transfer: Transfer = field(default_factory=ZeroCopy)
    numbering: Numbering | None = None

    def __post_init__(self) -> None:
        layout = self.store.layout
        self.num_slots = self.planner.num_slots
        self.dim = layout.dim
        self.is_resident = isinstance(self.planner, IdentityPlanner)
        if self.is_resident:
            self.cache = self.store.view(0, self.store.num_rows)
        else:
            self.cache = torch.zeros(self.num_slots, layout.words, dtype=layout.dtype, device=self.device)
        self.planning_stream: WorkStream
        self.move_stream: WorkStream
        self.planning_stream, self.move_stream = make_streams(self.device)
        self._flights: dict[int, Flight] = {}
        self._unsettled: deque[Flight] = deque()
        self.released: list[Event] = [record_event(self.device)]
        self.planned: Event = record_event(self.device)
        self._buried: deque[tuple[tuple[Event, ...], object]] = deque()
        self._unchecked: deque[Request] = deque()
        self._uncounted: deque[Request | Party] = deque()
        self._abandoned: deque[Flight] = deque()
        self._next_number = 0
        self.num_pinned = 0
        self._record_bytes = layout.num_bytes
        self.seating = Seating(self)
        self.stale_reads: StaleReads | None = None
        self.uses_ring = self.reason_against_ring() is None
        self._last_move: Event | None = None
        self.lost: str | None = None  # why there is no cache any more
        # at most so many slots of each plan since the oldest in flight may not be taken, be it landed, or have failed
        self._protected: deque[tuple[int, int]] = deque()

    def forget_copies(self) -> None:
        """The store was written from outside: what was copied from it before is no value of a row any more."""
        self.planner.batch += 1  # copies in the overflow buffer are no longer the latest
        for flight in self._flights.values():
            flight.stale_read = None

    @property
    def device_bytes(self) -> int:
        """That it keeps on the device: cache, slots, index, and what its mover needs. Not what single batches take."""
        if not isinstance(self.planner, EagerPlanner):
            return self.cache.nbytes
        index = self.planner.index.num_bytes(self.store.num_rows, self.num_slots)
        return self.cache.nbytes + self.planner.slots.num_bytes + index + self.transfer.device_bytes

    def lose_cache(self) -> None:
        """There is no memory for the cache any more. All its rows have been written back, and none will be again."""
        self.lost = (
            f"the device has no memory for a cache of {self.num_slots:,} rows any more: it was given up to make room "
            "for rows that found no slot. All rows are in the store as they were trained; to go on, save them, and "
            "load them into bags with a smaller cache"
        )
        if isinstance(self.planner, EagerPlanner):
            self.planner.slots.row.fill_(NO_ROW)

    def _check_cache(self) -> None:
        if self.lost is not None:
            raise MemoryError(self.lost)

    def __del__(self) -> None:
        """Memory that streams still use must not go back to PyTorch, which would hand it out again."""
        if self.device.type == "cuda" and hasattr(self, "_protected") and not sys.is_finalizing():
            for stream in (self.planning_stream, self.move_stream):
                stream.submit(_do_nothing).synchronize()

    # -- requests -----------------------------------------------------------------------------------------------

    def request(
        self,
        make: Callable[[], Rows],
        describe: Callable[[list[int]], str] | None = None,
        announce: bool = False,
    ) -> Request:
        """Find the distinct rows of a batch in the planning lane; with `announce`, tell the policy it will come.

        Args:
            make: makes the rows, numbered table after table, from tensors of the caller's lane, which it keeps alive.
            describe: words for what `Rows.bad` found.
        """
        self.catch_up()
        number = None
        if announce:
            self.flush_announcement()  # batches that are announced are announced in their order
            number = self.next_number()
        made: list[tuple[Tensor, UniqueRows, Readback | None]] = []

        def work() -> Tensor:
            rows = make()
            named = unique = unique_rows(rows.rows)
            if self.numbering is not None:
                unique = self.numbering.of_distinct(named)
            if number is not None:
                self.planner.announce(unique, number)
            made.append((named.rows, unique, None if rows.bad is None else start_readback(rows.bad)))
            return unique.num

        late, event = submit_with_readback(self.planning_stream, work, after=[record_event(self.device)])
        named, unique, bad = made[0]
        if bad is not None:
            bad.completes_at(event)
        self.planned = event
        request = Request(unique, number, event, late, bad, describe, named=None if self.numbering is None else named)
        self.bury((request, make), event)
        if announce:
            self.count_later(request)
        return request

    def withdraw(self, request: Request) -> None:
        """An announced batch will not be planned."""
        self.seating.break_up(request)
        if request.number is not None:
            number, request.number = request.number, None
            self.planned = self.planning_stream.submit(lambda: self.planner.withdraw(request.unique, number))
            self.bury(request, self.planned)

    # -- the ring -----------------------------------------------------------------------------------------------

    @property
    def ring(self) -> "PlanningGraph | None":
        """Of batches of one shape, once there is one."""
        return self.seating.ring

    def reason_against_ring(self) -> str | None:
        """Why no batch is planned in a ring, None where those are that have the shape for it."""
        if self.device.type != "cuda":
            return f"the bags are on {self.device}"
        if self.transfer.waits:
            return "the host waits for the device to move rows"
        if self.numbering is not None:
            return "the store has the rows in an order of its own"
        if self.stale_reads is not None:
            # a recorded step has no place for the waits between reads and updates
            return "rows are read early, when they are fetched"
        from hotrows.cache.planning.kernel_planner import reason_against

        return reason_against(self.planner)

    def open_ring(self, depth: int, window: int) -> None:
        """A loop begins that looks so far ahead."""
        self.seating.open(depth, window)

    def announce_ids(self, ids: Tensor, part: IdColumns, describe: Callable[[list[int]], str]) -> Request | None:
        """As `request` with `announce`, by kernels in a graph; None where ids are not of the shape for that."""
        if not self.uses_ring:
            return None
        return self.seating.announce(ids, part, describe)

    def count_later(self, announced: Request | Party) -> None:
        """Tell the policy how many rows were announced when the host knows."""
        self._uncounted.append(announced)

    def flush_announcement(self) -> None:
        """Announce at once what would have been announced with the next plan."""
        self.seating.flush_announcement()

    def has_seat(self, flight: Flight) -> bool:
        """Whether a flight's plan still is in its seat."""
        return self.seating.has_seat(flight)

    def submit_turn(self, work: Callable[[], None], after: Iterable[Event]) -> Event:
        """One turn of the ring, which plans and moves: behind all of that before it."""
        last, self._last_move = self._last_move, None
        if last is not None:
            after = (*after, last)
        self.planned = self.planning_stream.submit(work, after, replays_graph=True)
        return self.planned

    def next_number(self) -> int:
        """Under which the next batch is announced."""
        self._next_number += 1
        return self._next_number - 1

    @property
    def oldest(self) -> int | None:
        """The first plan in flight: they are put down in the order of their numbers."""
        return next(iter(self._flights), None)

    def looks_everywhere(self, request: Request) -> bool:
        """Whether all slots must be looked at for a batch's victims: a part may be pinned, or was too small before."""
        return request.failed or self.num_pinned > 0

    def flies_in_ring(self) -> bool:
        """Whether a plan in a seat is in flight."""
        return any(flight.seat is not None for flight in self._flights.values())

    def move_in_ring(self, moves: Moves) -> None:
        self.transfer.move(self.store, self.cache, moves)

    # -- plans --------------------------------------------------------------------------------------------------

    def plan_ahead(self, request: Request, soon: bool = False) -> list[Flight]:
        """Plan a batch before its turn, all or nothing, and with it the others of its party: they come right after it.

        `settle` tells whether they fitted.

        Args:
            soon: its turn is the next one, or this.
        """
        self.catch_up()
        self._settle_unmoved()
        return self._plan(request, Placement.ATOMIC, after=(), soon=soon)

    def surely_fits(self, request: Request) -> bool:
        """Whether a batch and its party fit beside those in flight, for all the host knows."""
        oldest = min(self._flights, default=self.planner.batch + 1)
        protected = sum(num for batch, num in self._protected if batch >= oldest)
        members = 1 if request.party is None else len(request.party.members)
        return protected + members * request.unique.rows.numel() + self.num_pinned <= self.num_slots

    def resolve(self, flight: Flight) -> bool:
        """Look at a plan's counts; queue its moves, or forget it where it did not fit."""
        while flight.counts is None:
            self._resolve_first()
        return bool(flight.counts.fits)

    def plan_now(self, request: Request, placement: Placement) -> Flight:
        """Plan a batch at its turn; what has no slot is copied to the overflow buffer."""
        self.catch_up()
        self._settle_unmoved()
        (flight,) = self._plan(request, placement, after=(record_event(self.device),))
        if placement is not Placement.READ_ONLY:
            request.number = None  # it has come
            self.stats.on_the_spot += 1
        can_overflow = self._can_overflow(flight)
        if can_overflow or self.device.type != "cuda":
            self.resolve_all()
            assert can_overflow or not (flight.counts and flight.counts.overflow)
        else:
            self._move(flight)
        return flight

    def _plan(self, request: Request, placement: Placement, after: tuple[Event, ...], soon: bool = False) -> list[Flight]:
        self._check_cache()
        oldest = self.oldest
        flights = self.seating.plan(request, oldest, soon) if placement is Placement.ATOMIC else []
        if not flights:
            flights = [self._plan_freely(request, placement, after, oldest)]
        for flight in flights:
            self._flights[flight.plan.batch] = flight
            self._unsettled.append(flight)
        if placement is not Placement.READ_ONLY:
            batch, protected = flights[-1].plan.batch, self._protected
            protected.append((batch, sum(flight.plan.row_slots.numel() for flight in flights)))
            kept = flights[0].plan.batch if oldest is None else oldest
            while protected[0][0] < kept:
                protected.popleft()
        return flights

    def _plan_freely(self, request: Request, placement: Placement, after: tuple[Event, ...], oldest: int | None) -> Flight:
        self.seating.break_up(request)
        everywhere = placement is not Placement.ATOMIC or self.looks_everywhere(request)
        made: list[Plan] = []

        def work() -> Tensor:
            made.append(self.planner.plan(request.unique, placement, oldest, request.number, everywhere))
            return made[0].counts

        late, event = submit_with_readback(self.planning_stream, work)
        self.planned = event
        # what was released before this plan was made is what its moves wait for
        return Flight(made[0], request, placement, late, event, (*self.released, *after))

    def _can_overflow(self, flight: Flight) -> bool:
        """Whether, for all the host knows without waiting, rows of a plan may have no slot."""
        if isinstance(self.planner, IdentityPlanner):
            return False
        if flight.placement is Placement.READ_ONLY or not self.planner.index.any_slot:
            return True
        return sum(num for _, num in self._protected) + self.num_pinned > self.num_slots

    def _settle_unmoved(self) -> None:
        """See to it that the moves of every plan are queued."""
        for flight in self._unsettled:
            if flight.moved is None:
                self.resolve_all()
                return

    def resolve_all(self) -> None:
        while self._unsettled:
            self._resolve_first()

    def _resolve_first(self) -> None:
        numbers = self._unsettled[0].late.result()  # which may wait: after a Ctrl-C there it is still to be settled
        flight = self._unsettled.popleft()
        counts = flight.counts = Counts(*numbers)
        self.planner.resolve(flight.plan, counts, flight.placement)
        lookups, unique, hits, misses, placed, evictions, overflow, fits, _ = counts
        stats, record_bytes = self.stats, self._record_bytes
        stats.bytes_in += (placed + overflow) * record_bytes
        stats.bytes_out += evictions * record_bytes
        if flight.placement is Placement.READ_ONLY:
            stats.read_rows += unique
        elif fits:
            stats.batches += 1
            stats.lookups += lookups
            stats.unique += unique
            stats.hits += hits
            stats.misses += misses
            stats.evictions += evictions
            stats.overflow += overflow
        else:
            stats.shrinks += flight.plan.looked_at_all and flight.leads
            flight.request.failed = True
            self._flights.pop(flight.plan.batch, None)
            if flight.seat is not None:
                self.seating.leave_seat(flight)
            self.bury(flight, flight.planned)
            return
        if flight.seat is not None:
            self.seating.leave_place(flight.request)
            flight.request.unique = flight.plan.unique
        if flight.moved is None:
            self._move(flight)
            if overflow:
                try:
                    overflow_buffer.reserve(self, overflow)
                except BaseException:
                    self.drop(flight)  # its rows are where the index says; only the copies could not be made
                    raise
                overflow_buffer.fetch(self, flight)

    # -- moves --------------------------------------------------------------------------------------------------

    def _move(self, flight: Flight) -> None:
        if self.is_resident:
            flight.moved = flight.planned
            return
        plan, store, cache, transfer = flight.plan, self.store, self.cache, self.transfer

        def work() -> None:
            transfer.move(store, cache, Moves(plan.move_slots, plan.move_out, plan.move_in, plan.num_moves))

        flight.moved = self.submit_move(work, (flight.planned, *flight.after))

    def submit_move(self, work: Callable[[], None], after: Iterable[Event] = ()) -> Event:
        """Move rows outside the ring. Those in the ring run in the planning lane: each waits for all before it.

        Whoever calls this has the marks of plans that the moves belong to among `after`, and with the last of them
        all moves of the ring that came before.
        """
        self._last_move = self.move_stream.submit(work, after)
        return self._last_move

    def wait_for_moves(self) -> None:
        """Block the host until every queued move is done and nothing in the caller's lane uses the cache."""
        self.submit_move(_do_nothing, (record_event(self.device), self.planned)).synchronize()

    # -- early reads ----------------------------------------------------------------------------------------------

    def read_rows_early(self) -> None:
        """From now on let batches that are looked ahead be read when their rows are fetched; see `EarlyReads`."""
        if not self.is_resident:
            self.stale_reads = StaleReads(self.device)
            self.uses_ring = False

    def read_early(self, flight: Flight) -> None:
        """Read the rows of the next batch, behind its moves and all updates so far; the next update waits for it."""
        if self.stale_reads is None or flight.stale_read is not None:
            return
        assert flight.moved is not None
        slots, cache, dim = flight.plan.row_slots, self.cache, self.dim
        with writable_state():
            values = torch.empty(slots.numel(), dim, device=self.device)

        def work() -> None:
            values.copy_(cache[slots.clamp(min=0), :dim])

        flight.stale_read = StaleRead(values)
        flight.moved = self.stale_reads.last = self.submit_move(work, (record_event(self.device), flight.moved))

    # -- training -----------------------------------------------------------------------------------------------

    def acquire(self, flight: Flight) -> Plan:
        """Let the caller's lane wait until the rows of a plan are there."""
        self._check_cache()
        assert flight.moved is not None
        self._wait_event(flight.moved)
        return flight.plan

    def _wait_event(self, event: Event) -> None:
        if event.query():
            event.wait()  # which raises where the moves failed
            return
        start = time.perf_counter()
        event.wait()
        self.stats.stalls += 1
        self.stats.stall_seconds += time.perf_counter() - start

    def values_to_train(self, flight: Flight) -> tuple[Tensor, Tensor]:
        """Where a forward pass finds its rows: values [·, ≥ D], and for every lookup which of them, int32 [N]."""
        if flight.stale_read is None or self.stale_reads is None:
            return self.cache, flight.plan.slots
        self.stale_reads.count(flight.stale_read, self.cache, flight.plan.row_slots)
        return flight.stale_read.values, flight.plan.unique.inverse

    def hold(self, flight: Flight) -> None:
        flight.holds += 1

    def drop(self, flight: Flight) -> None:
        """One who held the flight is done with it; when the last is, its slots may be taken."""
        flight.holds -= 1
        if flight.holds == 0:
            self._land(flight)

    def note_use(self, flight: Flight, event: Event | None = None) -> None:
        """The caller's lane, which need not be the one that will drop the flight, has used its plan and its slots.

        With a mark, that was its only use.
        """
        flight.used = event or record_event(self.device)
        flight.used_up = event is not None
        if flight.landed:
            self.bury(flight, flight.used)
            self.seating.note_use(flight, flight.used)

    def can_update_in_place(self, flight: Flight) -> bool:
        """Whether the records that a plan points to still are the current ones."""
        if flight.landed:
            return False
        overflows = flight.counts is not None and flight.counts.overflow > 0
        return not overflows or flight.plan.batch == self.planner.batch

    def update(self, flight: Flight, grads: LookupGrads) -> None:
        """Apply one optimizer step to the rows of a plan, in the caller's lane."""
        self._check_cache()
        if self.stale_reads is not None and self.stale_reads.last is not None:
            self._wait_event(self.stale_reads.last)
        self.apply(flight.plan, grads, self.next_step())
        if flight.counts is not None and flight.counts.overflow > 0:
            overflow_buffer.write_back(self, flight)

    def next_step(self) -> tuple[float, ...]:
        """The numbers of the optimizer's next step, which is now counted."""
        assert self.optimizer is not None
        self.steps += 1
        self.optimizer.note_step()
        return self.optimizer.hyper(self.steps)

    def apply(self, plan: Plan, grads: LookupGrads, hyper: Tensor | tuple[float, ...]) -> None:
        """Update the records that a plan points to."""
        assert self.optimizer is not None
        unique = plan.unique
        backward_update(
            self.optimizer.rule, self.cache, plan.row_slots, unique.num, grads.grad, unique.order, unique.starts,
            grads.bag_of, grads.scale, grads.winner, self.dim, hyper, unique.block_rows,
        )  # fmt: skip

    def update_together(self, contributions: list[Contribution]) -> None:
        """Add up the gradients of several passes by row, then apply one optimizer step."""
        rows = torch.cat([part.rows for part in contributions])
        grads = torch.cat([part.grads for part in contributions])
        # the rows of the parts belong to the planning lane, which must not have them back before they are read
        self.bury(contributions, record_event(self.device))
        request = self.request(lambda: Rows(rows))
        flight = self.plan_now(request, Placement.SPILL)
        self.acquire(flight)
        self.update(flight, LookupGrads(grads))
        self.drop(flight)

    def _land(self, flight: Flight) -> None:
        events = [] if flight.used_up else [record_event(self.device)]
        if flight.used is not None:
            events += (flight.used,)
        flight.landed = True
        if flight.seat is not None:
            self.seating.leave_seat(flight, events)
        del self._flights[flight.plan.batch]
        self.released = [event for event in self.released if not event.query()] + events
        assert flight.moved is not None
        if flight.seat is None:  # the memory of a seat stays
            self.bury(flight, *events, flight.moved)

    # -- bookkeeping ----------------------------------------------------------------------------------------------

    def check_later(self, request: Request) -> None:
        """Check a request for bad ids when the host can know without waiting, at the latest at `flush`."""
        if request.bad is not None:
            self._unchecked.append(request)

    def check(self, wait: bool = True) -> None:
        """Raise for a batch with bad ids among those to be checked later."""
        while self._unchecked and (wait or self._unchecked[0].has_been_made()):
            self._unchecked.popleft().check()

    def totals(self) -> Stats:
        """The stats, with everything queued so far counted in."""
        self.resolve_all()
        if self.stale_reads is not None:
            self.stats.stale = self.stale_reads.num_stale()
        return self.stats

    def forget(self, flight: Flight) -> None:
        """A batch that was planned ahead has not come: it has looked nothing up, though its rows have moved."""
        counts, stats = flight.counts, self.stats
        assert counts is not None
        stats.batches -= 1
        stats.lookups -= counts.lookups
        stats.unique -= counts.unique
        stats.hits -= counts.hits
        stats.misses -= counts.misses

    def abandon(self, flight: Flight) -> None:
        """As `drop`, from any thread at any time; takes effect before the next plan."""
        self._abandoned.append(flight)

    def bury(self, holds: object, *events: Event) -> None:
        """Keep memory that lanes still read until they have passed these marks."""
        self._buried.append((events, holds))

    def catch_up(self) -> None:
        """Take note of what has happened meanwhile, without waiting for anything."""
        while self._abandoned:
            self.drop(self._abandoned.popleft())
        while self._buried and all_complete(self._buried[0][0]):
            self._buried.popleft()
        self.count_announced(wait=False)
        while self._unsettled:
            first = self._unsettled[0]
            if first.moved is None or first.late.poll() is None:
                return
            self._resolve_first()

    def count_announced(self, wait: bool) -> None:
        while self._uncounted:
            announced = self._uncounted[0]
            found = announced.num_rows.result() if wait else announced.num_rows.poll()
            if found is None:
                return
            self._uncounted.popleft()
            if announced.number is not None:
                self.planner.counted(announced.number, found[0])


def _do_nothing() -> None:
    pass
