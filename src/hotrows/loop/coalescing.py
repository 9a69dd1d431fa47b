"""Who is in which place and seat of a group's ring, and the turns of the ring.

A batch is announced into a place, planned into the seat that goes with the place, and leaves the place once its plan is
known to fit, the seat when it has trained. A turn announces one batch and plans another, in one recording, so what is
announced waits for the next plan; only a plan that the host will wait for comes first, in a turn of its own.

Small batches do so in parties: the first to come waits for those that will share its place, unless it is to be planned.
Where a party does not fit into the cache, it is broken up, and from then on each batch goes by itself.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.planner import Placement
from hotrows.loop.ticket import Flight, Party, Request
from hotrows.ops.unique import UniqueRows
from hotrows.runtime.readback import UniqueCountReadback, Readback
from hotrows.runtime.streams import Event, record_event, writable_state

if TYPE_CHECKING:
    from hotrows.cache.planning.planning_graph import PlanningGraph
    from hotrows.cache.row_cache import RowCache


ASK_EVERY = 16  # batches
_HowToPlan = tuple[int, int | None, int, int, bool, int]  # what `Ring.prepare_plan` takes


class Seating:
    """Args:
    group: whose batches they are.
    """

    def __init__(self, group: "RowCache") -> None:
        self._group: RowCache = weakref.proxy(group)  # a group is let go with its last user, cache and all
        self.ring: PlanningGraph | None = None
        self.ahead = (0, 1)  # depth and window of the loop that looks ahead
        self._placed: dict[int, Party] = {}  # place → who is in it
        self._seated: dict[int, Flight] = {}  # seat → who was last in it
        self._left: dict[int, list[Event]] = {}  # seat → when who was last in it left
        self._gathering: Party | None = None  # that others may join
        self._announcement: Party | None = None  # to be announced with the next plan
        self.batches_to_coalesce: int | None = None  # how many batches share a turn, None where that goes by their size
        self._apart = False  # whether each batch goes by itself, in this loop
        self._failed: BaseException | None = None  # why the last turn that did has failed
        self._on_cuda = group.device.type == "cuda"
        self._num_announced = 0
        self._pageable = True

    def open(self, depth: int, window: int) -> None:
        """A loop begins that looks so far ahead. What another one has left, as where it was interrupted, is over."""
        self.ahead, self._apart = (depth, window), False
        self._gathering = self._announcement = None
        for party in list(self._placed.values()):
            self.break_up(party.members[0])

    def announce(self, ids: Tensor, part: IdColumns, describe: Callable[[list[int]], str]) -> Request | None:
        """A place for a batch; None where it has no shape for a ring, or there is no place."""
        group, ring = self._group, self.ring
        if ring is None or not ring.suits(ids, *self.ahead) or (self._apart and ring.party > 1):
            ring = self._make_ring(ids, part)
            if ring is None:
                return None
        source = ids.pin_memory() if self._is_pageable(ids) else ids
        party = self._gathering
        completes = ring.party == 1 + (0 if party is None else len(party.members))
        if completes and self._announcement is not None:
            self._turn(None, ())  # where that fails, this batch is of no party
        if party is None:
            place = ring.next_place()
            if place in self._placed:
                return None
            if not ring.has_room() and not ring.makes_room():
                self.flush_announcement()
                group.count_announced(wait=True)  # so that the table is made as large as it must be, and no larger
            party = Party(place, group.next_number(), Readback(ring.told_together[place]))
        which = party.place * ring.party + len(party.members)
        told = UniqueCountReadback(ring.told[which], ids, part.columns, ring.num_lookups)
        request = Request(ring.waiting[which], None, None, told, told, describe, party)
        party.members.append(request)
        party.ids.append(source)
        if ids.is_cuda:
            party.there = (*party.there, record_event(group.device))
        self._placed[party.place] = self._gathering = party
        if completes:
            self._complete()
        return request

    def _complete(self) -> None:
        """The party that is gathering is to be announced."""
        if self._announcement is not None:
            self._turn(None, ())
        self._announcement, self._gathering = self._gathering, None

    def _is_pageable(self, ids: Tensor) -> bool:
        """Whether ids must be pinned, lest the host wait for their copy: asked now and then, because it takes long."""
        if not self._on_cuda or ids.is_cuda:
            return False
        if self._num_announced % ASK_EVERY == 0:
            self._pageable = not ids.is_pinned()
        self._num_announced += 1
        return self._pageable

    def end_turn(self) -> None:
        """Announce what was not announced with a plan of this turn; where there are parties, these wait for theirs."""
        if self.ring is not None and self.ring.party == 1:
            self.flush_announcement()

    def flush_announcement(self) -> None:
        """Announce at once what would have been announced with the next plan."""
        if self.ring is not None and self.ring.is_broken:
            self._give_up()
            return
        if self._gathering is not None:
            self._complete()
        if self._announcement is not None:
            self._turn(None, ())

    def _give_up(self) -> None:
        """A turn has failed, and there will be no other one of this ring."""
        for party in (self._gathering, self._announcement):
            for member in [] if party is None else party.members:
                member.error = self._failed
        self._gathering = self._announcement = None

    def plan(self, request: Request, oldest: int | None, soon: bool = False) -> list[Flight]:
        """Plan an announced batch and all its party in their seats; none where they have none that are free.

        Args:
            oldest: the first plan in flight.
            soon: its turn is the next one, or this: it is not to wait for another batch to be announced.
        """
        group, ring, party = self._group, self.ring, request.party
        if ring is None or ring.is_broken or party is None or party.number is None:
            return []
        number = party.number
        if party is self._gathering:
            self._complete()
        seats = ring.seats_of(party.place)
        left: list[Event] = []
        if any(not before.landed for before in map(self._seated.get, seats) if before is not None):
            return []
        for seat in seats:
            left += self._left.get(seat, ())
            self._seated.pop(seat, None)  # what was there is gone, be it taken by a batch or not
        told, members = party.num_rows.poll(), party.members
        num_rows = ring.num_lookups * len(members) if told is None else told[0]
        how = (party.place, oldest, number, num_rows, group.looks_everywhere(request), len(members))
        after = tuple(group.released)
        waits = soon and ring.party == 1 and self._announcement is not party  # until the turn ends
        event, (last, looked_at_all) = self._turn(how, (*left, *after), announces=not waits)
        flights = []
        for batch, member, seat in zip(itertools.count(last + 1 - len(members)), members, seats, strict=False):
            leads = member is members[0]  # its plan stands for the moves of all
            plan = ring.plan_in(seat, batch, number if leads else None, num_rows if leads else 0, looked_at_all)
            late = Readback(ring.counts[seat], event)
            flight = Flight(plan, member, Placement.ATOMIC, late, event, after, event, seat, leads)
            self._seated[seat] = flight
            flights.append(flight)
        return flights

    def has_seat(self, flight: Flight) -> bool:
        """Whether a flight's plan still is in its seat."""
        return flight.seat is not None and self._seated.get(flight.seat) is flight

    def note_use(self, flight: Flight, event: Event) -> None:
        """Who has left a seat has used what is in it once more, as a second backward pass does."""
        if flight.seat is not None and self.has_seat(flight):
            self._left[flight.seat] = [*self._left.get(flight.seat, ()), event]

    def leave_place(self, request: Request) -> None:
        """A batch is planned for good."""
        party, request.party = request.party, None
        if party is not None:
            request.num_rows.result()  # what is told there, which another batch may be next, and is there by now
            party.num_gone += 1
            if party.num_gone == len(party.members):
                del self._placed[party.place]

    def break_up(self, request: Request) -> None:
        """A batch will be planned by itself, or not at all. Its party is no more; each of it has its own rows now."""
        group, ring, party = self._group, self.ring, request.party
        if party is None:
            return
        if party in (self._gathering, self._announcement):
            self.flush_announcement()
        assert ring is not None
        members, number, party.number = party.members, party.number, None
        rows, num = ring.places.rows_together(party.place)
        together = request.unique._replace(rows=rows, num=num)
        # Under which it still is announced. Not where there are parties: of a bad batch these have announced more rows.
        keeps_number = ring.party == 1
        if keeps_number:
            request.number = number
        withdrawn = None if keeps_number else number

        def work() -> None:
            if withdrawn is not None:
                group.planner.withdraw(together, withdrawn)
            for member in members:
                member.unique = UniqueRows(*(part.clone() for part in member.unique))

        group.planned = group.planning_stream.submit(work)
        for member in members:
            member.party = None
            if member.made is not None:
                member.num_rows.result()  # as in `leave_place`, but this may wait for the turn that has announced it
        del self._placed[party.place]

    def keep_apart(self, request: Request) -> None:
        """There was no room for a party: from now on batches go by themselves."""
        if request.party is not None and len(request.party.members) > 1:
            self.break_up(request)
            self._apart = True

    def leave_seat(self, flight: Flight, events: list[Event] | None = None) -> None:
        """A flight has landed, and its seat is free after these marks; without them its plan did not fit."""
        assert flight.seat is not None
        if events is None:
            del self._seated[flight.seat]
        else:
            self._left[flight.seat] = events

    def _turn(
        self, how: _HowToPlan | None, after: tuple[Event, ...], announces: bool = True
    ) -> tuple[Event, tuple[int, bool]]:
        """Announce what is to be announced, and plan a party, with its moves; see `Ring.prepare_plan`."""
        group, ring, party = self._group, self.ring, self._announcement if announces else None
        assert ring is not None
        if announces:
            self._announcement = None
        made = (-1, False)
        cache_address = group.cache.data_ptr()
        if party is not None:
            after = (*party.there, *after)

        def work() -> None:
            nonlocal made
            if party is not None:
                assert party.number is not None
                ring.prepare_announcement(party.ids, party.place, party.number)
            if how is not None:
                made = ring.prepare_plan(*how)
            ring.run(party is not None, how is not None, cache_address)

        try:
            event = group.submit_turn(work, after)
            ring.ran(event)
        except BaseException as error:
            self._failed = error
            if party is not None:
                for member in party.members:
                    member.error = error  # for its turn: another batch may be read meanwhile
            raise
        if party is not None:
            for member in party.members:
                member.made = event
                member.num_rows.completes_at(event)
            party.num_rows.completes_at(event)
            group.count_later(party)
            group.bury(party.ids, event)
            party.ids = []
        return event, made

    def _make_ring(self, ids: Tensor, part: IdColumns) -> "PlanningGraph | None":
        """One for batches of this shape; None where there can be none now."""
        group = self._group
        depth, window = self.ahead
        if ids.numel() == 0 or depth == 0:
            return None  # without depth, rows move at their batch's turn; those of the ring move before
        from hotrows.cache.planning.planning_graph import PlanningGraph, batches_to_coalesce

        if self._placed or group.flies_in_ring():
            return None  # the ring of another shape is in use, as by the loop whose last batch is a shorter one
        group.planned.synchronize()  # the old ring is used no more
        num_lookups = ids.shape[0] * part.first_row.numel()
        with writable_state():
            self.ring = PlanningGraph(
                group.planner, part, ids.shape, ids.dtype, depth, window, group.store.num_rows, group.device,
                lambda moves: group.move_in_ring(moves),
                1 if self._apart else self.batches_to_coalesce or batches_to_coalesce(group.planner, num_lookups, depth, window),
            )  # fmt: skip
        record_event(group.device).synchronize()
        self._seated.clear()
        self._left.clear()
        return self.ring
