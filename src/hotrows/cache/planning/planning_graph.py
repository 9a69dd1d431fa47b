"""A ring of places for batches of one shape, announced and planned ahead by CUDA graphs.

A graph is a recording of kernels on fixed memory. So every batch that was announced has a *place*, where its distinct
rows are until it is planned, and every batch that was planned a *seat*, where its plan is until it has trained. One
turn of the loop announces a batch, plans another and moves its rows: one recording, replayed in the planning lane,
because launching is what a small batch spends its time on. What changes from turn to turn goes through small arrays in
pinned memory, which the kernels read and write: which place and seat, the batch's numbers, and its counts.

Kernels beside the training slow it down, and those of a small batch hardly less than those of a larger one. So small
batches share their turns: a *party* of them is announced into one place and planned as one batch, once for all its
rows, and only what training reads is there for each of them, in a seat of its own. A party that is not full is filled
up with its last batch over again, which adds no row.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.kernel_planner import KernelPlanner, PlanBuffer, PlanBuffers, RequestBuffers
from hotrows.cache.planning.planner import Counts, EagerPlanner, Plan
from hotrows.cache.policies import Lookahead
from hotrows.ops.plan import kernel
from hotrows.ops.swap import Moves
from hotrows.runtime.capture import GraphCapture
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.host_copy import HostCopy
from hotrows.runtime.streams import Event, writable_state

_serials = itertools.count()
_NUMBERS = struct.Struct(f"={kernel.NUM_NUMBERS}i")  # of a turn: those of the planned batch, and of the announced one
_PLANNED = slice(kernel.BATCH.value, kernel.SEAT.value + 1)
_COMING = slice(kernel.COMING.value, kernel.COMING_PLACE.value + 1)
NUM_TURNS = 64  # whose numbers the host may have written before they are read
SPARE = 4  # seats beyond the depth: the batch that trains, the one before it, and two that the host has not looked at
SMALL = 1 << 17  # lookups of a batch that shares its turns
PARTIES = (4, 2)  # with how many, the more the better


def batches_to_coalesce(planner: EagerPlanner | IdentityPlanner, num_lookups: int, depth: int, window: int) -> int:
    """How many batches of so many lookups are announced and planned together.

    Where every row is on the device there is nothing to win by it: distinct rows of several batches are no cheaper.
    """
    if not isinstance(planner, EagerPlanner) or not isinstance(planner.policy, Lookahead):
        return 1
    for size in PARTIES:
        has_room = size * num_lookups <= planner.num_slots
        # those to be planned are known by then, be the turns of announcing and planning however they are
        is_known = window >= depth + SPARE - 2 + 2 * size
        if num_lookups <= SMALL and has_room and is_known:
            return size
    return 1


class PlanningGraph:
    """Places and seats for batches of one shape.

    Args:
        shape, dtype: of the ids of all its batches, [B, F].
        depth, window: of the loop that will look ahead.
        num_rows: of the group.
        move: carries out the moves of a plan.
        party: how many batches are announced and planned together at most.
    """

    def __init__(
        self,
        planner: EagerPlanner | IdentityPlanner,
        part: IdColumns,
        shape: torch.Size,
        dtype: torch.dtype,
        depth: int,
        window: int,
        num_rows: int,
        device: torch.device,
        move: Callable[[Moves], None],
        party: int = 1,
    ) -> None:
        self.serial = next(_serials)
        self._shape, self._dtype = shape, dtype
        self.depth = depth
        self.window = window
        self._planner = planner
        self._slots_planner = planner if isinstance(planner, EagerPlanner) else None
        self._move = move
        self.party = party
        self.num_lookups = shape[0] * part.first_row.numel()  # of one batch
        # The batches in flight, and up to a party less one at either end: landed, or planned with one that was due. A
        # multiple of what a ring without parties has, so that groups with and without go round together: a step is
        # recorded for each combination of their seats.
        self.num_seats = seats = depth + SPARE
        while self.num_seats % party or self.num_seats < seats + 2 * (party - 1):
            self.num_seats += seats
        self._num_stalls = self.num_seats // party  # rows of seats, one for each member
        # a whole number of rounds of seats, so that a place always goes to the same seats
        num_parties = -(-(window + 2) // party) + (party > 1)
        self.num_places = -(-num_parties // self._num_stalls) * self._num_stalls
        ids = torch.zeros(party, *shape, dtype=dtype, device=device)
        self._all_ids = ids.view(-1, *shape[1:])
        self._ids = [HostCopy(each) for each in ids]
        self._next = 0
        pinned = device.type == "cuda"

        def host(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=torch.int32, pin_memory=pinned)

        # on the host: distinct rows and what is bad, of each batch in a place and of all together; a plan's counts
        told, counts = host(self.num_places * party, 2), host(self.num_seats, len(Counts._fields))
        together = host(self.num_places, 2) if party > 1 else told
        self.told: list[NDArray[np.int32]] = list(told.numpy())
        self.told_together: list[NDArray[np.int32]] = list(together.numpy())
        self.counts: list[NDArray[np.int32]] = list(counts.numpy())
        self.places = RequestBuffers(self.num_places, self.num_lookups, device, told, party, together)
        self.seats = PlanBuffers(self.num_seats, self.num_lookups, device, counts)
        self.waiting = [self.places.unique(place, each) for place in range(self.num_places) for each in range(party)]
        self._plans = [_arrays(self.seats[seat]) for seat in range(self.num_seats)]
        numbers = host(NUM_TURNS, kernel.NUM_NUMBERS)
        self._write = numbers.numpy().data.cast("B")
        self._numbers = [0] * kernel.NUM_NUMBERS  # of the next turn
        self._turn = 0
        # from when a turn is run until it is counted: where that fails, host and device may not agree on their number
        self.is_broken = False
        self._read: list[Event | None] = [None] * NUM_TURNS  # when the numbers of a turn have been
        self._fused = KernelPlanner(planner, part, shape[0], num_rows, self.places, self.seats, numbers)
        policy = None if self._slots_planner is None else self._slots_planner.policy
        self._upcoming = policy.next_use if isinstance(policy, Lookahead) else None
        self._recorder = GraphCapture(device) if pinned else None
        self._recordings: dict[tuple[bool, bool], tuple[tuple[int, int], torch.cuda.CUDAGraph]] = {}
        self._compiled: set[tuple[bool, bool]] = set()

    @property
    def num_bytes(self) -> int:
        """Device memory of places and seats."""
        tensors = [self._all_ids, *self.places.tensors, *self.seats.tensors]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def suits(self, ids: Tensor, depth: int, window: int) -> bool:
        """Whether a loop that looks so far ahead can have a place for these ids; without depth, none moves early."""
        fits = ids.shape == self._shape and ids.dtype == self._dtype
        return fits and self.depth >= depth > 0 and self.window >= window and not self.is_broken

    def next_place(self) -> int:
        """The place for the next party, whoever was there before."""
        place = self._next
        self._next = (place + 1) % self.num_places
        return place

    def seats_of(self, place: int) -> range:
        """Those of the members of the party in a place."""
        first = place % self._num_stalls * self.party
        return range(first, first + self.party)

    def has_room(self) -> bool:
        """Whether the next party can be announced without making a table larger or building it anew."""
        return self._upcoming is None or self._upcoming.has_room(self.party * self.num_lookups)

    def makes_room(self) -> bool:
        """Whether building the table anew is enough for the next party, and one that waits to be announced."""
        return self._upcoming is None or self._upcoming.makes_room(2 * self.party * self.num_lookups)

    # -- in the planning lane -------------------------------------------------------------------------------------

    def prepare_announcement(self, ids: Sequence[Tensor], place: int, number: int) -> None:
        """What comes before `run` announces the party of a place. The ids must live until that is done."""
        if self._upcoming is not None:
            self._upcoming.expect(number, self.party * self.num_lookups)
        self._numbers[_COMING] = number, place
        for i, each in enumerate(self._ids):
            each.copy(ids[min(i, len(ids) - 1)])

    def prepare_plan(
        self, place: int, oldest: int | None, number: int, num_rows: int, everywhere: bool, num_members: int = 1
    ) -> tuple[int, bool]:
        """What comes before `run` plans the party of a place, of at most so many rows.

        Its batches have numbers one after the other. The slots of all are noted to be used by the last of them, and
        stay until that has trained.

        Args:
            everywhere: as for `Planner.plan`.

        Returns:
            The number of the last batch's plan, and whether all slots are looked at for victims.
        """
        planner = self._slots_planner
        batch = self._planner.batch = self._planner.batch + num_members
        start = length = 0
        looks_at_all = True
        if planner is not None:
            planner.index.maintain(num_rows)
            start, length = planner.next_scan(num_rows, everywhere)
            looks_at_all = length == planner.num_slots
        first = batch if oldest is None else oldest
        self._numbers[_PLANNED] = batch, first, number, start, length, place, place % self._num_stalls
        return batch, looks_at_all

    def run(self, announces: bool, plans: bool, cache_address: int) -> None:
        """Announce a party, then plan another, all or nothing, and carry out its moves: what was prepared.

        What was recorded holds for the memory of that time: the table of upcoming uses, and the cache. Call `ran` then.
        """
        at = self._turn % NUM_TURNS
        read = self._read[at]
        if read is not None:
            read.synchronize()  # what was there has long been read
        _NUMBERS.pack_into(self._write, at * _NUMBERS.size, *self._numbers)
        kind = announces, plans
        self.is_broken = True
        if self._recorder is None or kind not in self._compiled:
            with defer_sigint(), writable_state():  # rows that have a slot must come to it, and compiling takes long
                self._work(announces, plans)
            self._compiled.add(kind)
        else:
            memory = (0 if self._upcoming is None else self._upcoming.generation, cache_address)
            found = self._recordings.get(kind)
            if found is None or found[0] != memory:
                with self._recorder.capture() as graph, writable_state():
                    self._work(announces, plans)
                found = self._recordings[kind] = (memory, graph)
            found[1].replay()

    def _work(self, announces: bool, plans: bool) -> None:
        self._fused.turn(self._all_ids, announces, plans)
        if plans and self._fused.moves is not None:
            self._move(self._fused.moves)

    def ran(self, event: Event) -> None:
        """A turn was queued, and is done at the mark."""
        self._read[self._turn % NUM_TURNS] = event
        self._turn += 1
        self.is_broken = False

    def plan_in(self, seat: int, batch: int, number: int | None, num_rows: int, looked_at_all: bool) -> Plan:
        """The plan in a seat, of a batch of at most so many rows."""
        planner = self._slots_planner
        generation = 0 if planner is None else planner.index.generation
        return Plan(batch, number, generation, num_rows, looked_at_all, *self._plans[seat])


def _arrays(seat: PlanBuffer) -> tuple[Any, ...]:
    """The fields of a plan that are memory of its seat, in their order; the turn itself has carried out its moves."""
    rows, num, *_ = seat.unique
    slots, nothing = seat.row_slots[:0], rows[:0]
    moves, overflow = (slots, nothing, nothing, num[:0]), (slots, nothing, num[:0])
    return seat.unique, seat.slots, seat.row_slots, *moves, *overflow, seat.counts
