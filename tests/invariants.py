"""What must be true of a cache after every step."""

import torch
from torch import Tensor

import hotrows
from hotrows.cache.planning.protocol import Placement
from hotrows.cache.row_cache import RowCache
from hotrows.loop.scheduler import Scheduler


def check_invariants(bags: hotrows.EmbeddingBagCollection, truth: dict[str, Tensor]) -> None:
    """`truth` has every table as it must be now."""
    for tables in bags._sets:
        scheduler, cache = tables.scheduler, tables.cache
        scheduler.totals()
        scheduler.streams.wait_for_moves()
        check_maps(cache)
        check_in_flight(scheduler)
        rows = cache.planner.slots.row[:-1].cpu()
        records = cache.records[: cache.num_slots].cpu()
        for table in tables.tables:
            first = tables.first_row[table.name]
            row_of = torch.arange(cache.store.num_rows) if cache.numbering is None else cache.numbering.row_of.long()
            id_of = torch.full_like(row_of, -1)
            id_of[row_of[first : first + table.num_rows]] = torch.arange(table.num_rows)
            mine = ((rows >= 0) & (id_of[rows] >= 0)).nonzero().squeeze(1)
            ids = id_of[rows[mine]]
            for part in ("weight", *(field.name for field in cache.store.layout.state)):
                expected = truth[table.name if part == "weight" else f"{table.name}.{part}"][ids]
                found = cache.store.layout.values(records[mine], part)
                assert torch.equal(found, expected), "the record in a slot is that of the row its tag names"


def check_maps(cache: RowCache) -> None:
    slots = cache.planner.slots
    rows = slots.row[:-1]
    used = (rows >= 0).nonzero().squeeze(1)
    num = torch.tensor([used.numel()], dtype=torch.int32, device=rows.device)
    found = cache.planner.index.find(rows[used], num)
    assert torch.equal(found.long(), used), "row → slot is the inverse of slot → row"
    everything = torch.arange(cache.store.num_rows, device=rows.device)
    num = torch.tensor([everything.numel()], dtype=torch.int32, device=rows.device)
    known = cache.planner.index.find(everything, num) >= 0
    assert int(known.sum()) == used.numel(), "the index knows the rows in slots and no others: free + used = capacity"
    assert rows[used].unique().numel() == used.numel(), "no row is in two slots"


def check_in_flight(scheduler: Scheduler) -> None:
    """Rows of batches in flight that were given slots are still in them."""
    rows = scheduler.cache.planner.slots.row
    for ticket in scheduler.in_flight:
        unique = ticket.plan.unique
        num = int(unique.num)
        given = ticket.plan.row_slots[:num].long()
        in_cache = (given >= 0) & (given < scheduler.cache.num_slots)
        if ticket.placement is not Placement.READ_ONLY:
            assert torch.equal(rows[given[in_cache]], unique.rows[:num][in_cache])
