"""The ticket of a batch: the one object that goes through a cache with it, from its announcement to its release.

    ANNOUNCED ──▶ PLANNED ──▶ READY ──▶ TRAINED ──▶ RELEASED
        ▲             │
        └── REJECTED ◀┘   the plan had no room: the ticket is announced again and planned later

Each stage fills its part of the ticket. A batch has one ticket for each cache that it looks rows up in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotrows.cache.planning.protocol import Counts, Part, Placement, Plan
from hotrows.cache.stale_reads import StaleRead
from hotrows.errors import BadIdError
from hotrows.loop.depth_controller import Probe
from hotrows.ops.unique import UniqueRows
from hotrows.runtime.readback import Readback
from hotrows.runtime.streams import Event

NOTHING_BAD = 0
BAD_ELSEWHERE = -1  # another cache of the module has found what is bad, and reports it


class TicketState(Enum):
    ANNOUNCED = "announced"  # its unique rows are being found
    PLANNED = "planned"  # its plan is queued; the host does not know yet whether it fits
    REJECTED = "rejected"  # the plan did not fit beside the batches in flight, and changed nothing
    READY = "ready"  # its moves are queued: the caller's stream waits for `ready` and trains
    TRAINED = "trained"  # its iteration is over; an open autograd graph, or the next iteration, still retains it
    RELEASED = "released"  # nobody retains it: its slots may be evicted


_NEXT = {
    TicketState.ANNOUNCED: {TicketState.PLANNED, TicketState.RELEASED},
    TicketState.PLANNED: {TicketState.READY, TicketState.REJECTED},
    TicketState.REJECTED: {TicketState.ANNOUNCED},
    TicketState.READY: {TicketState.TRAINED, TicketState.RELEASED},
    TicketState.TRAINED: {TicketState.RELEASED},
    TicketState.RELEASED: set(),
}


@dataclass
class CheckedRows:
    """The rows that a batch looks up, checked on the device.

    `bad` is int64 [3]: what is bad (NOTHING_BAD if nothing is), its position, its value. A batch with anything bad has
    no rows at all, so that it changes nothing.
    """

    rows: Tensor  # int64 [N], numbered table after table
    bad: Tensor | None = None


@dataclass(slots=True, eq=False)
class BatchTicket:
    """One batch on its way through one cache."""

    # Filled by the announcement.
    unique: UniqueRows  # by the rows' numbers in the store
    ids: tuple[Tensor, ...]  # the user's tensors that decide the rows, kept alive
    unique_count: Readback
    bad_id: Readback | None  # the first bad id, if any
    describe: Callable[[list[int]], str] | None  # makes the error message for a bad id
    rows_by_table: Tensor | None = None  # the unique rows numbered table after table, if the store has another order
    # The number under which the batch was announced by itself. None if it was coalesced, withdrawn or planned in its
    # iteration, and None if another ticket has taken the number over.
    batch_number: int | None = None
    announced: Event | None = None  # None until the announcement is queued
    coalesced: "CoalescedBatches | None" = None  # the batches it is coalesced with, until the plan is known to fit
    error: BaseException | None = None  # why the announcement failed
    checked: bool = False  # the host has read `bad_id` back
    is_bad: bool = False  # the host has found a bad id
    was_rejected: bool = False  # an earlier plan was rejected, so the next one searches all slots for victims

    # Filled by planning.
    plan: Plan | None = None
    placement: Placement = Placement.ATOMIC
    counts_readback: Readback | None = None
    planned: Event | None = None
    move_after: tuple[Event, ...] = ()  # what the moves wait for: the batches that were released when it was planned
    plan_buffer: int | None = None  # of the planning graph
    leader: "BatchTicket | None" = None  # of coalesced batches, the first ticket: its plan carries the moves of all
    counts: Counts | None = None  # once read back
    # How the loop planned the batch ahead; None again once the loop has acted on whether the plan fits.
    ahead: "PlannedAhead | None" = None

    # Filled by moving, training and releasing.
    ready: Event | None = None
    stale_read: StaleRead | None = None  # what the forward pass reads instead of the records
    last_use: Event | None = None  # recorded behind the last use of the plan and its slots
    has_single_use: bool = False  # `last_use` was the only use, so releasing the ticket records no other event
    references: int = 1
    state: TicketState = TicketState.ANNOUNCED

    _versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._versions = _versions(self.ids)

    def move_to(self, state: TicketState) -> None:
        """Change the state. A transition that is not in `_NEXT` is a bug."""
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"a batch's ticket cannot go from {self.state.value} to {state.value}")
        self.state = state

    @property
    def can_be_acquired(self) -> bool:
        """Its moves are queued, so that a forward pass can wait for `ready`."""
        return self.state in (TicketState.READY, TicketState.TRAINED)

    @property
    def is_released(self) -> bool:
        return self.state is TicketState.RELEASED

    @property
    def overflows(self) -> bool:
        """Some of its rows are known to have no slot."""
        return self.counts is not None and self.counts.overflow > 0

    @property
    def planned_rows(self) -> Tensor:
        """The plan's unique rows, numbered table after table whatever their order in the store."""
        assert self.plan is not None
        return self.plan.unique.rows if self.rows_by_table is None else self.rows_by_table

    @property
    def unique_by_table(self) -> UniqueRows:
        """The unique rows, numbered table after table."""
        return self.unique if self.rows_by_table is None else self.unique._replace(rows=self.rows_by_table)

    def is_announcement_done(self) -> bool:
        return self.announced is not None and self.announced.query()

    def check_ids(self) -> None:
        """Raise if the batch has a bad id in this cache. Waits until the planning stream has looked at it."""
        if self.bad_id is not None and not self.checked:
            found = self.bad_id.bad_id()
            self.checked = True
            self.is_bad = found[0] != NOTHING_BAD
            if self.is_bad and found[0] != BAD_ELSEWHERE:
                assert self.describe is not None
                raise BadIdError(self.describe(found))

    def has_ids_among(self, values: Sequence[Any]) -> bool:
        """The announced id tensors are among these values and were not changed since."""
        for ids in self.ids:
            for value in values:
                if value is ids:
                    break
            else:
                return False
        return _versions(self.ids) == self._versions

    def matches(self, ids: Sequence[Tensor]) -> bool:
        """A forward pass with these id tensors looks up what was announced."""
        return all(_same(*each) for each in zip(self.ids, self._versions, ids, strict=True))


class PlannedAhead(NamedTuple):
    """The situation in which the loop planned a batch ahead of its iteration."""

    iteration: int
    distance: int  # batches to come before it
    beside_last: bool  # the batch before the current one was in flight
    probe: Probe | None  # what the plan tried out; None if it was known to fit


@dataclass(slots=True, eq=False)
class CoalescedBatches:
    """Batches that are announced under one number and planned as one; often there is only one."""

    batch_number: int | None  # None once they are planned or separated
    unique_count: Readback | None = None  # of the union of their rows, once announced
    tickets: list[BatchTicket] = field(default_factory=list)  # in the order of the loop
    # In the planning graph:
    request_buffer: int = -1
    ids: list[Tensor] = field(default_factory=list)  # of each batch, until they are announced
    ids_ready: tuple[Event, ...] = ()
    num_resolved: int = 0  # tickets that no longer need the request buffer
    # Outside the graph, once announced:
    union: UniqueRows | None = None
    parts: list[Part] | None = None


def _same(old: Tensor, version: int, new: Tensor) -> bool:
    if old is new:
        return _versions((new,)) == [version]
    # Comparing values would synchronize on a GPU, and planning anew does not.
    return old.device.type == new.device.type == "cpu" and _versions((old,)) == [version] and torch.equal(old, new)


_version = attrgetter("_version")


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """How often each tensor was changed in place. PyTorch does not count it for inference tensors."""
    try:
        return [*map(_version, tensors)]
    except RuntimeError:  # one of them is an inference tensor; asking each of them beforehand is slower
        return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]
