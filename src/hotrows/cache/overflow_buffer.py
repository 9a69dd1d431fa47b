"""Copies of rows that found no slot, behind the last slot of a cache: there for one batch, written back after it."""

from typing import TYPE_CHECKING

import torch

from hotrows.cache.contents import move_all_slots
from hotrows.cache.flights import Flight
from hotrows.cache.lanes import caller_mark, writable_state
from hotrows.cache.uninterrupted import uninterrupted
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves

if TYPE_CHECKING:
    from hotrows.cache.group import RowGroup

# bytes of a cache that may be there twice while the buffer is made larger; a larger one goes through the store
MOST_TWICE = 1 << 27


def reserve(group: "RowGroup", num: int) -> None:
    """Make the buffer hold `num` records."""
    if group.num_slots + num <= group.cache.shape[0]:
        return
    group.wait_for_moves()
    room = max(num, 2 * (group.cache.shape[0] - group.num_slots))
    with writable_state():
        if group.cache.nbytes <= MOST_TWICE:
            _grow_by_copy(group, room)
        else:
            _grow_through_store(group, room)
    caller_mark(group.device).wait()  # the old one is read no more, the new one is written


def _grow_by_copy(group: "RowGroup", room: int) -> None:
    grown = group.cache.new_zeros(group.num_slots + room, group.cache.shape[1])
    grown[: group.cache.shape[0]] = group.cache
    group.cache = grown


def _grow_through_store(group: "RowGroup", room: int) -> None:
    """Write the rows back, and read them into the new memory once the old is given up: it may be most of the device's.

    What is in the buffer is in use by no batch, for the next one is about to be written over it.
    """
    num_before, width = group.cache.shape
    with uninterrupted():  # between the two, rows are not where the index says
        group.stats.bytes_out += move_all_slots(group, out=True)
        group.cache = group.cache.new_empty(0, width)
        try:
            group.cache = group.cache.new_zeros(group.num_slots + room, width)
        except BaseException:
            group.cache = group.cache.new_zeros(num_before, width)  # what was given up is there to be had
            raise
        finally:
            group.stats.bytes_in += move_all_slots(group, out=False)


def fetch(group: "RowGroup", flight: Flight) -> None:
    """Copy the rows of a plan that found no slot into the buffer."""
    plan, store, cache, mover = flight.plan, group.store, group.cache, group.mover

    def work() -> None:
        nothing = torch.full_like(plan.overflow_rows, NO_ROW)
        mover.move(store, cache, Moves(plan.overflow_slots, nothing, plan.overflow_rows, plan.num_overflow))

    flight.moved = group.submit_move(work, (group.planned,))


def write_back(group: "RowGroup", flight: Flight) -> None:
    """Write them to the store, behind their update."""
    assert flight.counts is not None
    plan, store, cache, mover = flight.plan, group.store, group.cache, group.mover

    def work() -> None:
        nothing = torch.full_like(plan.overflow_rows, NO_ROW)
        mover.move(store, cache, Moves(plan.overflow_slots, plan.overflow_rows, nothing, plan.num_overflow))

    flight.moved = group.submit_move(work, (caller_mark(group.device), group.planned))
    group.stats.bytes_out += flight.counts.overflow * store.layout.num_bytes
