"""A cache as a whole: its rows written back or read again, named, brought in beforehand, pinned."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotrows.cache.flights import Rows
from hotrows.cache.lanes import caller_mark
from hotrows.cache.planner import Placing, Planner
from hotrows.cache.resident import ResidentPlanner
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves

if TYPE_CHECKING:
    from hotrows.cache.group import RowGroup


AT_ONCE = 1 << 20  # slots that are moved at a time, so that it takes little memory


def flush(group: "RowGroup") -> None:
    """Write every row of the cache back to the store, and wait for it."""
    move_all_slots(group, out=True)


def reload(group: "RowGroup") -> None:
    """Read every row of the cache again from the store, after the store was written from outside."""
    move_all_slots(group, out=False)
    group.forget_copies()


def move_all_slots(group: "RowGroup", out: bool) -> None:
    """Write all rows of the cache back, or read them again, wait for it, and count the bytes."""
    group.settle_all()
    if isinstance(group.planner, ResidentPlanner):
        caller_mark(group.device).wait()
        return
    store, cache, slots, mover = group.store, group.cache, group.planner.slots, group.mover
    moving: list[Tensor] = []

    def work() -> None:
        for start in range(0, slots.num, AT_ONCE):
            rows = slots.row[start : min(start + AT_ONCE, slots.num)]
            nothing = torch.full_like(rows, NO_ROW)
            place = torch.arange(start, start + rows.numel(), dtype=torch.int32, device=rows.device)
            num = torch.full((1,), rows.numel(), dtype=torch.int32, device=rows.device)
            mover.move(store, cache, Moves(place, rows if out else nothing, nothing if out else rows, num))
            moving.append((rows >= 0).sum())

    group.submit_move(work, (caller_mark(group.device), group.planned)).wait()
    num_bytes = sum(map(int, moving)) * store.layout.num_bytes
    if out:
        group.stats.bytes_out += num_bytes
    else:
        group.stats.bytes_in += num_bytes


def cached_rows(group: "RowGroup") -> Tensor:
    """The rows of the store that are in the cache, int64 on the host."""
    assert isinstance(group.planner, Planner)
    group.wait_for_moves()
    rows = group.planner.slots.row[: group.num_slots].cpu()
    return rows[rows >= 0]


def preload_hottest(group: "RowGroup", num: int) -> None:
    """Bring the first rows of the store into the cache, where they may be evicted like any other.

    Of the stats only the bytes moved change, for no batch has asked for these rows.
    """
    num = min(num, group.store.num_rows)
    if isinstance(group.planner, ResidentPlanner) or num == 0:
        return
    rows = torch.arange(num) if group.numbering is None else group.numbering.hottest(num)
    rows = rows.to(group.device)
    before = replace(group.totals())
    flight = group.plan_now(group.request(lambda: Rows(rows)), Placing.WHAT_FITS)
    group.acquire(flight)
    group.drop(flight)
    after = group.totals()
    group.stats = replace(before, bytes_in=after.bytes_in, bytes_out=after.bytes_out)


def pin(group: "RowGroup", rows: Tensor) -> None:
    """Bring rows, numbered table after table, into the cache and never evict them."""
    if isinstance(group.planner, ResidentPlanner):
        return
    flight = group.plan_now(group.request(lambda: Rows(rows)), Placing.WHAT_FITS)
    group.settle_all()
    assert flight.counts is not None
    try:
        if flight.counts.overflow:
            raise ValueError(
                f"{flight.counts.unique:,} rows to pin, but {flight.counts.overflow:,} of them find no slot in a "
                f"cache of {group.num_slots:,}: pin fewer rows or make the cache larger"
            )
        pinned = group.planner.slots.pinned
        group.planned = group.plan_lane.submit(lambda: _set(pinned, flight.plan.row_slots))
        group.planned.hold_caller()
        group.num_pinned = int(pinned.sum())
    finally:
        group.acquire(flight)
        group.drop(flight)


def unpin(group: "RowGroup") -> None:
    """Let pinned rows go again."""
    if isinstance(group.planner, ResidentPlanner):
        return
    pinned = group.planner.slots.pinned
    group.planned = group.plan_lane.submit(lambda: _clear(pinned))
    group.num_pinned = 0


def _set(flags: Tensor, slots: Tensor) -> None:
    flags[slots[slots >= 0]] = True


def _clear(flags: Tensor) -> None:
    flags.fill_(False)
