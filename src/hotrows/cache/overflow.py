"""Copies of rows that found no slot, behind the last slot of a cache: there for one batch, written back after it."""

from typing import TYPE_CHECKING

import torch

from hotrows.cache.maintenance import move_all_slots
from hotrows.loop.ticket import Flight
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.streams import record_event, writable_state

if TYPE_CHECKING:
    from hotrows.cache.row_cache import RowCache

# bytes of a cache that may be there twice while the buffer is made larger; a larger one goes through the store
MOST_TWICE = 1 << 27


def reserve(group: "RowCache", num: int) -> None:
    """Make the buffer hold `num` records."""
    if group.num_slots + num <= group.cache.shape[0]:
        return
    group.wait_for_moves()
    # the next batch may have a few more, and to grow takes long
    room = max(num + num // 4, 2 * (group.cache.shape[0] - group.num_slots))
    with writable_state():
        if group.cache.nbytes <= MOST_TWICE:
            _grow_by_copy(group, room)
        else:
            _grow_through_store(group, (room, num))
    record_event(group.device).synchronize()  # the old one is read no more, the new one is written


def _grow_by_copy(group: "RowCache", room: int) -> None:
    grown = group.cache.new_zeros(group.num_slots + room, group.cache.shape[1])
    grown[: group.cache.shape[0]] = group.cache
    group.cache = grown


def _grow_through_store(group: "RowCache", rooms: tuple[int, ...]) -> None:
    """Write the rows back, and read them into new memory once the old is given up: it may be most of the device's.

    What is in the buffer is in use by no batch, for the next one is about to be written over it.

    Args:
        rooms: to have in the buffer, the last of them at least.
    """
    num_before, width = group.cache.shape
    sizes = (*(group.num_slots + room for room in rooms), num_before)
    failed: Exception | None = None
    with defer_sigint():  # between the two, rows are not where the index says
        move_all_slots(group, out=True)
        group.cache = group.cache.new_empty(0, width)
        try:
            for size in sizes:
                try:
                    group.cache = group.cache.new_zeros(size, width)
                    break
                except (RuntimeError, MemoryError) as error:
                    failed = failed or error
            if len(group.cache) < group.num_slots:
                raise failed or MemoryError
            move_all_slots(group, out=False)
        except BaseException as error:
            group.lose_cache()
            raise MemoryError(group.lost) from error
    if failed is not None and len(group.cache) < sizes[-2]:
        raise failed


def fetch(group: "RowCache", flight: Flight) -> None:
    """Copy the rows of a plan that found no slot into the buffer."""
    plan, store, cache, transfer = flight.plan, group.store, group.cache, group.transfer

    def work() -> None:
        nothing = torch.full_like(plan.overflow_rows, NO_ROW)
        transfer.move(store, cache, Moves(plan.overflow_slots, nothing, plan.overflow_rows, plan.num_overflow))

    flight.moved = group.submit_move(work, (group.planned,))


def write_back(group: "RowCache", flight: Flight) -> None:
    """Write them to the store, behind their update."""
    assert flight.counts is not None
    plan, store, cache, transfer = flight.plan, group.store, group.cache, group.transfer

    def work() -> None:
        nothing = torch.full_like(plan.overflow_rows, NO_ROW)
        transfer.move(store, cache, Moves(plan.overflow_slots, plan.overflow_rows, nothing, plan.num_overflow))

    flight.moved = group.submit_move(work, (record_event(group.device), group.planned))
    group.stats.bytes_out += flight.counts.overflow * store.layout.num_bytes
