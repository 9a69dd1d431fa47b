"""Planning by kernels against planning step by step."""

import pytest
import torch
from torch import Tensor

from hotrows.cache.indexes import make_index
from hotrows.cache.planning import victim_scan
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.kernel_planner import KernelPlanner, PlanBuffer, PlanBuffers, RequestBuffers
from hotrows.cache.planning.planner import Counts, EagerPlanner, Placement
from hotrows.cache.policies import Lookahead, Policy, make_policy
from hotrows.cache.policies.next_use import NextUseTable
from hotrows.cache.slots import Slots
from hotrows.ops import hash_table
from hotrows.ops.plan import kernel
from hotrows.ops.unique import unique_rows

SIZES = (3, 50, 400)
NUM_SAMPLES = 20
WINDOW = 3
NUM_PLACES, NUM_SEATS, NUM_TURNS = 12, 3, 5


def make(policy: str | Policy, index: str, capacity: int, device: torch.device) -> EagerPlanner:
    slots = Slots(capacity, device)
    return EagerPlanner(slots, make_index(index, sum(SIZES), slots), make_policy(policy))


def columns(device: torch.device) -> IdColumns:
    sizes = torch.tensor(SIZES, device=device)
    return IdColumns(None, sizes.cumsum(0) - sizes, sizes)


def draw(random: torch.Generator) -> Tensor:
    skewed = torch.rand(NUM_SAMPLES, len(SIZES), generator=random) ** 3
    return (skewed * torch.tensor(SIZES)).long()


class Stepwise:
    """The reference: the planner itself."""

    def __init__(self, planner: EagerPlanner) -> None:
        self.planner = planner
        first = torch.tensor(SIZES).cumsum(0) - torch.tensor(SIZES)
        self.first_row = first

    def announce(self, ids: Tensor, number: int):
        unique = unique_rows((ids + self.first_row).flatten())
        self.planner.announce(unique, number)
        return unique

    def plan(self, unique, oldest: int | None, number: int):
        made = self.planner.plan(unique, Placement.ATOMIC, oldest, number, everywhere=False)
        counts = Counts(*made.counts.tolist())
        self.planner.resolve(made, counts, Placement.ATOMIC)
        return made, counts


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class ByKernels:
    def __init__(self, planner: EagerPlanner, device: torch.device, part: IdColumns | None = None) -> None:
        self.planner = planner
        self.device = device
        part = part or columns(device)
        num_lookups = NUM_SAMPLES * part.first_row.numel()

        def host(*sizes: int) -> Tensor:
            """Memory of the host that kernels on the device can use."""
            return torch.zeros(sizes, dtype=torch.int32, pin_memory=device.type == "cuda")

        self.places = RequestBuffers(NUM_PLACES, num_lookups, device, host(NUM_PLACES, 2))
        self.seats = PlanBuffers(NUM_SEATS, num_lookups, device, host(NUM_SEATS, len(Counts._fields)))
        self.numbers = host(NUM_TURNS, kernel.NUM_NUMBERS)
        self.fused = KernelPlanner(planner, part, NUM_SAMPLES, sum(SIZES), self.places, self.seats, self.numbers)
        self.num_announced = self.num_turns = 0

    def turn(self, ids: Tensor | None, plans: bool) -> None:
        self.fused.turn(None if ids is None else ids.to(self.device), ids is not None, plans)
        self.num_turns += 1
        finish(self.device)

    def announce(self, ids: Tensor, number: int) -> int:
        place = self.num_announced % NUM_PLACES
        self.num_announced += 1
        self.numbers[self.num_turns % NUM_TURNS, 7:9] = torch.tensor([number, place])
        if self.planner.policy.looks_ahead:
            self.planner.policy.next_use.expect(number, self.fused.num_lookups)
        self.turn(ids, plans=False)
        assert self.places.told[place].tolist() == self.places.noted[place].tolist()
        return place

    def plan(self, place: int, oldest: int | None, number: int) -> tuple[PlanBuffer, Counts]:
        planner, seat = self.planner, place % NUM_SEATS
        planner.batch += 1
        planner.index.maintain(self.fused.num_lookups)
        looked_at = planner.next_scan(int(self.places.told[place, 0]), everywhere=False)
        written = [planner.batch, planner.batch if oldest is None else oldest, number, *looked_at, place, seat]
        self.numbers[self.num_turns % NUM_TURNS, : len(written)] = torch.tensor(written)
        self.turn(None, plans=True)
        made = self.seats[seat]
        counts = Counts(*made.counts.tolist())
        assert self.fused.moves is not None
        assert self.fused.moves.num.item() == counts.placed
        planner.index.replaced(counts.evictions, self.fused.num_lookups)
        if counts.fits and planner.policy.looks_ahead:
            planner.policy.came(number, counts.erasures)
        return made, counts


@pytest.mark.parametrize("index", ["hash", "direct"])
@pytest.mark.parametrize(
    ("policy", "capacity", "by_parts"),
    [
        ("lookahead", 60, False), ("lookahead", 110, False), ("lookahead", 110, True),
        ("lookahead with counts", 80, False), ("lookahead with counts", 110, True), ("lru", 60, False),
        ("lfu", 80, False),
    ],
)  # fmt: skip
def test_plans_what_the_planner_plans(policy, index, capacity, by_parts, device, random, monkeypatch):
    if by_parts:
        monkeypatch.setattr(victim_scan, "LEAST", 40)
        monkeypatch.setattr(victim_scan, "PER_ROW", 1)
    chosen: str | Policy = policy
    if policy == "lookahead with counts":
        chosen = Lookahead(torch.randint(100, (sum(SIZES),), generator=random))
    ours = ByKernels(make(chosen, index, capacity, device), device)
    theirs = Stepwise(make(chosen, index, capacity, torch.device("cpu")))
    coming, in_flight, seen_both = [], [], set()
    for number in range(12):
        ids = draw(random)
        coming.append((number, ours.announce(ids, number), theirs.announce(ids, number)))
        if len(coming) < WINDOW:
            continue
        while True:
            mine, place, unique = coming[0]
            oldest = in_flight[0] if in_flight else None
            seat, counts = ours.plan(place, oldest, mine)
            made, expected = theirs.plan(unique, oldest, mine)
            assert counts.erasures <= expected.erasures, "the kernels know, the planner has the most it can be"
            assert counts == expected._replace(erasures=counts.erasures)
            seen_both.add(counts.fits)
            compare_state(ours.planner, theirs.planner)
            if counts.fits:
                break
            in_flight.pop(0)
        compare_plan(seat, made, counts)
        for mine, expected in zip(ours.fused.moves, (made.move_slots, made.move_out, made.move_in), strict=False):
            assert torch.equal(mine[: counts.placed].cpu(), expected[: counts.placed])
        coming.pop(0)
        in_flight = [*in_flight, made.batch][-2:]
    assert ours.planner.slots.row[:-1].min() >= 0, "the cache was full"
    assert capacity > 60 or seen_both == {0, 1}, "some plans fitted and some did not"


def compare_plan(seat: PlanBuffer, made, counts: Counts) -> None:
    for name in Counts._fields:
        assert getattr(counts, name) is not None
    unique = counts.unique
    assert torch.equal(seat.slots.cpu(), made.slots)
    assert torch.equal(seat.row_slots[:unique].cpu(), made.row_slots[:unique])
    for name in made.unique._fields:
        assert torch.equal(getattr(seat.unique, name).cpu(), getattr(made.unique, name)), name


def compare_state(ours: EagerPlanner, theirs: EagerPlanner) -> None:
    for name in ("row", "last_used", "priority"):
        found, expected = getattr(ours.slots, name)[:-1].cpu(), getattr(theirs.slots, name)[:-1]
        assert torch.equal(found, expected), name
    every = torch.arange(sum(SIZES))
    num = torch.tensor([every.numel()], dtype=torch.int32)
    device = ours.slots.device
    assert torch.equal(ours.index.find(every.to(device), num.to(device)).cpu(), theirs.index.find(every, num))
    if isinstance(ours.policy, Lookahead):
        assert isinstance(theirs.policy, Lookahead)
        assert upcoming_uses(ours.policy.next_use) == upcoming_uses(theirs.policy.next_use)
        check_room(ours.policy.next_use)


def upcoming_uses(next_use: NextUseTable) -> dict[int, int]:
    """Which batches need a row, by row, as a search finds them."""
    keys, uses, num_cells = next_use.arrays()
    held = keys[:num_cells]
    rows = held[held >= 0]
    num = torch.tensor([rows.numel()], dtype=torch.int32, device=keys.device)
    return dict(zip(rows.tolist(), uses[hash_table.find(keys, rows, num)].tolist(), strict=True))


def check_room(next_use: NextUseTable) -> None:
    """What the host believes is no less than what there is, and leaves cells empty, at which a search ends."""
    keys, _, num_cells = next_use.arrays()
    taken = int((keys[:num_cells] != hash_table.EMPTY).sum())
    assert taken <= next_use._num_in_window + next_use._most_erased
    assert next_use._num_in_window + next_use._most_erased <= next_use._most_taken < num_cells


def test_a_bad_id_leaves_a_batch_without_rows(device, random):
    ours = ByKernels(make("lookahead", "hash", 100, device), device)
    ids = draw(random)
    ids[7, 1], ids[12, 2] = SIZES[1], -1
    place = ours.announce(ids, 0)
    num, behind = ours.places.noted[place].tolist()
    assert num == 0
    assert ours.fused.num_lookups - behind == 7 * len(SIZES) + 1, "the first of them is named"
    seat, counts = ours.plan(place, None, 0)
    assert counts == Counts(0, 0, 0, 0, 0, 0, 0, 1, 0)
    assert (seat.slots == -1).all()


def test_next_use_across_the_end_of_the_mask(device, random):
    """Batch numbers wrap round the 64 bits of the mask."""
    ours = ByKernels(make("lookahead", "hash", 200, device), device)
    theirs = Stepwise(make("lookahead", "hash", 200, torch.device("cpu")))
    coming = []
    for number in range(60, 70):
        ids = draw(random)
        coming.append((number, ours.announce(ids, number), theirs.announce(ids, number)))
    for number, place, unique in coming:
        ours.plan(place, None, number)
        theirs.plan(unique, None, number)
        compare_state(ours.planner, theirs.planner)


def test_some_columns(device, random):
    sizes = torch.tensor(SIZES, device=device)
    part = IdColumns(torch.tensor([2, 0], device=device), torch.tensor([0, 400], device=device), sizes[[2, 0]])
    ours, ids = ByKernels(make("lru", "direct", 300, device), device, part), draw(random)
    found = ours.places.unique(ours.announce(ids, 0))
    expected = unique_rows(torch.stack([ids[:, 2], ids[:, 0] + 400], 1).flatten())
    assert torch.equal(found.rows.cpu(), expected.rows)
    assert torch.equal(found.inverse.cpu(), expected.inverse)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_party_is_planned_as_one_batch(parts, device, random):
    """Slots and moves are those of a batch with the lookups of all; each of its batches has its own part of them."""
    planner, part = make("lookahead", "hash", 180, device), columns(device)
    theirs = Stepwise(make("lookahead", "hash", 180, torch.device("cpu")))
    num_lookups = NUM_SAMPLES * len(SIZES)

    def host(*sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=torch.int32, pin_memory=device.type == "cuda")

    places = RequestBuffers(4, num_lookups, device, host(4 * parts, 2), parts, host(4, 2))
    seats = PlanBuffers(2 * parts, num_lookups, device, host(2 * parts, len(Counts._fields)))
    numbers = host(NUM_TURNS, kernel.NUM_NUMBERS)
    ours = KernelPlanner(planner, part, NUM_SAMPLES, sum(SIZES), places, seats, numbers)
    evictions = 0
    for turn in range(8):
        ids = [draw(random) for _ in range(parts)]
        planner.policy.next_use.expect(turn, parts * num_lookups)
        unique = theirs.announce(torch.cat(ids), turn)
        planner.batch += parts
        theirs.planner.batch += parts - 1
        planner.index.maintain(unique.rows.numel())
        place, seat, batch = turn % 4, turn % 2, planner.batch
        plan_numbers = [batch, batch, turn, *planner.next_scan(unique.rows.numel(), False), place, seat, turn, place]
        numbers[turn % NUM_TURNS, : len(plan_numbers)] = torch.tensor(plan_numbers)
        ours.turn(torch.cat(ids).to(device), announces=True, plans=True)  # a turn of both, of one party
        finish(device)
        made, expected = theirs.plan(unique, None, turn)
        compare_state(planner, theirs.planner)
        moves = made.move_slots, made.move_out, made.move_in
        for mine, wanted in zip(ours.moves, moves, strict=False):
            assert torch.equal(mine[: expected.placed].cpu(), wanted[: expected.placed])
        totals = [0] * len(Counts._fields)
        for i, each in enumerate(ids):
            planned, alone = seats[seat * parts + i], unique_rows((each + theirs.first_row).flatten())
            num = int(alone.num)
            for name in alone._fields:
                assert torch.equal(getattr(planned.unique, name).cpu(), getattr(alone, name)), (i, name)
            assert torch.equal(planned.slots.cpu(), made.slots[i * num_lookups : (i + 1) * num_lookups])
            assert torch.equal(planned.slots.cpu(), planned.row_slots[:num].cpu()[alone.inverse.long()])
            totals = [one + other for one, other in zip(totals, planned.counts.tolist(), strict=True)]
        found = Counts(*totals)
        assert found.fits == parts
        assert (found.lookups, found.misses) == (expected.lookups, expected.misses)
        assert (found.placed, found.evictions) == (expected.placed, expected.evictions)
        assert found.hits + found.misses == found.unique >= expected.unique
        evictions += expected.evictions
        planner.index.replaced(expected.evictions, unique.rows.numel())
        planner.policy.came(turn, found.erasures)
    assert evictions > 0


def test_numbers_are_where_the_kernels_look():
    of_a_plan = (kernel.BATCH, kernel.OLDEST, kernel.NUMBER, kernel.SCAN, kernel.PLACE, kernel.SEAT)
    assert [number.value for number in of_a_plan] == [0, 1, 2, 3, 5, 6]
    assert (kernel.COMING.value, kernel.COMING_PLACE.value) == (7, 8)
