"""A ring of places for batches of one shape, announced and planned ahead by CUDA graphs.

A graph is a recording of kernels on fixed memory. So every batch that was announced has a *place*, where its distinct
rows are until it is planned, and every batch that was planned a *seat*, where its plan is until it has trained. One
turn of the loop announces a batch, plans another and moves its rows: one recording for each pair of places, replayed in
the planning lane, because launching is what a small batch spends its time on. What changes from turn to turn goes
through small arrays in pinned memory, which the kernels read and write: the batch's numbers, and its counts.
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from hotrows.cache.from_host import copy_from_host
from hotrows.cache.fused import FusedPlanner, Place, Seat
from hotrows.cache.id_columns import IdColumns
from hotrows.cache.lanes import writable_state
from hotrows.cache.planner import Counts, Plan, Planner
from hotrows.cache.policies import Lookahead
from hotrows.cache.recording import Recorder
from hotrows.cache.resident import ResidentPlanner
from hotrows.cache.scan import Scan
from hotrows.ops.plan.kernel import NUM_NUMBERS

_serials = itertools.count()
SPARE = 4  # seats beyond the depth: the batch that trains, the one before it, and two that the host has not looked at


class Ring:
    """Places and seats for batches of one shape.

    Args:
        shape, dtype: of the ids of all its batches, [B, F].
        depth, window: of the loop that will look ahead.
        num_rows: of the group.
        move: carries out the moves of the plan in a seat.
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
        move: Callable[[Seat], None],
    ) -> None:
        self.serial = next(_serials)
        self._shape, self._dtype = shape, dtype
        self.depth = depth
        self.window = window
        self._planner = planner
        self._move = move
        self._fused = FusedPlanner(planner, part, shape[0], num_rows)
        self.num_lookups = self._fused.num_lookups
        self.num_seats = depth + SPARE
        # a whole number of rounds of seats, so that a place always goes to the same seat
        self.num_places = -(-(window + 2) // self.num_seats) * self.num_seats
        self._ids = torch.zeros(shape, dtype=dtype, device=device)
        self._next = 0
        pinned = device.type == "cuda"

        def host(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=torch.int32, pin_memory=pinned)

        announced_with, planned_with = host(self.num_places, NUM_NUMBERS), host(self.num_places, NUM_NUMBERS)
        self._write_announced, self._write_planned = announced_with.numpy(), planned_with.numpy()
        # on the host: distinct rows and what is bad, of a place; the plan's counts, of a seat
        self.told, self.counts = host(self.num_places, 2).unbind(), host(self.num_seats, len(Counts._fields)).unbind()
        self.seats = [Seat(self.num_lookups, device, counts) for counts in self.counts]
        self.places = [
            Place(self.num_lookups, device, *on_host)
            for on_host in zip(announced_with, planned_with, self.told, strict=True)
        ]
        policy = planner.policy if isinstance(planner, Planner) else None
        self._upcoming = policy.upcoming if isinstance(policy, Lookahead) else None
        self._recorder = Recorder(device) if pinned else None
        self._recordings: dict[tuple[int | None, int | None], tuple[tuple[int, int], torch.cuda.CUDAGraph]] = {}
        self._has_announced = self._has_planned = False

    @property
    def num_bytes(self) -> int:
        """Device memory of places and seats."""
        tensors = [self._ids]
        for holder in (*self.places, *self.seats):
            for value in vars(holder).values():
                tensors += list(value) if isinstance(value, tuple) else [value]
        tensors = [tensor for tensor in tensors if tensor.device == self._ids.device]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def suits(self, ids: Tensor, depth: int, window: int) -> bool:
        return ids.shape == self._shape and ids.dtype == self._dtype and self.depth >= depth and self.window >= window

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
        self._write_announced[place, 2] = number
        copy_from_host(self._ids, ids)

    def prepare_plan(
        self, place: int, oldest: int | None, number: int, num_rows: int, everywhere: bool
    ) -> tuple[int, bool]:
        """What comes before `run` plans the batch of a place, of at most so many rows.

        Args:
            everywhere: as for `Planner.plan`.

        Returns:
            The number of the plan, and whether it looks at all slots for victims.
        """
        planner = self._planner
        planner.batch += 1
        scan = Scan(0, 0)
        if isinstance(planner, Planner):
            planner.index.maintain(num_rows)
            scan = planner.next_scan(num_rows, everywhere)
        self._write_planned[place, :5] = planner.batch, planner.batch if oldest is None else oldest, number, *scan
        return planner.batch, scan.length in (0, planner.num_slots)

    def run(self, announced: int | None, planned: int | None, cache_address: int) -> None:
        """Announce the batch of one place, then plan that of another, all or nothing, and carry out its moves.

        What was recorded holds for the memory of that time: the table of upcoming uses, and the cache.
        """
        compiled = (announced is None or self._has_announced) and (planned is None or self._has_planned)
        if self._recorder is None or not compiled:
            with writable_state():
                self._work(announced, planned)
            return
        memory = (0 if self._upcoming is None else self._upcoming.generation, cache_address)
        found = self._recordings.get((announced, planned))
        if found is None or found[0] != memory:
            with self._recorder.recording() as graph, writable_state():
                self._work(announced, planned)
            found = self._recordings[announced, planned] = (memory, graph)
        found[1].replay()

    def _work(self, announced: int | None, planned: int | None) -> None:
        comes = None if announced is None else self.places[announced]
        goes = None if planned is None else self.places[planned]
        seat = None if planned is None else self.seats[self.seat_of(planned)]
        self._fused.turn(self._ids, comes, goes, seat)
        self._has_announced |= comes is not None
        if seat is not None:
            self._move(seat)
            self._has_planned = True

    def plan_in(self, seat: int, batch: int, number: int, num_rows: int, looked_at_all: bool) -> Plan:
        """The plan in a seat, of a batch of at most so many rows."""
        it = self.seats[seat]
        return Plan(
            batch=batch,
            number=number,
            distinct=it.distinct,
            slots=it.slots,
            row_slots=it.row_slots,
            move_slots=it.move_slots,
            move_out=it.move_out,
            move_in=it.move_in,
            num_moves=it.num_moves,
            overflow_slots=it.move_slots,  # such a plan has no overflow
            overflow_rows=it.move_in,
            num_overflow=it.num_moves,
            counts=it.counts,
            index_generation=self._planner.index.generation if isinstance(self._planner, Planner) else 0,
            most_moves=num_rows,
            looked_at_all=looked_at_all,
        )
