"""Who is in which place and seat of a group's ring, and the turns of the ring.

A batch is announced into a place, planned into the seat that goes with the place, and leaves the place once its plan is
known to fit, the seat when it has trained. A turn announces one batch and plans another, in one recording, so what is
announced waits for the next plan.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from hotrows.cache.flights import Flight, Request
from hotrows.cache.id_columns import IdColumns
from hotrows.cache.lanes import Mark, caller_mark, writable_state
from hotrows.cache.late import LateNumbers, LateTold
from hotrows.cache.planner import Placing

if TYPE_CHECKING:
    from hotrows.cache.group import RowGroup
    from hotrows.cache.ring import Ring


ASK_EVERY = 16  # batches
_Announcement = tuple[Request, Tensor, tuple[Mark, ...]]  # of whom, which ids, and when these are there
_HowToPlan = tuple[int, int | None, int, int, bool]  # what `Ring.prepare_plan` takes


class Seating:
    """Args:
    group: whose batches they are.
    """

    def __init__(self, group: "RowGroup") -> None:
        self._group: RowGroup = weakref.proxy(group)  # a group is let go with its last user, cache and all
        self.ring: Ring | None = None
        self.ahead = (0, 1)  # depth and window of the loop that looks ahead
        self._placed: dict[int, Request] = {}  # place → who is in it
        self._seated: dict[int, Flight] = {}  # seat → who was last in it
        self._left: dict[int, list[Mark]] = {}  # seat → when who was last in it left
        self._announcement: _Announcement | None = None  # to be made with the next plan
        self._on_cuda = group.device.type == "cuda"
        self._num_announced = 0
        self._pageable = True

    def announce(self, ids: Tensor, part: IdColumns, describe: Callable[[list[int]], str]) -> Request | None:
        """A place for a batch; None where it has no shape for a ring, or there is no place."""
        group, ring = self._group, self.ring
        if ring is None or not ring.suits(ids, *self.ahead):
            ring = self._make_ring(ids, part)
            if ring is None:
                return None
        place = ring.next_place()
        if place in self._placed:
            return None
        if not ring.has_room():
            self.flush_announcement()
            group.count_announced(wait=True)  # so that the table is made as large as it must be, and no larger
        if self._announcement is not None:
            self.flush_announcement()
        number = group.next_number()
        source = ids.pin_memory() if self._is_pageable(ids) else ids
        told = LateTold(ring.told[place], ids, part.columns, ring.num_lookups)
        request = Request(ring.waiting[place], number, None, told, told, describe, place)
        made = (caller_mark(group.device),) if ids.is_cuda else ()
        self._announcement = (request, source, made)
        self._placed[place] = request
        return request

    def _is_pageable(self, ids: Tensor) -> bool:
        """Whether ids must be pinned, lest the host wait for their copy: asked now and then, because it takes long."""
        if not self._on_cuda or ids.is_cuda:
            return False
        if self._num_announced % ASK_EVERY == 0:
            self._pageable = not ids.is_pinned()
        self._num_announced += 1
        return self._pageable

    def flush_announcement(self) -> None:
        """Announce at once what would have been announced with the next plan."""
        if self._announcement is not None:
            self._turn(None, ())

    def plan(self, request: Request, oldest: int | None) -> Flight | None:
        """Plan an announced batch in its seat, None where it has none that is free.

        Args:
            oldest: the first plan in flight.
        """
        group, ring, place, number = self._group, self.ring, request.place, request.number
        if ring is None or ring.is_broken or place is None or number is None:
            return None
        seat = ring.seat_of(place)
        before = self._seated.get(seat)
        if before is not None and not before.landed:
            return None
        told = request.num_rows.get_if_ready()
        num_rows = ring.num_lookups if told is None else told[0]
        how = (place, oldest, number, num_rows, group.looks_everywhere(request))
        after = tuple(group.released)
        mark, (batch, looked_at_all) = self._turn(how, (*self._left.get(seat, ()), *after))
        plan = ring.plan_in(seat, batch, number, num_rows, looked_at_all)
        late = LateNumbers(ring.counts[seat], mark)
        flight = Flight(plan, request, Placing.ALL_OR_NOTHING, late, mark, after, mark, seat)
        self._seated[seat] = flight
        return flight

    def has_seat(self, flight: Flight) -> bool:
        """Whether a flight's plan still is in its seat."""
        return flight.seat is not None and self._seated.get(flight.seat) is flight

    def note_use(self, flight: Flight, mark: Mark) -> None:
        """Who has left a seat has used what is in it once more, as a second backward pass does."""
        if flight.seat is not None and self.has_seat(flight):
            self._left[flight.seat] = [*self._left.get(flight.seat, ()), mark]

    def leave_place(self, request: Request) -> None:
        if request.place is not None:
            self._placed.pop(request.place)
            request.place = None

    def leave_seat(self, flight: Flight, marks: list[Mark] | None = None) -> None:
        """A flight has landed, and its seat is free after these marks; without them its plan did not fit."""
        assert flight.seat is not None
        if marks is None:
            del self._seated[flight.seat]
        else:
            self._left[flight.seat] = marks

    def _turn(self, how: _HowToPlan | None, after: tuple[Mark, ...]) -> tuple[Mark, tuple[int, bool]]:
        """Announce what is to be announced, and plan a batch, with its moves; see `Ring.prepare_plan`."""
        group, ring, announcement = self._group, self.ring, self._announcement
        assert ring is not None
        self._announcement = None
        made = (-1, False)
        cache_address = group.cache.data_ptr()
        if announcement is not None:
            announced, ids, there = announcement
            after = (*there, *after)

        def work() -> None:
            nonlocal made
            if announcement is not None:
                assert announced.place is not None
                assert announced.number is not None
                ring.prepare_announcement(ids, announced.place, announced.number)
            if how is not None:
                made = ring.prepare_plan(*how)
            ring.run(announcement is not None, how is not None, cache_address)

        try:
            mark = group.submit_turn(work, after)
            ring.ran(mark)
        except BaseException as error:
            if announcement is not None:
                announced.error = error  # for its turn: another batch may be read meanwhile
            raise
        if announcement is not None:
            announced.made = mark
            announced.num_rows.arrives(mark)
            group.bury(ids, mark)
        return mark, made

    def _make_ring(self, ids: Tensor, part: IdColumns) -> "Ring | None":
        """One for batches of this shape; None where there can be none now."""
        group = self._group
        depth, window = self.ahead
        if ids.numel() == 0 or depth == 0:
            return None  # without depth, rows move at their batch's turn; those of the ring move before
        from hotrows.cache.ring import Ring

        if self._placed or group.flies_in_ring():
            return None  # the ring of another shape is in use, as by the loop whose last batch is a shorter one
        group.planned.wait()  # the old ring is used no more
        with writable_state():
            self.ring = Ring(
                group.planner, part, ids.shape, ids.dtype, depth, window, group.store.num_rows, group.device,
                lambda moves: group.move_in_ring(moves),
            )  # fmt: skip
        caller_mark(group.device).wait()
        self._seated.clear()
        self._left.clear()
        return self.ring
