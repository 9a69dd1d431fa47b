"""One contract for every index, against a plain dict."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from hotrows.cache.indexes import INDEXES, Index, choose_index, make_index
from hotrows.cache.indexes.hashed import HashIndex
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement
from hotrows.cache.policies import make_policy
from hotrows.cache.slots import Slots
from hotrows.ops import hash_table
from hotrows.ops.unique import unique_rows

NUM_ROWS = 10_000


def make(name: str, capacity: int) -> Index:
    slots = Slots(INDEXES[name].round_slots(capacity), torch.device("cpu"))
    return make_index(name, NUM_ROWS, slots)


def count(num: int) -> torch.Tensor:
    return torch.tensor([num], dtype=torch.int32)


def put(index: Index, rows: torch.Tensor, batch: int) -> torch.Tensor:
    """Do what the planner does with absent rows."""
    num = count(rows.numel())
    index.maintain(rows.numel())
    slots = index.place(rows, num, oldest=batch)
    placed = slots >= 0
    target = index.slots.write_targets(slots)
    out = torch.where(placed, index.slots.row[target], -1)
    index.replace(slots, out, torch.where(placed, rows, -1), num)
    index.slots.row[target] = torch.where(placed, rows, -1)
    index.slots.last_used[target] = batch
    index.slots.priority[target] = batch
    index.note_evictions(int((out >= 0).sum()), rows.numel())
    return slots


@pytest.mark.parametrize("name", sorted(INDEXES))
@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 60),
    batches=st.lists(st.lists(st.integers(0, NUM_ROWS - 1), max_size=30, unique=True), max_size=20),
)
def test_finds_what_was_put_and_nothing_else(name: str, capacity: int, batches: list[list[int]]) -> None:
    index = make(name, capacity)
    for batch, wanted in enumerate(batches, start=1):
        rows = torch.tensor(wanted, dtype=torch.int64)
        absent = rows[index.find(rows, count(rows.numel())) < 0]
        placed = put(index, absent, batch)
        given_out = placed[placed >= 0]
        assert given_out.unique().numel() == given_out.numel()
        truth = {int(row): slot for slot, row in enumerate(index.slots.row[:-1]) if row >= 0}
        everything = torch.arange(NUM_ROWS)
        found = index.find(everything, count(NUM_ROWS))
        assert {int(row): int(found[row]) for row in (found >= 0).nonzero()} == truth


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_places_nothing_where_all_is_pinned_or_in_flight(name: str) -> None:
    index = make(name, 16)
    put(index, torch.arange(16), batch=1)
    index.slots.pinned[:8] = True
    index.slots.last_used[8:16] = 5
    rows = torch.arange(100, 120)
    assert (index.place(rows, count(20), oldest=5) < 0).all()
    given_out = index.place(rows, count(20), oldest=6)
    assert sorted(given_out[given_out >= 0].tolist()) == list(range(8, 16))


def test_an_erased_hash_table_does_not_degrade() -> None:
    """A million replacements later, a search for an absent row is as short as on the first day."""
    index = make("hash", 500)
    assert isinstance(index, HashIndex)
    random = torch.Generator().manual_seed(0)
    for batch in range(1, 400):
        rows = torch.randint(0, 2**60, (250,), generator=random).unique()
        put(index, rows, batch)
        keys = index.keys[:-1]
        assert int((keys == hash_table.EMPTY).sum()) > keys.numel() // 6, "a search always ends"
    longest = runs_without_empty(index.keys[:-1])
    assert longest < 120


def test_counts_that_arrive_after_a_rebuild_are_not_of_the_new_table() -> None:
    """On a GPU the host reads back late how many rows the plans evicted. Many readbacks may be outstanding."""
    slots = Slots(2000, torch.device("cpu"))
    planner = EagerPlanner(slots, make_index("hash", 10**9, slots), make_policy("lru"))
    random = torch.Generator().manual_seed(0)
    waiting = []
    for number in range(200):
        rows = torch.randint(0, 10**9, (1900,), generator=random)
        waiting += planner.plan(unique_rows(rows), Placement.SPILL)
        if number % 60 == 59:
            for plan in waiting:
                planner.resolve(plan, Counts(*plan.counts.tolist()), Placement.SPILL)
            waiting.clear()
        index = planner.index
        assert isinstance(index, HashIndex)
        assert index._max_pending >= 0
        assert int((index.keys == hash_table.EMPTY).sum()) > 0


def runs_without_empty(keys: torch.Tensor) -> int:
    longest = run = 0
    for key in keys.tolist():
        run = 0 if key == hash_table.EMPTY else run + 1
        longest = max(longest, run)
    return longest


def test_a_search_ends_at_the_one_cell_that_is_empty() -> None:
    keys = torch.arange(1, 12)
    keys[-1] = hash_table.BARRED
    keys[3] = hash_table.EMPTY  # the one cell that the contract keeps
    found = hash_table.find(keys, torch.tensor([999, 5]), count(2))
    assert found[0] == -1


def test_hash_memory_is_that_of_the_cache() -> None:
    assert HashIndex.num_bytes(10**3, 1000) == HashIndex.num_bytes(10**12, 1000)
    slots = Slots(1000, torch.device("cpu"))
    index = HashIndex(10**12, slots)
    held = sum(part.numel() * part.element_size() for part in (index.keys, index.slot_at, index.cell_of))
    slot_bytes = sum(t.numel() * t.element_size() for t in (slots.row, slots.last_used, slots.priority, slots.pinned))
    assert (held + slot_bytes) / 1000 <= 64


def test_auto_takes_the_smaller() -> None:
    assert choose_index("auto", 10**8, 10**5) == "hash"
    assert choose_index("auto", 10**6, 10**6) == "direct"
    assert choose_index("auto", 1000, 10) == "direct"
    assert choose_index("set-associative", 1000, 10) == "set-associative"


@pytest.mark.parametrize("capacity", [1, 15, 16, 17])
def test_sets_hold_all_rows_when_there_are_slots_for_all(capacity: int) -> None:
    index = make("set-associative", capacity)
    assert (put(index, torch.arange(capacity), batch=1) >= 0).all()
