"""Planning by kernels against the eager planner."""

import pytest
import torch
from torch import Tensor

from hotrows.cache.indexes import make_index
from hotrows.cache.planning import victim_scan
from hotrows.cache.planning.buffers import PlanBuffer, PlanBuffers, RequestBuffers
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.kernel_planner import KernelPlanner
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement, Plan
from hotrows.cache.policies import Lookahead, Policy, make_policy
from hotrows.cache.policies.next_use import NextUseTable
from hotrows.cache.slots import Slots
from hotrows.ops import hash_table
from hotrows.ops.plan import kernel
from hotrows.ops.unique import UniqueRows, unique_rows

SIZES = (3, 50, 400)
NUM_SAMPLES = 20
WINDOW = 3
NUM_REQUEST_BUFFERS, NUM_PLAN_BUFFERS, NUM_ITERATIONS = 12, 3, 5


def make(policy: str | Policy, index: str, capacity: int, device: torch.device) -> EagerPlanner:
    slots = Slots(capacity, device)
    return EagerPlanner(slots, make_index(index, sum(SIZES), slots), make_policy(policy))


def all_columns(device: torch.device) -> IdColumns:
    sizes = torch.tensor(SIZES, device=device)
    return IdColumns(None, sizes.cumsum(0) - sizes, sizes)


def draw(random: torch.Generator) -> Tensor:
    skewed = torch.rand(NUM_SAMPLES, len(SIZES), generator=random) ** 3
    return (skewed * torch.tensor(SIZES)).long()


class Eagerly:
    """The definition: the eager planner."""

    def __init__(self, planner: EagerPlanner) -> None:
        self.planner = planner
        self.first_row = torch.tensor(SIZES).cumsum(0) - torch.tensor(SIZES)

    def announce(self, ids: Tensor, batch_number: int) -> UniqueRows:
        unique = unique_rows((ids + self.first_row).flatten())
        self.planner.announce(unique, batch_number)
        return unique

    def plan(self, unique: UniqueRows, oldest: int | None, batch_number: int) -> tuple[Plan, Counts]:
        (made,) = self.planner.plan(unique, Placement.ATOMIC, oldest, batch_number, scan_all=False)
        counts = Counts(*made.counts.tolist())
        self.planner.resolve(made, counts, Placement.ATOMIC)
        return made, counts


def host_memory(device: torch.device, *sizes: int) -> Tensor:
    """Memory of the host that kernels on the device can use."""
    return torch.zeros(sizes, dtype=torch.int32, pin_memory=device.type == "cuda")


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class ByKernels:
    def __init__(self, planner: EagerPlanner, device: torch.device, columns: IdColumns | None = None) -> None:
        self.planner = planner
        self.device = device
        columns = columns or all_columns(device)
        num_lookups = NUM_SAMPLES * columns.first_row.numel()
        self.request_buffers = RequestBuffers(
            NUM_REQUEST_BUFFERS, num_lookups, device, host_memory(device, NUM_REQUEST_BUFFERS, 2)
        )
        counts = host_memory(device, NUM_PLAN_BUFFERS, len(Counts._fields))
        self.plan_buffers = PlanBuffers(NUM_PLAN_BUFFERS, num_lookups, device, counts)
        self.host_inputs = host_memory(device, NUM_ITERATIONS, kernel.NUM_INPUTS)
        spec = planner.kernel_spec()
        assert spec is not None
        self.kernel_planner = KernelPlanner(
            spec, columns, NUM_SAMPLES, sum(SIZES), self.request_buffers, self.plan_buffers, self.host_inputs
        )
        self.num_announced = self.num_iterations = 0

    def run(self, ids: Tensor | None, plans: bool) -> None:
        self.kernel_planner.run(None if ids is None else ids.to(self.device), ids is not None, plans)
        self.num_iterations += 1
        finish(self.device)

    def announce(self, ids: Tensor, batch_number: int) -> int:
        """The request buffer of the batch."""
        buffer = self.num_announced % NUM_REQUEST_BUFFERS
        self.num_announced += 1
        self.host_inputs[self.num_iterations % NUM_ITERATIONS, 7:9] = torch.tensor([batch_number, buffer])
        if self.planner.policy.looks_ahead:
            self.planner.policy.next_use.expect(batch_number, self.kernel_planner.num_lookups)
        self.run(ids, plans=False)
        counts = self.request_buffers
        assert counts.counts_on_host[buffer].tolist() == counts.counts_on_device[buffer].tolist()
        return buffer

    def plan(self, request_buffer: int, oldest: int | None, batch_number: int) -> tuple[PlanBuffer, Counts]:
        planner, plan_buffer = self.planner, request_buffer % NUM_PLAN_BUFFERS
        num_rows = int(self.request_buffers.counts_on_host[request_buffer, 0])
        scan = planner.begin_plans(1, num_rows, scan_all=False)
        number = planner.plan_number
        inputs = [number, number if oldest is None else oldest, batch_number, *scan, request_buffer, plan_buffer]
        self.host_inputs[self.num_iterations % NUM_ITERATIONS, : len(inputs)] = torch.tensor(inputs)
        self.run(None, plans=True)
        made = self.plan_buffers[plan_buffer]
        counts = Counts(*made.counts.tolist())
        assert self.kernel_planner.moves is not None
        assert self.kernel_planner.moves.num.item() == counts.placed
        planner.index.note_evictions(counts.evictions, num_rows)
        if counts.fits and planner.policy.looks_ahead:
            planner.policy.batch_planned(batch_number, counts.erasures)
        return made, counts


@pytest.mark.parametrize("index", ["hash", "direct", "set-associative"])
@pytest.mark.parametrize(
    ("policy", "capacity", "scans_ranges"),
    [
        ("lookahead", 60, False), ("lookahead", 110, False), ("lookahead", 110, True),
        ("lookahead with counts", 80, False), ("lookahead with counts", 110, True), ("lru", 60, False),
        ("lfu", 80, False),
    ],
)  # fmt: skip
def test_plans_what_the_eager_planner_plans(policy, index, capacity, scans_ranges, device, random, monkeypatch):
    if scans_ranges:
        monkeypatch.setattr(victim_scan, "MIN_SLOTS", 40)
        monkeypatch.setattr(victim_scan, "PER_ROW", 1)
    chosen: str | Policy = policy
    if policy == "lookahead with counts":
        chosen = Lookahead(torch.randint(100, (sum(SIZES),), generator=random))
    num_slots = 2 * -(-capacity // 16) * 16 if index == "set-associative" else capacity
    ours = ByKernels(make(chosen, index, num_slots, device), device)
    theirs = Eagerly(make(chosen, index, num_slots, torch.device("cpu")))
    announced, in_flight, seen_both = [], [], set()
    for batch_number in range(12):
        ids = draw(random)
        announced.append((batch_number, ours.announce(ids, batch_number), theirs.announce(ids, batch_number)))
        if len(announced) < WINDOW:
            continue
        while True:
            planned, request_buffer, unique = announced[0]
            oldest = in_flight[0] if in_flight else None
            buffer, counts = ours.plan(request_buffer, oldest, planned)
            made, expected = theirs.plan(unique, oldest, planned)
            assert counts.erasures <= expected.erasures, "the kernels count erasures, the planner has an upper bound"
            assert counts == expected._replace(erasures=counts.erasures)
            seen_both.add(counts.fits)
            compare_state(ours.planner, theirs.planner)
            if counts.fits:
                break
            in_flight.pop(0)
        compare_plan(buffer, made, counts)
        moves = made.move_slots, made.move_out, made.move_in
        for mine, expected in zip(ours.kernel_planner.moves, moves, strict=False):
            assert torch.equal(mine[: counts.placed].cpu(), expected[: counts.placed])
        announced.pop(0)
        in_flight = [*in_flight, made.plan_number][-2:]
    if index != "set-associative":
        assert ours.planner.slots.row[:-1].min() >= 0, "the cache was full"
        assert capacity > 60 or seen_both == {0, 1}, "some plans fitted and some did not"


def compare_plan(buffer: PlanBuffer, made: Plan, counts: Counts) -> None:
    unique = counts.unique
    assert torch.equal(buffer.slots.cpu(), made.slots)
    assert torch.equal(buffer.row_slots[:unique].cpu(), made.row_slots[:unique])
    for name in made.unique._fields:
        assert torch.equal(getattr(buffer.unique, name).cpu(), getattr(made.unique, name)), name


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
        assert next_uses(ours.policy.next_use) == next_uses(theirs.policy.next_use)
        check_room(ours.policy.next_use)


def next_uses(table: NextUseTable) -> dict[int, int]:
    """Which batches need a row, by row, as a search finds them."""
    keys, uses, num_cells = table.arrays()
    held = keys[:num_cells]
    rows = held[held >= 0]
    num = torch.tensor([rows.numel()], dtype=torch.int32, device=keys.device)
    return dict(zip(rows.tolist(), uses[hash_table.find(keys, rows, num)].tolist(), strict=True))


def check_room(table: NextUseTable) -> None:
    """The host's upper bound is no less than the cells that are taken, and leaves cells empty, where a search ends."""
    keys, _, num_cells = table.arrays()
    taken = int((keys[:num_cells] != hash_table.EMPTY).sum())
    assert taken <= table._num_in_window + table._max_erased
    assert table._num_in_window + table._max_erased <= table._max_taken < num_cells


@pytest.mark.parametrize("index", ["hash", "set-associative"])
def test_a_bad_id_leaves_a_batch_without_rows(index, device, random):
    ours = ByKernels(make("lookahead", index, 112, device), device)
    ids = draw(random)
    ids[7, 1], ids[12, 2] = SIZES[1], -1
    buffer = ours.announce(ids, 0)
    num, behind = ours.request_buffers.counts_on_device[buffer].tolist()
    assert num == 0
    assert ours.kernel_planner.num_lookups - behind == 7 * len(SIZES) + 1, "the first of them is named"
    made, counts = ours.plan(buffer, None, 0)
    assert counts == Counts(0, 0, 0, 0, 0, 0, 0, 1, 0)
    assert (made.slots == -1).all()


def test_next_use_across_the_end_of_the_mask(device, random):
    """Batch numbers wrap round the 64 bits of the mask."""
    ours = ByKernels(make("lookahead", "hash", 200, device), device)
    theirs = Eagerly(make("lookahead", "hash", 200, torch.device("cpu")))
    announced = []
    for batch_number in range(60, 70):
        ids = draw(random)
        announced.append((batch_number, ours.announce(ids, batch_number), theirs.announce(ids, batch_number)))
    for batch_number, buffer, unique in announced:
        ours.plan(buffer, None, batch_number)
        theirs.plan(unique, None, batch_number)
        compare_state(ours.planner, theirs.planner)


def test_some_columns(device, random):
    sizes = torch.tensor(SIZES, device=device)
    columns = IdColumns(torch.tensor([2, 0], device=device), torch.tensor([0, 400], device=device), sizes[[2, 0]])
    ours, ids = ByKernels(make("lru", "direct", 300, device), device, columns), draw(random)
    found = ours.request_buffers.unique(ours.announce(ids, 0))
    expected = unique_rows(torch.stack([ids[:, 2], ids[:, 0] + 400], 1).flatten())
    assert torch.equal(found.rows.cpu(), expected.rows)
    assert torch.equal(found.inverse.cpu(), expected.inverse)


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("index", ["hash", "set-associative"])
def test_coalesced_batches_are_planned_as_one(index, parts, device, random):
    """Slots and moves are those of a batch with the lookups of all. Each batch has the slots of its own lookups."""
    num_slots = 180 if index == "hash" else 64 * (parts + 1) - 32
    planner, columns = make("lookahead", index, num_slots, device), all_columns(device)
    theirs = Eagerly(make("lookahead", index, num_slots, torch.device("cpu")))
    num_lookups = NUM_SAMPLES * len(SIZES)
    requests = RequestBuffers(
        4, num_lookups, device, host_memory(device, 4 * parts, 2), parts, host_memory(device, 4, 2)
    )
    plan_buffers = PlanBuffers(2 * parts, num_lookups, device, host_memory(device, 2 * parts, len(Counts._fields)))
    host_inputs = host_memory(device, NUM_ITERATIONS, kernel.NUM_INPUTS)
    spec = planner.kernel_spec()
    assert spec is not None
    ours = KernelPlanner(spec, columns, NUM_SAMPLES, sum(SIZES), requests, plan_buffers, host_inputs)
    evictions = 0
    for iteration in range(8):
        ids = [draw(random) for _ in range(parts)]
        planner.policy.next_use.expect(iteration, parts * num_lookups)
        unique = theirs.announce(torch.cat(ids), iteration)
        theirs.planner.plan_number += parts - 1
        scan = planner.begin_plans(parts, int(unique.num), scan_all=False)
        request_buffer, group, number = iteration % 4, iteration % 2, planner.plan_number
        inputs = [number, number, iteration, *scan, request_buffer, group, iteration, request_buffer]
        host_inputs[iteration % NUM_ITERATIONS, : len(inputs)] = torch.tensor(inputs)
        ours.run(torch.cat(ids).to(device), announces=True, plans=True)  # the same batches are announced and planned
        finish(device)
        made, expected = theirs.plan(unique, None, iteration)
        compare_state(planner, theirs.planner)
        moves = made.move_slots, made.move_out, made.move_in
        for mine, wanted in zip(ours.moves, moves, strict=False):
            assert torch.equal(mine[: expected.placed].cpu(), wanted[: expected.placed])
        totals = [0] * len(Counts._fields)
        for i, each in enumerate(ids):
            planned, alone = plan_buffers[group * parts + i], unique_rows((each + theirs.first_row).flatten())
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
        planner.index.note_evictions(expected.evictions, int(unique.num))
        planner.policy.batch_planned(iteration, found.erasures)
    assert evictions > 0


def test_inputs_are_where_the_kernels_look():
    of_a_plan = (
        kernel.PLAN_NUMBER, kernel.OLDEST, kernel.BATCH_NUMBER, kernel.SCAN, kernel.REQUEST_BUFFER, kernel.PLAN_BUFFERS,
    )  # fmt: skip
    assert [which.value for which in of_a_plan] == [0, 1, 2, 3, 5, 6]
    assert (kernel.ANNOUNCED_NUMBER.value, kernel.ANNOUNCED_BUFFER.value) == (7, 8)
