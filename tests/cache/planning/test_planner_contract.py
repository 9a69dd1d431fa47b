"""The contract of planners: the planning kernels make the same plans as the eager planner, which is the definition.

Workloads are drawn, and run by two planners. One follows the definition. The other shares its state with a planning
graph, which makes most of its plans. After every operation the plans and the whole state are compared. On the CPU the
kernels run in the interpreter.

HOTROWS_PLANNER_CASES=1000 draws that many workloads for each pair of an index and a policy, and prints the count.
"""

import contextlib
import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from hotrows.cache.indexes import INDEXES, make_index
from hotrows.cache.planning import victim_scan
from hotrows.cache.planning.coalesce import union_of
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Part, Placement, Plan, Planner
from hotrows.cache.policies import POLICIES, Lookahead, make_policy
from hotrows.cache.policies.ranking import MAX_FREQUENCY
from hotrows.cache.slots import Slots
from hotrows.ops import hash_table
from hotrows.ops.unique import UniqueRows, reference
from hotrows.runtime.streams import record_event
from tests.cache.planning.fast_interpreter import fast_interpreter

NUM_CASES = int(os.environ.get("HOTROWS_PLANNER_CASES", "8"))  # workloads of each pair
CPU = torch.device("cpu")
IDENTITY = "identity"
KERNEL_PAIRS = [
    *((index, policy) for index in ("direct", "hash", "set-associative") for policy in ("lookahead", "lru", "lfu")),
    (IDENTITY, "none"),
]
pairs = pytest.mark.parametrize(("index", "policy"), KERNEL_PAIRS)
pytestmark = pytest.mark.timeout(600 + 30 * NUM_CASES)


@pytest.fixture
def device(device: torch.device) -> Iterator[torch.device]:
    if device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels run on the GPU of this machine, not in the interpreter")
    if device.type == "cuda":
        yield torch.device("cuda", torch.cuda.current_device())
        return
    with fast_interpreter():
        yield device


@dataclass
class Group:
    """Batches that were announced under one number. They are planned as one."""

    batch_number: int
    batches: list[UniqueRows]
    union: UniqueRows
    parts: list[Part] | None  # None for one batch
    request_buffer: int | None  # None if the kernels do not know of these batches


@dataclass
class Made:
    """A plan of both planners, whose counts the host has not read back."""

    ours: Plan
    counts: Counts
    theirs: Plan
    expected: Counts
    placement: Placement


class Contract:
    """One workload. `theirs` follows the definition, and `ours` is planned for by kernels too."""

    def __init__(self, index: str, policy: str, number: int, device: torch.device) -> None:
        self.random = random = Random(f"{index} {policy} {number}")
        self.name = f"workload {number} of {index}, {policy}"
        self.device = device
        self.counts: Counter[str] = Counter()
        self.is_identity = index == IDENTITY
        self.num_samples, self.max_parts = random.choice([1, 2, 3, 4, 5, 5, 5, 24]), random.choice([1, 1, 2, 3, 4])
        self._draw_tables()
        self._draw_planners(index, policy)
        depth = random.randint(1, 3)
        self._make_graph(depth, window=random.randint(depth + 1, 8))
        self.next_number = random.randint(0, 130)
        self.announced: deque[Group] = deque()
        self.in_flight: list[int] = []  # numbers of plans
        self.unresolved: deque[Made] = deque()
        self.uncounted: deque[tuple[int, int]] = deque()  # batch numbers, and how many rows are announced under each

    # -- drawing ------------------------------------------------------------------------------------------------------

    def _draw_tables(self) -> None:
        random = self.random
        sizes = [random.randint(1, 60) for _ in range(random.randint(1, 3))]
        tables = list(range(len(sizes)))
        if random.random() < 0.7:  # then the kernels sort all lookups together, which the interpreter does faster
            tables.append(random.choice(tables))
        first = [sum(sizes[:table]) for table in tables]
        self.sizes = [sizes[table] for table in tables]
        self.num_rows = sum(sizes)
        self.first_row = torch.tensor(first)
        some = random.random() < 0.2  # of the columns of the ids
        self.columns = random.sample(range(len(tables) + 2), len(tables)) if some else None
        self.num_lookups = self.num_samples * len(tables)

    def _draw_planners(self, index: str, policy: str) -> None:
        random = self.random
        if self.is_identity:
            self.ours: Any = IdentityPlanner(self.num_rows)
            self.theirs: Any = IdentityPlanner(self.num_rows)
            return
        num_lookups = self.max_parts * self.num_lookups
        num_slots = max(1, int(num_lookups * random.uniform(0.4, 2)))
        if index == "set-associative":
            num_slots = 16 * random.randint(1, max(1, -(-num_slots // 16)))
        chosen: Any = policy
        if policy == "lookahead" and random.random() < 0.25:
            generator = torch.Generator().manual_seed(random.getrandbits(32))
            chosen = Lookahead(torch.randint(50, (self.num_rows,), generator=generator))
            self.counts["with counts"] += 1
        self.ours, self.theirs = (
            EagerPlanner(slots, make_index(index, self.num_rows, slots), make_policy(chosen))
            for slots in (Slots(num_slots, self.device), Slots(num_slots, CPU))
        )

    def _make_graph(self, depth: int, window: int) -> None:
        from hotrows.cache.planning.planning_graph import PlanningGraph

        width = len(self.sizes) if self.columns is None else len(self.sizes) + 2
        columns = IdColumns(
            None if self.columns is None else torch.tensor(self.columns, device=self.device),
            self.first_row.to(self.device),
            torch.tensor(self.sizes, device=self.device),
        )
        self.graph = PlanningGraph(
            self.ours, columns, torch.Size([self.num_samples, width]), torch.int64, depth, window, self.num_rows,
            self.device, lambda moves: None, self.max_parts,
        )  # fmt: skip
        self.ids: list[Tensor] = []  # that are announced next
        # The kernels count a bad id of coalesced batches as a lookup of another row. That decides at most which row is
        # evicted later, in a loop that the bad batch ends.
        self.draws_bad_ids = self.max_parts == 1
        if self.device.type == "cpu" and self.random.random() < 0.9:
            self.graph._kernel_planner._find_unique = self._write_unique  # type: ignore[method-assign]
            self.draws_bad_ids = True

    def draw_ids(self) -> tuple[Tensor, UniqueRows, UniqueRows]:
        """The ids of a batch, its unique rows, and those of its good ids: a batch with a bad id has no rows."""
        random, columns = self.random, self.columns or range(len(self.sizes))
        width = len(self.sizes) if self.columns is None else len(self.sizes) + 2
        ids = torch.zeros(self.num_samples, width, dtype=torch.int64)
        rows = torch.empty(self.num_samples, len(self.sizes), dtype=torch.int64)
        has_bad_ids = self.draws_bad_ids and random.random() < 0.05
        bad_samples = {random.randrange(self.num_samples)} if has_bad_ids else set()
        for sample in range(self.num_samples):
            for feature, column in enumerate(columns):
                found = int(random.random() ** 1.5 * self.sizes[feature])
                is_bad = sample in bad_samples and random.random() < 0.6
                if is_bad:
                    found = random.choice([-1, self.sizes[feature], 2**40])
                ids[sample, column] = found
                rows[sample, feature] = -1 if is_bad else found + int(self.first_row[feature])
        good = UniqueRows(*reference.unique_rows(rows.flatten()))
        if not (rows < 0).any():
            return ids, good, good
        self.counts["bad batches"] += 1
        return ids, UniqueRows(*reference.unique_rows(torch.full_like(rows.flatten(), -1))), good

    # -- finding unique rows without kernels ------------------------------------------------------------------------

    def _write_unique(self, _ids: Tensor) -> None:
        """What the kernels of `ops.unique` write, by their reference. These kernels have tests of their own."""
        requests, group = self.graph.request_buffers, self.announcing
        buffer, parts = group.request_buffer, requests.parts
        for part in range(parts):
            unique = group.batches[min(part, len(group.batches) - 1)]
            for array, values in zip(requests.arrays, (unique.rows, *unique[2:]), strict=True):
                array[buffer * parts + part, : values.numel()] = values
            for counts in (requests.counts_on_device, requests.counts_on_host):
                counts[buffer * parts + part, 0] = unique.num[0]
        if requests.union is None:
            return
        union, num = requests.union, int(group.union.num)
        union.rows[buffer] = -1
        union.rows[buffer, :num] = group.union.rows[:num]
        union.starts[buffer, : num + 1] = group.union.starts[: num + 1]
        for counts in (union.counts_on_device, union.counts_on_host):
            counts[buffer, 0] = group.union.num[0]
        for part in range(parts):
            in_union = group.parts[min(part, len(group.parts) - 1)].in_union
            union.in_union[buffer * parts + part, : in_union.numel()] = in_union

    # -- operations -------------------------------------------------------------------------------------------------

    def announce(self) -> Group | None:
        """Draw batches, and announce them by the definition. None if they would have no request buffer."""
        by_kernels = self.random.random() < 0.9
        request_buffer = None
        if by_kernels:
            request_buffer = self.graph.next_request_buffer()
            if any(group.request_buffer == request_buffer for group in self.announced):
                return None
        num = self.random.choice([self.max_parts, self.max_parts, self.random.randint(1, self.max_parts)])
        drawn = [self.draw_ids() for _ in range(num if by_kernels else 1)]
        self.ids = [ids for ids, _, _ in drawn]
        batches = [unique for _, unique, _ in drawn]
        group = self._group(batches, [good for _, _, good in drawn], request_buffer)
        self.theirs.announce(group.union, group.batch_number)
        self.uncounted.append((group.batch_number, int(group.union.num)))
        self.announced.append(group)
        self.counts["announcements"] += 1
        if not by_kernels:
            self.ours.announce(self._on_device(group.union), group.batch_number)
        return group

    def _group(self, batches: list[UniqueRows], good: list[UniqueRows], request_buffer: int | None) -> Group:
        number, self.next_number = self.next_number, self.next_number + 1
        if request_buffer is None or self.max_parts == 1:
            return Group(number, batches, batches[0], None, request_buffer)
        # Buffers that are not full repeat the last batch, so that its lookups count several times. The good rows of a
        # batch with a bad id are in the union, although the batch has none.
        num_repeated = self.max_parts - len(batches)
        union, parts = union_of([*good, *[good[-1]] * num_repeated])
        return Group(
            number, batches, union,
            [Part(unique, part.in_union) for unique, part in zip(batches, parts, strict=False)], request_buffer,
        )  # fmt: skip

    def run(self, announced: Group | None, planned: Group | None) -> None:
        """Run the planning graph: announce a group, plan another one (or the same), or both."""
        graph = self.graph
        if announced is not None:
            self.announcing = announced
            assert announced.request_buffer is not None
            graph.prepare_announcement(self.ids, announced.request_buffer, announced.batch_number)
        scanned_all, last = True, 0
        if planned is not None:
            assert planned.request_buffer is not None
            oldest = self.in_flight[0] if self.in_flight else None
            scan_all = self.random.random() < 0.4
            num_rows = num_unique = int(planned.union.num)
            scans_range = not (self.is_identity or scan_all) and self.ours.policy.scans_ranges
            if not scans_range and self.random.random() < 0.5:  # the host has not read the number back
                num_rows = self.num_lookups * len(planned.batches)
            last, scanned_all = graph.prepare_plan(
                planned.request_buffer, oldest, planned.batch_number, num_rows, scan_all, len(planned.batches)
            )
        graph.run(announced is not None, planned is not None, 0)
        graph.submitted(record_event(self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if announced is not None:
            self._compare_request(announced)
        if planned is None:
            return
        assert num_rows >= num_unique
        theirs = self.theirs.plan(
            planned.union, Placement.ATOMIC, oldest, planned.batch_number, scan_all, planned.parts
        )  # fmt: skip
        self._compare_plans(planned, theirs, last, scanned_all, num_rows)

    def plan_eagerly(self, group: Group) -> None:
        """Plan batches one by one outside of the graph. They give up their request buffer."""
        self.announced.remove(group)
        number: int | None = group.batch_number
        if group.parts is not None:
            self._withdraw(group)
            number = None
        for unique in group.batches:
            self.plan_now(unique, number, self.random.choice([Placement.ATOMIC, Placement.SPILL, Placement.SPILL]))

    def plan_now(self, unique: UniqueRows, number: int | None, placement: Placement) -> None:
        oldest = self.in_flight[0] if self.in_flight else None
        (theirs,) = self.theirs.plan(unique, placement, oldest, number)
        (ours,) = self.ours.plan(self._on_device(unique), placement, oldest, number)
        counts, expected = Counts(*ours.counts.tolist()), Counts(*theirs.counts.tolist())
        if self.device.type == "cuda":
            expected = expected._replace(erasures=counts.erasures)
        assert counts == expected, self.name
        assert torch.equal(ours.row_slots[: counts.unique].cpu(), theirs.row_slots[: counts.unique]), self.name
        self.unresolved.append(Made(ours, counts, theirs, expected, placement))
        self.counts["eager plans"] += 1
        if placement is not Placement.READ_ONLY and counts.fits:
            self.in_flight.append(theirs.plan_number)
        elif number is not None and not counts.fits:
            for planner, rows in ((self.theirs, unique), (self.ours, self._on_device(unique))):
                planner.withdraw(rows, number)

    def _withdraw(self, group: Group) -> None:
        self.theirs.withdraw(group.union, group.batch_number)
        unique = self._on_device(group.union)
        if group.request_buffer is not None:
            rows, num = self.graph.union_rows(group.request_buffer)
            unique = self.graph.unique_rows(group.request_buffer, 0)._replace(rows=rows, num=num)
        self.ours.withdraw(unique, group.batch_number)
        self.counts["withdrawals"] += 1

    def withdraw(self) -> None:
        if self.announced:
            group = self.random.choice(self.announced)
            self.announced.remove(group)
            self._withdraw(group)

    def release(self) -> None:
        del self.in_flight[:1]

    def pin(self) -> None:
        """Pin other slots than before."""
        if not self.is_identity:
            share = self.random.choice([0, 0.1, 0.3])
            pinned = torch.tensor([self.random.random() < share for _ in range(self.theirs.num_slots)])
            for planner in (self.theirs, self.ours):
                planner.pinned.copy_(pinned)
            self.counts["pinned"] += int(pinned.sum())

    def make_frequent(self, saturates: bool) -> None:
        """Let the rows in the cache have been looked up often, or so often that their counts saturate soon."""
        if self.is_identity or self.theirs.kernel_spec().cache.policy.kind == "lru":
            return
        lookups = MAX_FREQUENCY - self.random.randint(0, 3) if saturates else self.random.randint(100, 2000)
        for planner in (self.theirs, self.ours):
            spec = planner.kernel_spec().cache
            count = spec.slots.priority if spec.policy.seen is None else spec.policy.seen
            real = spec.slots.row >= 0
            count.copy_(torch.where(real, (count.long() + lookups).clamp(max=MAX_FREQUENCY).int(), count))
        self.counts["saturated" if saturates else "frequent"] += 1

    def read_back(self) -> None:
        """The host reads back some of the counts that it waits for."""
        for _ in range(self.random.randint(0, len(self.unresolved))):
            made = self.unresolved.popleft()
            self.ours.resolve(made.ours, made.counts, made.placement)
            self.theirs.resolve(made.theirs, made.expected, made.placement)
        for _ in range(self.random.randint(0, len(self.uncounted))):
            number, num_rows = self.uncounted.popleft()
            for planner in (self.ours, self.theirs):
                planner.note_unique_count(number, num_rows)

    def step(self) -> None:
        """Draw one operation."""
        choice = self.random.random()
        if choice < 0.7:
            announced = None
            if len(self.announced) < 2 or self.random.random() < 0.3:
                announced = self.announce()
                if announced is not None and announced.request_buffer is None:
                    announced = None
            planned = self.announced[0] if self.announced and self.random.random() < 0.85 else None
            by_kernels = planned is None or planned.request_buffer is not None
            if announced is not None and (not by_kernels or self.random.random() < 0.4):
                self.run(announced, None)
                announced = None
            if planned is not None and not by_kernels:
                self.plan_eagerly(planned)
            elif announced is not None or planned is not None:
                self.run(announced, planned)
        elif choice < 0.74 and self.announced:
            self.plan_eagerly(self.announced[0])
        elif choice < 0.79:
            _, unique, _ = self.draw_ids()
            self.plan_now(unique, None, self.random.choice([Placement.SPILL, Placement.READ_ONLY]))
        elif choice < 0.83:
            self.withdraw()
        elif choice < 0.87:
            self.pin()
        else:
            self.make_frequent(saturates=self.random.random() < 0.4)
        while len(self.in_flight) > self.random.randint(0, 2 * self.max_parts):
            self.release()
        self.read_back()
        self.compare_state()

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compare_request(self, group: Group) -> None:
        assert group.request_buffer is not None
        for part, unique in enumerate(group.batches):
            self._compare_unique(self.graph.unique_rows(group.request_buffer, part), unique)
            assert self.graph.unique_count(group.request_buffer, part)[0] == int(unique.num), self.name
        rows, num = (each.cpu() for each in self.graph.union_rows(group.request_buffer))
        assert torch.equal(num, group.union.num), self.name
        assert torch.equal(rows[: int(num)], group.union.rows[: int(num)]), self.name
        assert self.graph.union_count(group.request_buffer)[0] == int(num), self.name

    def _compare_unique(self, ours: UniqueRows, theirs: UniqueRows) -> None:
        # Of a batch with a bad id, nothing reads the order of the lookups.
        names = UniqueRows._fields if theirs.num else ("rows", "num", "inverse", "starts")
        for name in names:
            assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name)), f"{self.name}: {name}"

    def _compare_plans(self, group: Group, theirs: list[Plan], last: int, scanned_all: bool, num_rows: int) -> None:
        assert group.request_buffer is not None
        graph, first = self.graph, theirs[0]
        assert last == theirs[-1].plan_number, self.name
        assert scanned_all == first.scanned_all, self.name
        for i, (plan_buffer, plan) in enumerate(zip(graph.plan_buffers_of(group.request_buffer), theirs, strict=False)):
            counts, expected = Counts(*graph.counts(plan_buffer).tolist()), Counts(*plan.counts.tolist())
            # The kernels count the cells that stay marked as erased. The eager planner has an upper bound.
            assert counts.erasures <= expected.erasures, self.name
            assert counts == expected._replace(erasures=counts.erasures), f"{self.name}: batch {i}"
            number = None if i else group.batch_number
            ours = graph.plan_in(plan_buffer, plan.plan_number, number, 0 if i else num_rows, scanned_all)
            self.unresolved.append(Made(ours, counts, plan, expected, Placement.ATOMIC))
            if not counts.fits:
                continue
            assert torch.equal(ours.slots.cpu(), plan.slots), f"{self.name}: slots of batch {i}"
            mine = ours.row_slots[: counts.unique].cpu()
            assert torch.equal(mine, plan.row_slots[: counts.unique]), f"{self.name}: slots of the rows of batch {i}"
            self._compare_unique(ours.unique, plan.unique)
            if i == 0:
                self._compare_moves(plan, counts)
        self.counts["plans"] += 1
        self.counts["coalesced"] += len(theirs) > 1
        if expected.fits:
            self.in_flight += [plan.plan_number for plan in theirs]
            self.announced.remove(group)
            return
        self.counts["rejected"] += 1
        if self.random.random() < 0.5:
            self.release()
        else:
            self.announced.remove(group)
            self._withdraw(group)

    def _compare_moves(self, plan: Plan, counts: Counts) -> None:
        moves = self.graph._kernel_planner.moves
        if self.is_identity:
            assert moves is None
            return
        assert moves is not None
        num = int(moves.num)
        assert num == counts.placed, self.name
        for mine, their in zip(moves[:3], (plan.move_slots, plan.move_out, plan.move_in), strict=True):
            assert torch.equal(mine[:num].cpu(), their[:num]), f"{self.name}: moves"
        self.counts["evictions"] += counts.evictions

    def compare_state(self) -> None:
        """The whole state of both planners, except that cells of hash tables may hold the rows in any order."""
        ours, theirs = self.ours, self.theirs
        assert ours.plan_number == theirs.plan_number, self.name
        if self.is_identity:
            return
        for name in ("row", "last_used", "priority", "pinned"):
            mine, their = getattr(ours.slots, name)[: ours.num_slots], getattr(theirs.slots, name)[: ours.num_slots]
            assert torch.equal(mine.cpu(), their), f"{self.name}: {name} of the slots"
        every, num = torch.arange(self.num_rows), torch.tensor([self.num_rows], dtype=torch.int32)
        found = ours.index.find(every.to(self.device), num.to(self.device)).cpu()
        assert torch.equal(found, theirs.index.find(every, num)), f"{self.name}: rows in the index"
        mine, their = ours.kernel_spec().cache, theirs.kernel_spec().cache
        if mine.index.keys is not None:
            num_erased = int((mine.index.keys == hash_table.ERASED).sum())
            assert num_erased <= ours.index._erased + ours.index._max_pending, f"{self.name}: erased cells"
        if mine.policy.seen is not None:
            seen = mine.policy.seen[: ours.num_slots].cpu()
            assert torch.equal(seen, their.policy.seen[: ours.num_slots]), f"{self.name}: lookups seen"
        if mine.policy.next_use is not None:
            assert next_uses(mine.policy.next_use) == next_uses(their.policy.next_use), f"{self.name}: next uses"
            check_bounds(mine.policy.next_use)

    def _on_device(self, unique: UniqueRows) -> UniqueRows:
        return UniqueRows(*(each.to(self.device, copy=True) for each in unique))


def next_uses(table: Any) -> dict[int, int]:
    """Which batches need a row, by row, as a search finds them."""
    keys, uses, num_cells = table.arrays()
    rows = keys[:-1][keys[:-1] >= 0]
    num = torch.tensor([rows.numel()], dtype=torch.int32, device=keys.device)
    assert rows.numel() <= max(num_cells, 0)
    if rows.numel() == 0:
        return {}
    return dict(zip(rows.tolist(), uses[hash_table.find(keys, rows, num)].tolist(), strict=True))


def check_bounds(table: Any) -> None:
    """The host's upper bounds hold, and leave cells empty, where a search ends."""
    keys, _, num_cells = table.arrays()
    if num_cells > 0:
        taken = int((keys[:num_cells] != hash_table.EMPTY).sum())
        assert taken <= table._num_in_window + table._max_erased <= table._max_taken < num_cells


def run_workload(index: str, policy: str, number: int, device: torch.device) -> Counter[str]:
    """Draw a workload, run it, and return what happened in it, by kind."""
    from hotrows.ops.plan import kernel
    from hotrows.ops.select_victims import kernel as select_kernel

    random = Random(f"sizes {index} {policy} {number}")
    with contextlib.ExitStack() as stack:

        def change(module: Any, **values: Any) -> None:
            for name, value in values.items():
                stack.enter_context(patch.object(module, name, value))

        # Small blocks and few programs, so that small workloads take several blocks, and programs several of them. On a
        # GPU, a block has at least one element for each thread.
        size = 16 if device.type == "cpu" else 32
        if random.random() < 0.25:
            change(kernel, BLOCK=size, MAX_PROGRAMS=random.choice([1, 2, 528]), CHUNK=random.choice([1, 512]))
        if random.random() < 0.25:
            change(select_kernel, _SMALL_BLOCK=(size, 1), _MAX_PROGRAMS=random.choice([1, 2]))
            change(select_kernel, _CHUNK=2, _CHUNK_OF_BYTES=2)
        if random.random() < 0.5:
            change(victim_scan, MIN_SLOTS=4, PER_ROW=1)
        contract = Contract(index, policy, number, device)
        for _ in range(random.randint(6, 10)):
            contract.step()
    return contract.counts


@pairs
def test_kernels_plan_what_the_eager_planner_plans(index, policy, device, capsys):
    totals: Counter[str] = Counter()
    for number in range(NUM_CASES):
        totals += run_workload(index, policy, number, device)
    if "HOTROWS_PLANNER_CASES" in os.environ:
        with capsys.disabled():
            counted = ", ".join(f"{count:,} {kind}" for kind, count in sorted(totals.items()))
            print(f"\n{index}, {policy}: {NUM_CASES:,} workloads ({counted})", flush=True)
    assert totals["plans"] > 0
    if index != IDENTITY:
        assert totals["evictions"] > 0
        assert totals["rejected"] > 0


@pytest.mark.parametrize("index", ["direct", "hash", "set-associative"])
@pytest.mark.parametrize("policy", ["lfu", "lookahead"])
def test_both_planners_saturate_counts_at_the_same_value(index, policy, device):
    """They did not once: at 2^30 and at 2^30 - 1."""
    contract = Contract(index, policy, 0, device)
    for _ in range(3):
        group = None
        while group is None or group.request_buffer is None or int(group.union.num) == 0:
            contract.announced.clear()
            contract.in_flight.clear()
            group = contract.announce()
        contract.run(group, group)
        contract.compare_state()
        contract.make_frequent(saturates=True)
    spec = contract.ours.kernel_spec().cache
    count = spec.slots.priority if spec.policy.seen is None else spec.policy.seen
    assert int(count[: contract.ours.num_slots].max()) == MAX_FREQUENCY


class AnotherOrder:
    """The kernel that chooses ways, by another order of the slots."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            from hotrows.ops.plan.kernel_sets import choose_ways

            *before, priority, last_used, pinned, chosen, num_unplaced = arguments
            choose_ways[grid](*before, -priority.clamp(min=-5), last_used, pinned, chosen, num_unplaced, **options)

        return launch


def another_order(priority: Tensor, batch_number: Tensor | None, *arguments: Any) -> None:
    from hotrows.ops.select_victims.kernel import select_victims_into

    select_victims_into(-priority.clamp(min=-5), batch_number, *arguments)


@pytest.mark.parametrize(
    ("index", "policy", "fault"),
    [
        ("hash", "lfu", {"MAX_FREQUENCY": MAX_FREQUENCY + 1}),
        ("direct", "lookahead", {"MAX_FREQUENCY": MAX_FREQUENCY + 1}),
        ("hash", "lookahead", {"STEPS_BELOW": 943}),
        ("direct", "lookahead", {"NEEDED": 2**31 - 2}),
        ("direct", "lru", {"select_victims_into": another_order}),
        ("hash", "lookahead", {"select_victims_into": another_order}),
        ("set-associative", "lru", {"choose_ways": AnotherOrder()}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_a_fault_in_the_kernels_is_found(index, policy, fault, device):
    from hotrows.cache.planning import kernel_planner

    if device.type == "cuda":
        pytest.skip("what the comparison finds does not depend on the device")

    def run_workloads() -> None:
        for number in range(100):
            run_workload(index, policy, number, device)

    with patch.multiple(kernel_planner, **fault), pytest.raises(AssertionError, match="workload"):
        run_workloads()


def test_every_pair_that_declares_kernels_is_compared():
    declared = {(IDENTITY, "none")} if IdentityPlanner(8).kernel_spec() is not None else set()
    for index in INDEXES:
        for policy in POLICIES:
            slots = Slots(16, CPU)
            planner: Planner = EagerPlanner(slots, make_index(index, 100, slots), make_policy(policy))
            assert (planner.kernel_spec() is None) == (planner.reason_without_kernels() is not None)
            if planner.kernel_spec() is not None:
                declared.add((index, policy))
    assert declared == set(KERNEL_PAIRS)
