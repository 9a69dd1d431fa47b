"""A cache as a whole: its rows written back or read again, named, brought in beforehand, pinned."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.planner import EagerPlanner, Placement
from hotrows.loop.ticket import Rows
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from hotrows.runtime.streams import record_event

if TYPE_CHECKING:
    from hotrows.cache.row_cache import RowCache


AT_ONCE = 1 << 20  # slots that are moved at a time, so that it takes little memory


def flush(group: "RowCache") -> None:
    """Write every row of the cache back to the store, and wait for it."""
    move_all_slots(group, out=True)


def reload(group: "RowCache") -> None:
    """Read every row of the cache again from the store, after the store was written from outside."""
    move_all_slots(group, out=False)
    group.forget_copies()


def move_all_slots(group: "RowCache", out: bool) -> None:
    """Write all rows of the cache back, or read them again, wait for it, and count the bytes."""
    group.resolve_all()
    if isinstance(group.planner, IdentityPlanner):
        record_event(group.device).synchronize()
        return
    store, cache, slots, transfer = group.store, group.cache, group.planner.slots, group.transfer
    moving: list[Tensor] = []

    def work() -> None:
        for start in range(0, slots.num, AT_ONCE):
            rows = slots.row[start : min(start + AT_ONCE, slots.num)]
            nothing = torch.full_like(rows, NO_ROW)
            place = torch.arange(start, start + rows.numel(), dtype=torch.int32, device=rows.device)
            num = torch.full((1,), rows.numel(), dtype=torch.int32, device=rows.device)
            transfer.move(store, cache, Moves(place, rows if out else nothing, nothing if out else rows, num))
            moving.append((rows >= 0).sum())

    group.submit_move(work, (record_event(group.device), group.planned)).synchronize()
    num_bytes = sum(map(int, moving)) * store.layout.num_bytes
    if out:
        group.stats.bytes_out += num_bytes
    else:
        group.stats.bytes_in += num_bytes


def cached_rows(group: "RowCache") -> Tensor:
    """The rows of the store that are in the cache, int64 on the host."""
    assert isinstance(group.planner, EagerPlanner)
    group.wait_for_moves()
    rows = group.planner.slots.row[: group.num_slots].cpu()
    return rows[rows >= 0]


def preload_hottest(group: "RowCache", num: int) -> None:
    """Bring the first rows of the store into the cache, where they may be evicted like any other.

    Of the stats only the bytes moved change, for no batch has asked for these rows.
    """
    num = min(num, group.store.num_rows)
    if isinstance(group.planner, IdentityPlanner) or num == 0:
        return
    rows = torch.arange(num) if group.numbering is None else group.numbering.hottest(num)
    rows = rows.to(group.device)
    before = replace(group.totals())
    flight = group.plan_now(group.request(lambda: Rows(rows)), Placement.SPILL)
    group.acquire(flight)
    group.drop(flight)
    after = group.totals()
    group.stats = replace(before, bytes_in=after.bytes_in, bytes_out=after.bytes_out)


def pin(group: "RowCache", rows: Tensor) -> None:
    """Bring rows, numbered table after table, into the cache and never evict them."""
    if isinstance(group.planner, IdentityPlanner):
        return
    flight = group.plan_now(group.request(lambda: Rows(rows)), Placement.SPILL)
    group.resolve_all()
    assert flight.counts is not None
    try:
        if flight.counts.overflow:
            raise ValueError(
                f"{flight.counts.unique:,} rows to pin, but {flight.counts.overflow:,} of them find no slot in a "
                f"cache of {group.num_slots:,}: pin fewer rows or make the cache larger"
            )
        pinned = group.planner.slots.pinned
        group.planned = group.planning_stream.submit(lambda: _set(pinned, flight.plan.row_slots))
        group.planned.wait()
        group.num_pinned = int(pinned.sum())
    finally:
        group.acquire(flight)
        group.drop(flight)


def unpin(group: "RowCache") -> None:
    """Let pinned rows go again."""
    if isinstance(group.planner, IdentityPlanner):
        return
    pinned = group.planner.slots.pinned
    group.planned = group.planning_stream.submit(lambda: _clear(pinned))
    group.num_pinned = 0


def _set(flags: Tensor, slots: Tensor) -> None:
    flags[slots[slots >= 0]] = True


def _clear(flags: Tensor) -> None:
    flags.fill_(False)
