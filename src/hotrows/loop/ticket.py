"""The ticket of a batch: the one object that goes through a cache with it, from its announcement to its release.

    ANNOUNCED ──▶ PLANNED ──▶ READY ──▶ TRAINED ──▶ RELEASED
        ▲             │
        └── REJECTED ◀┘   the plan had no room: the batch is planned again later

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
BAD_ELSEWHERE = -1  # another cache of the module reports what is bad: a lookup of its own, or the offsets


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

    `bad` is int64 [3]: a code (NOTHING_BAD, BAD_ELSEWHERE, or BAD_ID and BAD_OFFSETS of `nn.lookups`), then the
    position and the value of the first bad id (for bad offsets: 0 and the last offset). A batch with anything bad has
    no rows at all, so that it changes nothing.
    """

    rows: Tensor  # int64 [N], numbered table after table: those of the first, then those of the second, and so on
    bad: Tensor | None = None


@dataclass(slots=True, eq=False)
class BatchTicket:
    """One batch on its way through one cache."""

    # Filled by the announcement.
    unique: UniqueRows  # its unique rows, under their numbers in the store
    # The user's tensors from which the rows are computed, kept alive: ids, or the values and lengths of a `Jagged`.
    ids: tuple[Tensor, ...]
    unique_count: Readback
    bad_id: Readback | None  # reads `CheckedRows.bad` back; None if nothing is checked on the device
    describe: Callable[[list[int]], str] | None  # makes the error message for a bad id
    rows_by_table: Tensor | None = None  # the unique rows numbered table after table, if the store has another order
    # The number under which this batch alone was announced to the policy. None if it was not, as while it belongs to
    # `coalesced`, which has the number then. Also None once the batch was withdrawn, planned in its iteration, or
    # replaced by another ticket.
    batch_number: int | None = None
    announced: Event | None = None  # None until the announcement is queued
    # The batches it is coalesced with. None without such batches, and once its plan is known to fit.
    coalesced: "CoalescedBatches | None" = None
    error: BaseException | None = None  # why the announcement failed
    checked: bool = False  # the host has read `bad_id` back
    is_bad: bool = False  # the host has found a bad id
    was_rejected: bool = False  # an earlier plan was rejected, so the next one searches all slots for victims

    # Filled by planning.
    plan: Plan | None = None
    placement: Placement = Placement.ATOMIC
    counts_readback: Readback | None = None
    planned: Event | None = None
    # What its moves wait for besides `planned`: the last uses of the batches released before it was planned and, if it
    # was planned in its iteration, the caller's stream.
    move_after: tuple[Event, ...] = ()
    plan_buffer: int | None = None  # of the planning graph
    # The first of the coalesced batches that it was planned with, whose plan has all moves. None for the first itself.
    leader: "BatchTicket | None" = None
    counts: Counts | None = None  # once read back
    # How the loop planned the batch ahead. None before that, and again as soon as the loop has resolved the plan.
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
        """Raise if this cache reports something bad in the batch. May wait until the planning stream has checked it."""
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
    distance: int  # how many iterations before its own: 0 for the batch whose iteration it is
    beside_last: bool  # the batch before the current one was in flight
    probe: Probe | None  # what the plan tried out; None if it tried out nothing (it may be rejected all the same)


@dataclass(slots=True, eq=False)
class CoalescedBatches:
    """Batches that are announced under one number and planned as one. There may be only one batch."""

    batch_number: int | None  # None once the batches are separated
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
