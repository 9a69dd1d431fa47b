"""The store in host memory, and the memory that is available for it."""

import pytest
import torch

from hotrows import Table
from hotrows.stores import RamStore, RecordLayout, StateField
from hotrows.stores import init as init_module
from hotrows.stores.init import initial_values, table_key
from hotrows.stores.memory_checks import available_host_memory, readable

TABLES = [Table("a", 10), Table("b", 5, init="normal")]
LAYOUT = RecordLayout.packed(6, (StateField("sum", initial_value=0.25),))


def test_is_filled_table_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_module, "FILL_BYTES", 3 * LAYOUT.num_bytes)  # several chunks, the last one short
    store = RamStore(TABLES, LAYOUT, torch.device("cpu"), seed=3)
    expected = initial_values("normal", torch.arange(5), 6, 5, table_key(3, "b"))
    assert torch.equal(store.read_range(10, 15)[:, :6], expected)
    assert torch.equal(store.read_range(0, 15)[:, LAYOUT.columns("sum")], torch.full((15, 6), 0.25))
    assert store.records.data_ptr() % 4096 == 0


def test_fields_of_other_dtypes_are_filled() -> None:
    fields = (
        StateField("sum", initial_value=0.25),
        StateField("count", per_row=True, initial_value=3, dtype=torch.int32),
    )
    layout = RecordLayout.packed(6, fields, dtype=torch.bfloat16)
    store = RamStore(TABLES, layout, torch.device("cpu"), seed=3)
    records = store.read(torch.arange(15))
    expected = initial_values("normal", torch.arange(5), 6, 5, table_key(3, "b")).bfloat16()
    assert torch.equal(layout.values(records, "weight")[10:], expected)
    assert layout.values(records, "sum").eq(0.25).all()
    assert layout.values(records, "count").eq(3).all()


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
