"""What must be true of a cache after every step."""

import torch
from torch import Tensor

import hotrows
from hotrows.cache.row_cache import RowCache


def check_invariants(bags: hotrows.EmbeddingBagCollection, truth: dict[str, Tensor]) -> None:
    """`truth` has every table as it must be now."""
    for tables in bags._sets:
        group = tables.group
        group.totals()
        group.wait_for_moves()
        check_maps(group)
        check_flights(group)
        rows = group.planner.slots.row[:-1].cpu()
        records = group.cache[: group.num_slots].cpu()
        for table in tables.tables:
            first = tables.first_row[table.name]
            mine = ((rows >= first) & (rows < first + table.num_rows)).nonzero().squeeze(1)
            ids = rows[mine] - first
            for part in ("weight", *(field.name for field in group.store.layout.state)):
                expected = truth[table.name if part == "weight" else f"{table.name}.{part}"][ids]
                found = records[mine][:, group.store.layout.columns(part)]
                assert torch.equal(found, expected), "the record in a slot is that of the row its tag names"


def check_maps(group: RowCache) -> None:
    slots = group.planner.slots
    rows = slots.row[:-1]
    used = (rows >= 0).nonzero().squeeze(1)
    num = torch.tensor([used.numel()], dtype=torch.int32, device=rows.device)
    found = group.planner.index.find(rows[used], num)
    assert torch.equal(found.long(), used), "row → slot is the inverse of slot → row"
    everything = torch.arange(group.store.num_rows, device=rows.device)
    num = torch.tensor([everything.numel()], dtype=torch.int32, device=rows.device)
    known = group.planner.index.find(everything, num) >= 0
    assert int(known.sum()) == used.numel(), "the index knows the rows in slots and no others: free + used = capacity"
    assert rows[used].unique().numel() == used.numel(), "no row is in two slots"


def check_flights(group: RowCache) -> None:
    """Rows of batches in flight that were given slots are still in them."""
    rows = group.planner.slots.row
    for flight in group._flights.values():
        unique = flight.plan.unique
        num = int(unique.num)
        given = flight.plan.row_slots[:num].long()
        in_cache = (given >= 0) & (given < group.num_slots)
        if flight.placement.name != "NOTHING":
            assert torch.equal(rows[given[in_cache]], unique.rows[:num][in_cache])
