"""The contract of every store: read, write and exchange rows by number and by range."""

import copy
import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hotrows import RowOrder, Table
from hotrows.cache.tier import Cached
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from hotrows.stores import Contents, Device, Ram, RecordLayout, StateField, Store, StoreSettings, initial_records
from hotrows.stores import contents as contents_module
from hotrows.stores.row_order import Numbering
from tests.stores.dict_store import Dict

TABLES = [Table("a", 14), Table("b", 9, init="normal")]
NUM_ROWS = 23
MIXED = RecordLayout.packed(3, (StateField("sum"), StateField("count", dtype=torch.int32)), dtype=torch.bfloat16)
LAYOUTS = {"float32": RecordLayout.packed(6, (StateField("sum", initial_value=0.5),)), "mixed": MIXED}
STORES: dict[str, StoreSettings] = {
    "ram": Ram(),
    "device": Device(),
    "dict": Dict(),
    "tier of ram": Cached("ram", 5),
    "tier of dict": Cached(Dict(), 4, policy="lfu", index="direct"),
    "two tiers": Cached(Cached(Dict(), 9, index="set-associative"), 3),
}
CPU = torch.device("cpu")


def open_store(
    name: str, layout: RecordLayout, device: torch.device = CPU, numbering: Numbering | None = None
) -> Store:
    return STORES[name].open(TABLES, layout, device, 1, numbering)


def random_records(num: int, layout: RecordLayout, seed: int) -> Tensor:
    """Records of random bits, among them values that are not numbers."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num, layout.num_bytes), generator=random, dtype=torch.uint8).view(layout.dtype)


def same(one: Tensor, other: Tensor) -> bool:
    """Bit by bit, because a value that is not a number differs from itself."""
    return torch.equal(one.cpu().contiguous().view(torch.uint8), other.cpu().contiguous().view(torch.uint8))


def random_moves(seed: int, num_slots: int) -> Moves:
    random = torch.Generator().manual_seed(seed)
    num = int(torch.randint(num_slots + 1, (1,), generator=random))
    rows = torch.randperm(NUM_ROWS, generator=random)
    rows_out, rows_in = rows[:num_slots].clone(), rows[num_slots : 2 * num_slots].clone()
    rows_out[torch.rand(num_slots, generator=random) < 0.3] = NO_ROW
    rows_in[torch.rand(num_slots, generator=random) < 0.3] = NO_ROW
    slots = torch.randperm(num_slots, generator=random).int()
    return Moves(slots, rows_out, rows_in, torch.tensor([num], dtype=torch.int32))


def check_read(store: Store, expected: Tensor, seed: int, into: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randint(NUM_ROWS, (int(torch.randint(12, (1,), generator=random)),), generator=random)
    out = torch.empty(rows.numel(), expected.shape[1]) if into else None
    found = store.read(rows, out)
    assert same(found, expected[rows])
    assert out is None or out.data_ptr() == found.data_ptr()


def check_write(store: Store, expected: Tensor, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randperm(NUM_ROWS, generator=random)[: int(torch.randint(12, (1,), generator=random))]
    records = random_records(rows.numel(), store.layout, seed)
    store.write(rows, records)
    expected[rows] = records


def check_read_range(store: Store, expected: Tensor, seed: int) -> None:
    start, stop = sorted(torch.randint(NUM_ROWS + 1, (2,), generator=torch.Generator().manual_seed(seed)).tolist())
    found = store.read_range(start, stop)
    assert same(found, expected[start:stop])
    found.fill_(1.0)  # it is a copy, so this changes nothing


def check_write_range(store: Store, expected: Tensor, seed: int) -> None:
    start, stop = sorted(torch.randint(NUM_ROWS + 1, (2,), generator=torch.Generator().manual_seed(seed)).tolist())
    records = random_records(stop - start, store.layout, seed)
    store.write_range(start, records)
    expected[start:stop] = records


def check_exchange(store: Store, expected: Tensor, seed: int) -> None:
    moves = random_moves(seed, num_slots=8)
    cache = random_records(8, store.layout, seed)
    expected_cache = cache.clone()
    store.exchange(cache, moves)
    for slot, row_out, row_in in list(zip(*(each.tolist() for each in moves[:3]), strict=True))[: int(moves.num)]:
        if row_out != NO_ROW:
            expected[row_out] = expected_cache[slot]
        if row_in != NO_ROW:
            expected_cache[slot] = expected[row_in]
    assert same(cache, expected_cache)


OPERATIONS: list[Callable[[Store, Tensor, int], None]] = [
    partial(check_read, into=False), partial(check_read, into=True), check_write, check_read_range, check_write_range,
    check_exchange, lambda store, expected, seed: store.flush(),
]  # fmt: skip


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("name", list(STORES))
@settings(max_examples=25, deadline=None)
@given(operations=st.lists(st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 10_000)), max_size=12))
def test_any_sequence_of_operations_is_as_on_a_tensor(
    name: str, layout: str, operations: list[tuple[int, int]]
) -> None:
    store = open_store(name, LAYOUTS[layout])
    expected = open_store("ram", LAYOUTS[layout]).read_range(0, NUM_ROWS)
    assert store.num_rows == NUM_ROWS
    for number, seed in operations:
        OPERATIONS[number](store, expected, seed)
    assert same(store.read_range(0, NUM_ROWS), expected)
    store.flush()
    while hasattr(store, "backing"):
        store = store.backing
    assert same(store.read_range(0, NUM_ROWS), expected)


@pytest.mark.parametrize("name", [name for name in STORES if name != "device"])
def test_rows_lie_in_the_given_order(name: str) -> None:
    counts = {"a": torch.arange(14), "b": torch.arange(9) * 2}
    numbering = RowOrder(counts).numbering(TABLES, CPU)
    assert numbering is not None
    layout = LAYOUTS["float32"]
    by_table = torch.cat([records for _, records in initial_records(TABLES, layout, CPU, 1)])
    store = open_store(name, layout, numbering=numbering)
    assert same(store.read(numbering.row_of.long()), by_table)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(STORES))
def test_exchanges_with_the_gpu(name: str) -> None:
    layout, cuda = LAYOUTS["float32"], torch.device("cuda")
    store, other = open_store(name, layout, cuda), open_store("ram", layout)
    for seed in range(20):
        moves, cache = random_moves(seed, num_slots=8), random_records(8, layout, seed)
        on_device = cache.cuda()
        store.exchange(on_device, Moves(*(each.cuda() for each in moves[:4])))
        other.exchange(cache, moves)
        torch.cuda.synchronize()
        assert same(on_device, cache)
        assert same(store.read_range(0, NUM_ROWS), other.read_range(0, NUM_ROWS))


@pytest.mark.parametrize("name", list(STORES))
def test_contents_are_copied_into_another_store(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS["float32"]
    monkeypatch.setattr(contents_module, "CHUNK_BYTES", 5 * layout.num_bytes)
    store = open_store(name, layout)
    check_write(store, torch.empty(NUM_ROWS, layout.words), 3)
    for contents in (Contents(store), copy.deepcopy(Contents(store)), pickle.loads(pickle.dumps(Contents(store)))):
        other = open_store("tier of ram", layout)
        contents.write_to(other)
        assert same(other.read_range(0, NUM_ROWS), store.read_range(0, NUM_ROWS))
