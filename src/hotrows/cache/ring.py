"""A ring of places for batches of one shape, announced and planned ahead by CUDA graphs.

A graph is a recording of kernels on fixed memory. So every batch that was announced has a *place*, where its distinct
rows are until it is planned, and every batch that was planned a *seat*, where its plan is until it has trained. One
turn of the loop announces a batch, plans another and moves its rows: one recording, replayed in the planning lane,
because launching is what a small batch spends its time on. What changes from turn to turn goes through small arrays in
pinned memory, which the kernels read and write: which place and seat, the batch's numbers, and its counts.
"""

import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotrows.cache.from_host import CopiesFromHost
from hotrows.cache.fused import FusedPlanner, Moves, Places, Seat, Seats
from hotrows.cache.id_columns import IdColumns
from hotrows.cache.lanes import Mark, writable_state
from hotrows.cache.planner import Counts, Plan, Planner
from hotrows.cache.policies import Lookahead
from hotrows.cache.recording import Recorder
from hotrows.cache.resident import ResidentPlanner
from hotrows.cache.uninterrupted import uninterrupted
from hotrows.ops.plan import kernel

_serials = itertools.count()
_NUMBERS = struct.Struct(f"={kernel.NUM_NUMBERS}i")  # of a turn: those of the planned batch, and of the announced one
_PLANNED = slice(kernel.BATCH.value, kernel.SEAT.value + 1)
_COMING = slice(kernel.COMING.value, kernel.COMING_PLACE.value + 1)
NUM_TURNS = 64  # whose numbers the host may have written before they are read
SPARE = 4  # seats beyond the depth: the batch that trains, the one before it, and two that the host has not looked at


class Ring:
    """Places and seats for batches of one shape.

    Args:
        shape, dtype: of the ids of all its batches, [B, F].
        depth, window: of the loop that will look ahead.
        num_rows: of the group.
        move: carries out the moves of a plan.
    """

    def __init__(
        self,
        planner: Planner | ResidentPlanner,
        part: IdColumns,
        shape: torch.Size,
        dtype: torch.dtype,
        depth: int,
        window: int,
        num_rows: int,
        device: torch.device,
        move: Callable[[Moves], None],
    ) -> None:
        self.serial = next(_serials)
        self._shape, self._dtype = shape, dtype
        self.depth = depth
        self.window = window
        self._planner = planner
        self._slots_planner = planner if isinstance(planner, Planner) else None
        self._move = move
        self.num_lookups = shape[0] * part.first_row.numel()
        self.num_seats = depth + SPARE
        # a whole number of rounds of seats, so that a place always goes to the same seat
        self.num_places = -(-(window + 2) // self.num_seats) * self.num_seats
        self._ids = CopiesFromHost(torch.zeros(shape, dtype=dtype, device=device))
        self._next = 0
        pinned = device.type == "cuda"

        def host(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=torch.int32, pin_memory=pinned)

        # on the host: distinct rows and what is bad, of a place; the plan's counts, of a seat
        told, counts = host(self.num_places, 2), host(self.num_seats, len(Counts._fields))
        self.told: list[NDArray[np.int32]] = list(told.numpy())
        self.counts: list[NDArray[np.int32]] = list(counts.numpy())
        self.places = Places(self.num_places, self.num_lookups, device, told)
        self.seats = Seats(self.num_seats, self.num_lookups, device, counts)
        self.waiting = [self.places.distinct(place) for place in range(self.num_places)]
        self._plans = [_arrays(self.seats[seat]) for seat in range(self.num_seats)]
        numbers = host(NUM_TURNS, kernel.NUM_NUMBERS)
        self._write = numbers.numpy().data.cast("B")
        self._numbers = [0] * kernel.NUM_NUMBERS  # of the next turn
        self._turn = 0
        # from when a turn is run until it is counted: where that fails, host and device may not agree on their number
        self.is_broken = False
        self._read: list[Mark | None] = [None] * NUM_TURNS  # when the numbers of a turn have been
        self._fused = FusedPlanner(planner, part, shape[0], num_rows, self.places, self.seats, numbers)
        policy = None if self._slots_planner is None else self._slots_planner.policy
        self._upcoming = policy.upcoming if isinstance(policy, Lookahead) else None
        self._recorder = Recorder(device) if pinned else None
        self._recordings: dict[tuple[bool, bool], tuple[tuple[int, int], torch.cuda.CUDAGraph]] = {}
        self._compiled: set[tuple[bool, bool]] = set()

    @property
    def num_bytes(self) -> int:
        """Device memory of places and seats."""
        tensors = [self._ids.target, *self.places.tensors, *self.seats.tensors]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def suits(self, ids: Tensor, depth: int, window: int) -> bool:
        """Whether a loop that looks so far ahead can have a place for these ids; without depth, none moves early."""
        fits = ids.shape == self._shape and ids.dtype == self._dtype
        return fits and self.depth >= depth > 0 and self.window >= window and not self.is_broken

    def next_place(self) -> int:
        """The place for the next batch, whoever was there before."""
        place = self._next
        self._next = (place + 1) % self.num_places
        return place

    def seat_of(self, place: int) -> int:
        return place % self.num_seats

    def has_room(self) -> bool:
        """Whether the next batch can be announced without making a table larger or building it anew."""
        return self._upcoming is None or self._upcoming.has_room(self.num_lookups)

    # -- in the planning lane -------------------------------------------------------------------------------------

    def prepare_announcement(self, ids: Tensor, place: int, number: int) -> None:
        """What comes before `run` announces the batch of a place. The ids must live until that is done."""
        if self._upcoming is not None:
            self._upcoming.expect(number, self.num_lookups)
        self._numbers[_COMING] = number, place
        self._ids.copy(ids)

    def prepare_plan(
        self, place: int, oldest: int | None, number: int, num_rows: int, everywhere: bool
    ) -> tuple[int, bool]:
        """What comes before `run` plans the batch of a place, of at most so many rows.

        Args:
            everywhere: as for `Planner.plan`.

        Returns:
            The number of the plan, and whether it looks at all slots for victims.
        """
        planner = self._slots_planner
        batch = self._planner.batch = self._planner.batch + 1
        start = length = 0
        looks_at_all = True
        if planner is not None:
            planner.index.maintain(num_rows)
            start, length = planner.next_scan(num_rows, everywhere)
            looks_at_all = length == planner.num_slots
        first = batch if oldest is None else oldest
        self._numbers[_PLANNED] = batch, first, number, start, length, place, place % self.num_seats
        return batch, looks_at_all

    def run(self, announces: bool, plans: bool, cache_address: int) -> None:
        """Announce a batch, then plan another, all or nothing, and carry out its moves: what was prepared.

        What was recorded holds for the memory of that time: the table of upcoming uses, and the cache. Call `ran` then.
        """
        at = self._turn % NUM_TURNS
        read = self._read[at]
        if read is not None:
            read.wait()  # what was there has long been read
        _NUMBERS.pack_into(self._write, at * _NUMBERS.size, *self._numbers)
        kind = announces, plans
        self.is_broken = True
        if self._recorder is None or kind not in self._compiled:
            with uninterrupted(), writable_state():  # rows that have a slot must come to it, and compiling takes long
                self._work(announces, plans)
            self._compiled.add(kind)
        else:
            memory = (0 if self._upcoming is None else self._upcoming.generation, cache_address)
            found = self._recordings.get(kind)
            if found is None or found[0] != memory:
                with self._recorder.recording() as graph, writable_state():
                    self._work(announces, plans)
                found = self._recordings[kind] = (memory, graph)
            found[1].replay()

    def _work(self, announces: bool, plans: bool) -> None:
        self._fused.turn(self._ids.target, announces, plans)
        if plans and self._fused.moves is not None:
            self._move(self._fused.moves)

    def ran(self, mark: Mark) -> None:
        """A turn was queued, and is done at the mark."""
        self._read[self._turn % NUM_TURNS] = mark
        self._turn += 1
        self.is_broken = False

    def plan_in(self, seat: int, batch: int, number: int, num_rows: int, looked_at_all: bool) -> Plan:
        """The plan in a seat, of a batch of at most so many rows."""
        planner = self._slots_planner
        generation = 0 if planner is None else planner.index.generation
        return Plan(batch, number, generation, num_rows, looked_at_all, *self._plans[seat])


def _arrays(seat: Seat) -> tuple[Any, ...]:
    """The fields of a plan that are memory of its seat, in their order."""
    overflow = seat.move_slots, seat.move_in, seat.num_moves  # such a plan has none
    return (
        seat.distinct, seat.slots, seat.row_slots, seat.move_slots, seat.move_out, seat.move_in, seat.num_moves,
        *overflow, seat.counts,
    )  # fmt: skip
