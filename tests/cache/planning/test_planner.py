"""Plans: what one batch needs."""

import torch

from hotrows.cache.indexes import make_index
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement, Plan
from hotrows.cache.policies import make_policy
from hotrows.cache.slots import Slots
from hotrows.ops.unique import unique_rows


def make(capacity: int) -> EagerPlanner:
    slots = Slots(capacity, torch.device("cpu"))
    return EagerPlanner(slots, make_index("hash", 1000, slots), make_policy("lru"))


def plan(
    planner: EagerPlanner, rows: list[int], placement: Placement, oldest: int | None = None
) -> tuple[Plan, Counts]:
    (made,) = planner.plan(unique_rows(torch.tensor(rows, dtype=torch.int64)), placement, oldest)
    return made, Counts(*made.counts.tolist())


def state(planner: EagerPlanner) -> list[torch.Tensor]:
    return [planner.slots.row[:-1].clone(), planner.slots.priority[:-1].clone()]


def test_every_lookup_has_the_slot_of_its_row() -> None:
    planner = make(10)
    rows = torch.tensor([5, 3, -1, 5, 9, 3])
    (made,) = planner.plan(unique_rows(rows), Placement.SPILL)
    assert made.slots[2] == -1
    found = planner.slots.row[made.slots.long()]
    assert torch.equal(torch.where(rows < 0, -1, found), rows)


def test_counts() -> None:
    planner = make(4)
    assert plan(planner, [1, 2, 2, 3], Placement.SPILL)[1] == Counts(4, 3, 0, 3, 3, 0, 0, 1, 3)
    assert plan(planner, [3, 4, 5], Placement.SPILL)[1] == Counts(3, 3, 1, 2, 2, 1, 0, 1, 3)


def test_moves_name_the_rows_that_leave_and_enter() -> None:
    planner = make(2)
    plan(planner, [1, 2], Placement.SPILL)
    made, _ = plan(planner, [7, 8], Placement.SPILL)
    assert sorted(made.move_out.tolist()) == [1, 2]
    assert made.move_in.tolist() == [7, 8]


def test_an_atomic_plan_that_does_not_fit_changes_nothing() -> None:
    planner = make(4)
    first, _ = plan(planner, [1, 2, 3], Placement.ATOMIC)
    before = state(planner)
    made, counts = plan(planner, [3, 4, 5], Placement.ATOMIC, oldest=first.plan_number)
    assert (counts.fits, counts.placed, counts.overflow) == (0, 0, 0)
    assert (made.move_in < 0).all()
    assert all(torch.equal(a, b) for a, b in zip(state(planner), before, strict=True))
    _, counts = plan(planner, [3, 4, 5], Placement.ATOMIC)
    assert (counts.fits, counts.placed) == (1, 2)


def test_rows_that_do_not_fit_overflow() -> None:
    planner = make(3)
    made, counts = plan(planner, [1, 2, 3, 4, 5, 4], Placement.SPILL)
    assert (counts.placed, counts.overflow) == (3, 2)
    assert sorted(made.row_slots.tolist()) == [0, 1, 2, 3, 4]
    assert made.overflow_rows[:2].tolist() == [
        row for row, slot in zip([1, 2, 3, 4, 5], made.row_slots, strict=True) if slot >= 3
    ]
    assert made.slots[3] == made.slots[5]


def test_a_read_only_plan_places_nothing() -> None:
    planner = make(3)
    plan(planner, [1, 2], Placement.SPILL)
    before = state(planner)
    made, counts = plan(planner, [2, 9], Placement.READ_ONLY)
    assert (counts.hits, counts.overflow, counts.evictions) == (1, 1, 0)
    assert made.row_slots[1] == 3
    assert all(torch.equal(a, b) for a, b in zip(state(planner), before, strict=True))


def test_an_empty_batch() -> None:
    planner = make(3)
    made, counts = plan(planner, [], Placement.SPILL)
    assert counts == Counts(0, 0, 0, 0, 0, 0, 0, 1, 0)
    assert made.slots.numel() == 0
