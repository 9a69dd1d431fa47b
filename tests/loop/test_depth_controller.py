"""How far ahead batches are planned, depending on the room in the cache. The stand-in scheduler has only room."""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from hotrows.loop.depth_controller import MOST_BACK_OFF, READBACK_LAG, DepthController, Probe
from hotrows.loop.ticket import BatchTicket, TicketState
from hotrows.loop.window import BatchWindow

BATCH = 100  # rows of a batch, none of which another batch has


def make_ticket(num_rows: int) -> BatchTicket:
    unique: Any = SimpleNamespace(num_rows=num_rows)
    unused: Any = None
    return BatchTicket(unique, (), unused, None, None)


def rows_of(ticket: BatchTicket) -> int:
    num: int = ticket.unique.num_rows  # type: ignore[attr-defined]
    return num


class Room:
    """Plans as the scheduler of a cache of `num_rows` rows: slots used since the oldest batch in flight are taken."""

    stale_reads = None

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.misses_next = False  # the next plan scans a part of the slots, and finds too few victims there
        self.in_flight: list[BatchTicket] = []
        self.num_rejected = 0
        self._planned: list[BatchTicket] = []
        self.graph_planning = SimpleNamespace(end_iteration=lambda: None)
        self.cache = SimpleNamespace(uncount_batch=lambda counts: None)
        self.announcements = SimpleNamespace(stop_coalescing=lambda ticket: None, withdraw=self.withdraw)

    def plan_ahead(self, ticket: BatchTicket, soon: bool) -> list[BatchTicket]:
        self._planned = self._planned[self._planned.index(self.in_flight[0]) :] if self.in_flight else []
        taken = sum(map(rows_of, self._planned))
        fits = taken + rows_of(ticket) <= self.num_rows and not self.misses_next
        ticket.plan = SimpleNamespace(scanned_all=not self.misses_next, fits=fits)  # type: ignore[assignment]
        ticket.plan_buffer, self.misses_next = 0, False
        ticket.move_to(TicketState.PLANNED)
        if fits:
            self.in_flight.append(ticket)
            self._planned.append(ticket)
        return [ticket]

    def surely_fits(self, ticket: BatchTicket) -> bool:
        return False

    def resolve(self, ticket: BatchTicket) -> bool:
        fits: bool = ticket.plan.fits  # type: ignore[union-attr]
        if ticket.state is TicketState.PLANNED:
            self.num_rejected += not fits
            ticket.move_to(TicketState.READY if fits else TicketState.REJECTED)
        return fits

    def plan_again(self, ticket: BatchTicket) -> None:
        ticket.move_to(TicketState.ANNOUNCED)
        ticket.plan = ticket.plan_buffer = ticket.ahead = None

    def release(self, ticket: BatchTicket) -> None:
        ticket.move_to(TicketState.RELEASED)
        self.in_flight.remove(ticket)

    def withdraw(self, ticket: BatchTicket) -> None:
        ticket.move_to(TicketState.RELEASED)


class Loop:
    """Batches through a window. All have as many rows, except those whose numbers are in `large`."""

    def __init__(self, room: float, depth: int, large: dict[int, int] | None = None) -> None:
        self.room = Room(int(room * BATCH))
        self.window = BatchWindow(self.room, depth)  # type: ignore[arg-type]
        self._large = large or {}
        self._num = 0
        for _ in range(depth + 4):
            self._announce()

    def iterate(self) -> tuple[int, bool]:
        """How many batches to come have a plan, and whether the batch before the current one is in flight."""
        assert self.window.next().state is TicketState.READY
        planned = [ticket.plan is not None and ticket.plan.fits for ticket in self.window._to_come]  # type: ignore[attr-defined]
        found = planned.index(False), len(self.room.in_flight) > 1 + sum(planned)
        self.window.finish()
        self._announce()
        return found

    def _announce(self) -> None:
        self.window.announce(make_ticket(self._large.get(self._num, BATCH)))
        self._num += 1


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("room", [1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
def test_room_is_used_for_batches_to_come_up_to_the_depth(room: float, depth: int) -> None:
    """A batch that has trained stays only if room is left. Probes cost a few iterations."""
    loop = Loop(room, depth)
    later = [loop.iterate() for _ in range(600)][200:]
    num_ahead, has_last = max(set(later), key=later.count)
    beside = int(room) - 1  # batches that fit beside the current one
    assert num_ahead >= min(beside, 1)
    assert num_ahead + has_last >= min(beside, depth)
    assert later.count((num_ahead, has_last)) > 0.95 * len(later)
    assert loop.room.num_rejected < 60


@pytest.mark.parametrize(("depth", "room"), [(1, 5.5), (2, 6.5), (4, 8.5)])
def test_after_large_batches_as_many_are_planned_as_before(depth: int, room: float) -> None:
    """This holds after any number of large batches: a probe that fails later says nothing about more room."""
    large = [300 * i for i in range(1, 7)]
    loop = Loop(room, depth, dict.fromkeys(large, 4 * BATCH))
    found = [loop.iterate() for _ in range(large[-1] + 350)]
    best = (depth + 2, True)
    assert found[large[0] - 50] == best
    assert min(found) < (depth, False)  # in between there was room for fewer
    assert found[-1] == best


def test_a_part_of_the_slots_with_too_few_victims_is_no_reason_to_plan_less_ahead() -> None:
    """Not even during a probe: the batch is planned again, at a smaller distance than what was probed."""
    for after in range(130, 150):
        loop = Loop(6.5, 2, {100: 4 * BATCH})
        found = []
        for iteration in range(600):
            loop.room.misses_next = iteration == after
            found.append(loop.iterate())
        assert found[-1] == (4, True), f"the plan of iteration {after} scans a part"


@settings(max_examples=300, deadline=None)
@given(depth=st.integers(0, 6), fits=st.lists(st.booleans(), min_size=1, max_size=300), beside_last=st.booleans())
def test_whatever_fits_the_depth_stays_in_its_range(depth: int, fits: list[bool], beside_last: bool) -> None:
    controller = DepthController(depth)
    for fit in fits:
        controller.begin_iteration()
        controller.start_probe(is_probing=False)
        assert 0 <= controller.depth <= depth + READBACK_LAG
        distance = controller.depth
        probe = controller.probe_of(distance, beside_last)
        before = controller.depth
        if fit:
            controller.fitted(probe, distance)
        else:
            controller.rejected(probe, distance, beside_last)
        assert controller.depth <= before, "the depth grows by probes alone"


def test_no_probe_starts_while_another_is_unresolved() -> None:
    controller = DepthController(4)
    controller.rejected(None, 6, beside_last=False)
    shrunk = controller.depth
    assert shrunk == 4
    for _ in range(2 * MOST_BACK_OFF):
        controller.begin_iteration()
        controller.start_probe(is_probing=True)
    assert controller.depth == shrunk
    controller.start_probe(is_probing=False)
    assert controller.depth == shrunk + 1
    assert controller.probe_of(shrunk + 1, beside_last=False) is Probe.DEPTH
    controller.rejected(Probe.DEPTH, shrunk + 1, beside_last=False)
    assert controller.depth == shrunk
