"""Rows brought into a cache before any batch asks for them: the hottest ones, or rows that stay for ever."""

from dataclasses import replace

import torch
from torch import Tensor

from hotrows.cache.planning.protocol import Placement
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket, CheckedRows


def preload_hottest(scheduler: Scheduler, num: int) -> None:
    """Bring the first rows of the store into the cache, where they may be evicted like any other.

    Only the bytes moved are counted in the statistics, because no batch asked for these rows.
    """
    cache = scheduler.cache
    num = min(num, cache.store.num_rows)
    if cache.holds_all_rows or num == 0:
        return
    rows = torch.arange(num) if cache.numbering is None else cache.numbering.hottest(num)
    with scheduler.exclusive:
        before = replace(scheduler.totals())
        ticket = _bring_in(scheduler, rows.to(cache.device))
        scheduler.acquire(ticket)
        scheduler.release(ticket)
        after = scheduler.totals()
        cache.stats = replace(before, bytes_in=after.bytes_in, bytes_out=after.bytes_out)


def pin(scheduler: Scheduler, rows: Tensor) -> None:
    """Bring rows, numbered table after table, into the cache and never evict them."""
    cache = scheduler.cache
    pinned = cache.planner.pinned
    if pinned is None:
        return
    with scheduler.exclusive:
        ticket = _bring_in(scheduler, rows)
        try:
            scheduler.resolve_all()
            assert ticket.counts is not None
            assert ticket.plan is not None
            row_slots = ticket.plan.row_slots
            if ticket.counts.overflow:
                raise ValueError(
                    f"{ticket.counts.unique:,} rows to pin, but {ticket.counts.overflow:,} of them find no slot in a "
                    f"cache of {cache.num_slots:,}: pin fewer rows or make the cache larger"
                )
            scheduler.streams.submit_plan(lambda: _set(pinned, row_slots)).wait()
            cache.num_pinned = int(pinned.sum())
        finally:
            scheduler.acquire(ticket)
            scheduler.release(ticket)


def unpin(scheduler: Scheduler) -> None:
    """Let pinned rows be evicted again."""
    pinned = scheduler.cache.planner.pinned
    if pinned is not None:
        with scheduler.exclusive:
            scheduler.streams.submit_plan(lambda: _clear(pinned))
            scheduler.cache.num_pinned = 0


def _bring_in(scheduler: Scheduler, rows: Tensor) -> BatchTicket:
    ticket = scheduler.announcements.announce_rows(lambda: CheckedRows(rows))
    scheduler.plan_now(ticket, Placement.SPILL)
    return ticket


def _set(flags: Tensor, slots: Tensor) -> None:
    flags[slots[slots >= 0]] = True


def _clear(flags: Tensor) -> None:
    flags.fill_(False)
