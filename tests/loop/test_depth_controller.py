"""How far ahead batches are planned, by the room there is: what stands in for a cache has nothing but room."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hotrows.loop.scheduler import Pipeline

BATCH = 100  # rows, which no other batch has


@dataclass(eq=False)
class Flight:
    request: Any
    fits: bool
    seat: int = 0
    plan: Any = field(default_factory=lambda: SimpleNamespace(looked_at_all=True))


class Room:
    """So many rows, of which those are taken that were planned since the oldest plan in flight, as in a cache."""

    stale_reads = None

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.misses_next = False  # the next plan looks at a part of the slots, and fails there
        self.flying: list[Flight] = []
        self.num_failed = 0
        self._planned: list[Flight] = []
        self.seating = SimpleNamespace(end_turn=lambda: None, keep_apart=lambda request: None)

    def plan_ahead(self, request: Any, soon: bool) -> list[Flight]:
        self._planned = self._planned[self._planned.index(self.flying[0]) :] if self.flying else []
        taken = sum(flight.request.num_rows for flight in self._planned)
        flight = Flight(request, taken + request.num_rows <= self.num_rows and not self.misses_next)
        flight.plan.looked_at_all, self.misses_next = not self.misses_next, False
        self.num_failed += not flight.fits
        if flight.fits:
            self.flying.append(flight)
            self._planned.append(flight)
        return [flight]

    def surely_fits(self, request: Any) -> bool:
        return False

    def resolve(self, flight: Flight) -> bool:
        return flight.fits

    def forget(self, flight: Flight) -> None:
        pass

    def drop(self, flight: Flight) -> None:
        self.flying.remove(flight)

    def withdraw(self, request: Any) -> None:
        pass


class Loop:
    """Batches through a pipeline; all have as many rows, but for those of the numbers in `large`."""

    def __init__(self, room: float, depth: int, large: dict[int, int] | None = None) -> None:
        self.group = Room(int(room * BATCH))
        self.pipeline = Pipeline(self.group, depth)  # type: ignore[arg-type]
        self._large = large or {}
        self._num = 0
        for _ in range(depth + 4):
            self._announce()

    def turn(self) -> tuple[int, bool]:
        """How many batches to come have a plan, and whether the one before the current one is in flight."""
        assert self.pipeline.turn()[1] is not None
        planned = [entry.flight is not None and entry.flight.fits for entry in self.pipeline._coming]
        found = planned.index(False), len(self.group.flying) > 1 + sum(planned)
        self.pipeline.finish()
        self._announce()
        return found

    def _announce(self) -> None:
        num_rows = self._large.get(self._num, BATCH)
        self.pipeline.announce(SimpleNamespace(num_rows=num_rows, error=None, party=None))  # type: ignore[arg-type]
        self._num += 1


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("room", [1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
def test_room_is_used_for_batches_to_come_up_to_the_depth(room: float, depth: int) -> None:
    """One that has trained takes a place only where another one is left. What is tried meanwhile costs a few turns."""
    loop = Loop(room, depth)
    settled = [loop.turn() for _ in range(600)][200:]
    num_ahead, has_last = max(set(settled), key=settled.count)
    beside = int(room) - 1  # batches that fit beside the current one
    assert num_ahead >= min(beside, 1)
    assert num_ahead + has_last >= min(beside, depth)
    assert settled.count((num_ahead, has_last)) > 0.95 * len(settled)
    assert loop.group.num_failed < 60


@pytest.mark.parametrize(("depth", "room"), [(1, 5.5), (2, 6.5), (4, 8.5)])
def test_after_large_batches_as_many_are_planned_as_before(depth: int, room: float) -> None:
    """However many have come: what is tried in vain after a while only tells of now."""
    large = [300 * i for i in range(1, 7)]
    loop = Loop(room, depth, dict.fromkeys(large, 4 * BATCH))
    found = [loop.turn() for _ in range(large[-1] + 350)]
    best = (depth + 2, True)
    assert found[large[0] - 50] == best
    assert min(found) < (depth, False)  # in between there was room for fewer
    assert found[-1] == best


def test_a_part_of_the_slots_with_too_few_victims_is_no_reason_to_plan_less_ahead() -> None:
    """Not even where more is being tried: the batch is planned again, nearer than what was tried."""
    for after in range(130, 150):
        loop = Loop(6.5, 2, {100: 4 * BATCH})
        found = []
        for turn in range(600):
            loop.group.misses_next = turn == after
            found.append(loop.turn())
        assert found[-1] == (4, True), f"the plan of turn {after} looks at a part"
