"""Rows brought into a cache before any batch asks for them: the hottest ones, or rows that stay for ever."""

from dataclasses import replace

import torch
from torch import Tensor

from hotrows.cache.planning.protocol import Placement
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket, CheckedRows


def preload_hottest(scheduler: Scheduler, num: int) -> None:
    """Bring the first rows of the store into the cache. With a row order, these are the hottest. They can be evicted.

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
                in_cache = (row_slots >= 0) & (row_slots < cache.num_slots)  # the others are in the overflow buffer
                pinned_again = int(pinned[row_slots[in_cache]].sum())
                raise ValueError(_why_not_pinned(scheduler, ticket, cache.num_pinned - pinned_again))
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


def _why_not_pinned(scheduler: Scheduler, ticket: BatchTicket, num_others: int) -> str:
    """The error message for rows to pin that found no slot, while `num_others` other rows are pinned already."""
    cache, counts = scheduler.cache, ticket.counts
    assert counts is not None
    num_batches = len(scheduler.in_flight) - (ticket in scheduler.in_flight)
    if num_batches and cache.planner.any_slot and counts.unique + num_others <= cache.num_slots:
        batches, depth = ("batch", "") if num_batches == 1 else ("batches", "give the loop a smaller depth, ")
        return (
            f"{counts.unique:,} rows to pin find no room beside the rows of {num_batches} {batches} in flight in a "
            f"cache of {cache.num_slots:,}, although they would fit alone: pin them before the lookahead loop begins, "
            f"{depth}or make the cache larger"
        )
    # With an index that gives a row any slot, count only the rows beyond the size of the cache: further rows may lack a
    # slot only because batches are in flight.
    missing = counts.unique + num_others - cache.num_slots if cache.planner.any_slot else counts.overflow
    find = "finds" if missing == 1 else "find"
    already = f" with {num_others:,} other rows pinned already" if num_others else ""
    return (
        f"{counts.unique:,} rows to pin, but {missing:,} of them {find} no slot in a cache of "
        f"{cache.num_slots:,}{already}: pin fewer rows or make the cache larger"
    )


def _set(flags: Tensor, slots: Tensor) -> None:
    flags[slots[slots >= 0]] = True


def _clear(flags: Tensor) -> None:
    flags.fill_(False)
