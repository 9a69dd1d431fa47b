"""The store in host memory."""

import pytest
import torch

from hotrows import Table
from hotrows.ops.swap import Moves
from hotrows.stores import RamStore, RecordLayout, StateField
from hotrows.stores import ram as ram_module
from hotrows.stores.init import first_values, table_key
from hotrows.stores.memory_checks import available_host_memory, readable

TABLES = [Table("a", 10), Table("b", 5, init="normal")]
LAYOUT = RecordLayout(6, (StateField("sum", first_value=0.25),))


def test_is_filled_table_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram_module, "FILL_BYTES", 3 * LAYOUT.num_bytes)  # several chunks, the last one short
    store = RamStore(TABLES, LAYOUT, torch.device("cpu"), seed=3)
    expected = first_values("normal", torch.arange(5), 6, 5, table_key(3, "b"))
    assert torch.equal(store.view(10, 15)[:, :6], expected)
    assert torch.equal(store.view(0, 15)[:, LAYOUT.columns("sum")], torch.full((15, 6), 0.25))
    assert store.records.data_ptr() % 4096 == 0


def test_swaps() -> None:
    store = RamStore(TABLES, LAYOUT, torch.device("cpu"), seed=0)
    before = store.view(0, 15).clone()
    cache = torch.full((3, LAYOUT.words), 7.0)
    store.swap(
        cache,
        Moves(
            torch.tensor([2, 0], dtype=torch.int32),
            torch.tensor([4, -1]),
            torch.tensor([9, 1]),
            torch.tensor([2], dtype=torch.int32),
        ),
    )
    assert torch.equal(store.view(4, 5), torch.full((1, LAYOUT.words), 7.0))
    assert torch.equal(cache[2], before[9])
    assert torch.equal(cache[0], before[1])
    assert torch.equal(cache[1], torch.full((LAYOUT.words,), 7.0))


def test_memory_is_known_here() -> None:
    available = available_host_memory()
    assert available is None or available > 1 << 20


@pytest.mark.parametrize(("num", "text"), [(12, "12 B"), (1500, "1.5 kB"), (17.3e9, "17.3 GB"), (4e13, "40.0 TB")])
def test_bytes_for_people(num: float, text: str) -> None:
    assert readable(num) == text


@pytest.mark.gpu
def test_is_registered_for_the_gpu() -> None:
    store = RamStore(TABLES, LAYOUT, torch.device("cuda"), seed=3)
    assert store.records.is_pinned()
    same = RamStore(TABLES, LAYOUT, torch.device("cpu"), seed=3)
    assert torch.equal(store.records, same.records)
