"""The planning graph: batches of one shape are announced, planned and moved by replaying CUDA graphs.

A CUDA graph is kernels on fixed memory. So every announced batch has a request buffer, which holds its unique rows
until its plan is known to fit, and every planned batch has a plan buffer, which holds its plan until it is released.
One replay announces one batch, plans another and moves the rows of that other batch. A replay is a single launch,
because planning a small batch kernel by kernel would spend most of its time on launches. What differs between
iterations is the buffers to use and the numbers of the batches. The host writes them to a small array in pinned memory,
and the kernels read them there. The counts come back the same way.

Kernels that run beside the training slow it down, and the kernels of a small batch cost almost as much as those of a
large one. So small batches are coalesced. They are announced into one request buffer, and the union of their unique
rows is planned as one batch. Only what training reads is written for each batch by itself, into a plan buffer of its
own. If there are fewer batches than a request buffer has parts, the last batch is repeated, which adds no row.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotrows.cache.planning.buffers import PlanBuffer, PlanBuffers, RequestBuffers
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.kernel_planner import KernelPlanner
from hotrows.cache.planning.protocol import Counts, Plan, Planner
from hotrows.ops.plan import kernel
from hotrows.ops.swap import Moves
from hotrows.ops.unique import UniqueRows
from hotrows.ops.unique.kernel_parts import MAX_PARTS
from hotrows.runtime.capture import GraphCapture
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.host_copy import HostCopy
from hotrows.runtime.streams import Event, writable_state

_serials = itertools.count()
_INPUTS = struct.Struct(f"={kernel.NUM_INPUTS}i")  # one iteration's inputs: NUM_INPUTS int32
_PLANNED = slice(kernel.PLAN_NUMBER.value, kernel.PLAN_BUFFERS.value + 1)
_ANNOUNCED = slice(kernel.ANNOUNCED_NUMBER.value, kernel.ANNOUNCED_BUFFER.value + 1)
NUM_ITERATIONS = 64  # how many iterations ahead of the kernels the host may write inputs
# Plan buffers beside those of the batches planned ahead: for the batch that trains, for the one before it, and for two
# batches whose plans the host has not read back.
SPARE_PLAN_BUFFERS = 4
MAX_LOOKUPS = 1 << 17  # of a batch that is coalesced with others
BATCHES_TO_COALESCE = (4, 2)  # the first of these numbers that is possible is taken


def batches_to_coalesce(planner: Planner, num_lookups: int, depth: int, window: int) -> int:
    """How many batches of this many lookups to announce and plan together.

    One if all rows are on the device. Coalescing would gain nothing then, because one search for the unique rows of
    several batches takes as long as a search for each of them in turn.
    """
    spec = planner.kernel_spec()
    if spec is None or spec.cache is None or not spec.cache.policy.coalesces:
        return 1
    for num in BATCHES_TO_COALESCE:
        has_room = num * num_lookups <= planner.num_slots
        # Batches are planned up to depth + 2 ahead. Two more groups of `num` must fit into the window, so that a group
        # is complete and announced before it is planned.
        is_announced = window >= depth + SPARE_PLAN_BUFFERS - 2 + 2 * num
        if num_lookups <= MAX_LOOKUPS and has_room and is_announced:
            return num
    return 1


class PlanningGraph:
    """Request buffers and plan buffers for batches of one shape, and the graphs that work on them.

    Args:
        columns: which ids of a batch to look up.
        shape, dtype: of the ids of one batch, [B, F], the same for every batch.
        depth, window: those of the loop that looks ahead, as for `hotrows.lookahead`.
        num_rows: rows of the store.
        move: carries out the moves of a plan.
        max_coalesced: how many batches are announced and planned together at most. The kernels take no more than
            MAX_PARTS.
    """

    def __init__(
        self,
        planner: Planner,
        columns: IdColumns,
        shape: torch.Size,
        dtype: torch.dtype,
        depth: int,
        window: int,
        num_rows: int,
        device: torch.device,
        move: Callable[[Moves], None],
        max_coalesced: int = 1,
    ) -> None:
        self.serial = next(_serials)
        self._shape, self._dtype = shape, dtype
        self.depth = depth
        self.window = window
        self._planner = planner
        self._move = move
        self.max_coalesced = min(max_coalesced, MAX_PARTS)
        self.num_lookups = shape[0] * columns.first_row.numel()  # of one batch
        spec = planner.kernel_spec()
        assert spec is not None
        self._next_use = None if spec.cache is None else spec.cache.policy.next_use
        self._is_pinned = device.type == "cuda"
        self._allocate_buffers(device)
        self._capture = GraphCapture(device) if self._is_pinned else None
        host_inputs = self._host_memory(NUM_ITERATIONS, kernel.NUM_INPUTS)
        self._written_inputs = host_inputs.numpy().data.cast("B")
        self._inputs = [0] * kernel.NUM_INPUTS  # of the next iteration
        self._iteration = 0
        self._inputs_read: list[Event | None] = [None] * NUM_ITERATIONS  # when the kernels have read the inputs
        # True from the beginning of an iteration until it is counted. If it fails in between, host and device may count
        # different numbers of iterations, and the graph is of no more use.
        self.is_broken = False
        self._kernel_planner = KernelPlanner(
            spec, columns, shape[0], num_rows, self.request_buffers, self.plan_buffers, host_inputs
        )
        # The captured graphs, and the memory that each was captured with; by (whether it announces, whether it plans).
        self._graphs: dict[tuple[bool, bool], tuple[tuple[int, int], torch.cuda.CUDAGraph]] = {}
        self._compiled: set[tuple[bool, bool]] = set()

    def _allocate_buffers(self, device: torch.device) -> None:
        num_parts = self.max_coalesced
        # Coalesced batches are planned together and released one by one. So up to num_parts - 1 released batches, and
        # as many that were planned early, take up plan buffers beside the others. Caches may coalesce differently, and
        # a training step is captured for every combination of their plan buffers. Combinations are few because every
        # cache's number is a multiple of depth + SPARE_PLAN_BUFFERS.
        self.num_plan_buffers = num_needed = self.depth + SPARE_PLAN_BUFFERS
        while self.num_plan_buffers % num_parts or self.num_plan_buffers < num_needed + 2 * (num_parts - 1):
            self.num_plan_buffers += num_needed
        self._num_plan_groups = self.num_plan_buffers // num_parts  # a group has one plan buffer for each part
        # The number of request buffers is a multiple of the number of these groups, so that a request buffer is always
        # planned into the same plan buffers.
        num_groups = -(-(self.window + 2) // num_parts) + (num_parts > 1)
        self.num_request_buffers = -(-num_groups // self._num_plan_groups) * self._num_plan_groups
        self._next_request_buffer = 0
        ids = torch.zeros(num_parts, *self._shape, dtype=self._dtype, device=device)
        self._all_ids = ids.view(-1, *self._shape[1:])
        self._ids = [HostCopy(each) for each in ids]

        # The kernels report each batch's number of unique rows and its first bad id. Of a union, they report only the
        # number.
        unique_counts = self._host_memory(self.num_request_buffers * num_parts, 2)
        union_counts = self._host_memory(self.num_request_buffers, 2) if num_parts > 1 else unique_counts
        counts = self._host_memory(self.num_plan_buffers, len(Counts._fields))
        self._unique_counts: list[NDArray[np.int32]] = list(unique_counts.numpy())
        self._union_counts: list[NDArray[np.int32]] = list(union_counts.numpy())
        self._counts: list[NDArray[np.int32]] = list(counts.numpy())
        requests = self.request_buffers = RequestBuffers(
            self.num_request_buffers, self.num_lookups, device, unique_counts, num_parts, union_counts
        )
        self.plan_buffers = PlanBuffers(self.num_plan_buffers, self.num_lookups, device, counts)
        self._unique_rows = [
            requests.unique(buffer, part) for buffer in range(self.num_request_buffers) for part in range(num_parts)
        ]
        self._plans = [_plan_arrays(self.plan_buffers[plan_buffer]) for plan_buffer in range(self.num_plan_buffers)]

    def _host_memory(self, *sizes: int) -> Tensor:
        """Memory of the host that the kernels can read and write."""
        return torch.zeros(sizes, dtype=torch.int32, pin_memory=self._is_pinned)

    @property
    def num_bytes(self) -> int:
        """Device memory of the request buffers and plan buffers."""
        tensors = [self._all_ids, *self.request_buffers.tensors, *self.plan_buffers.tensors]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def accepts(self, ids: Tensor, depth: int, window: int) -> bool:
        """True if a loop with this depth and window can announce these ids. With depth 0 it cannot."""
        has_shape = ids.shape == self._shape and ids.dtype == self._dtype
        return has_shape and self.depth >= depth > 0 and self.window >= window and not self.is_broken

    def next_request_buffer(self) -> int:
        """The request buffer for the next batches. The caller checks that no batch is in it."""
        buffer = self._next_request_buffer
        self._next_request_buffer = (buffer + 1) % self.num_request_buffers
        return buffer

    def plan_buffers_of(self, request_buffer: int) -> range:
        """The plan buffers for the batches of a request buffer, in their order."""
        first = request_buffer % self._num_plan_groups * self.max_coalesced
        return range(first, first + self.max_coalesced)

    def has_room(self) -> bool:
        """True if the next-use table takes the next announcement without being rebuilt."""
        return self._next_use is None or self._next_use.has_room(self.max_coalesced * self.num_lookups)

    def rebuild_makes_room(self) -> bool:
        """True if the next-use table, rebuilt without growing, has room for two announcements.

        These are the next one, and one that is not replayed yet.
        """
        return self._next_use is None or self._next_use.rebuild_makes_room(2 * self.max_coalesced * self.num_lookups)

    def unique_rows(self, request_buffer: int, part: int) -> UniqueRows:
        """The unique rows of a batch."""
        return self._unique_rows[request_buffer * self.max_coalesced + part]

    def unique_count(self, request_buffer: int, part: int) -> NDArray[np.int32]:
        """What the kernels report on a batch: its number of unique rows, and the first bad id (see `unique_ids`)."""
        return self._unique_counts[request_buffer * self.max_coalesced + part]

    def union_rows(self, request_buffer: int) -> tuple[Tensor, Tensor]:
        """The unique rows of all batches in a request buffer, and their number [1]."""
        return self.request_buffers.union_rows(request_buffer)

    def union_count(self, request_buffer: int) -> NDArray[np.int32]:
        """Two numbers for a request buffer: that of unique rows in all its batches, and one that is not to be used."""
        return self._union_counts[request_buffer]

    def counts(self, plan_buffer: int) -> NDArray[np.int32]:
        """The fields of `Counts` of a plan."""
        return self._counts[plan_buffer]

    def plan_in(
        self, plan_buffer: int, plan_number: int, batch_number: int | None, num_rows: int, scanned_all: bool
    ) -> Plan:
        """The plan in a plan buffer.

        Args:
            num_rows: upper bound on the rows that the plan moves.
            scanned_all: the second value that `prepare_plan` returned.
        """
        generation = self._planner.index_generation
        return Plan(plan_number, batch_number, generation, num_rows, scanned_all, *self._plans[plan_buffer])

    def prepare_announcement(self, ids: Sequence[Tensor], request_buffer: int, batch_number: int) -> None:
        """Prepare `run` to announce the batches of a request buffer.

        Args:
            ids: of each batch. The caller keeps them alive until the iteration is done.
        """
        if self._next_use is not None:
            self._next_use.expect(batch_number, self.max_coalesced * self.num_lookups)
        self._inputs[_ANNOUNCED] = batch_number, request_buffer
        for i, each in enumerate(self._ids):
            each.copy(ids[min(i, len(ids) - 1)])

    def prepare_plan(
        self,
        request_buffer: int,
        oldest: int | None,
        batch_number: int,
        num_rows: int,
        scan_all: bool,
        num_batches: int = 1,
    ) -> tuple[int, bool]:
        """Prepare `run` to plan the batches of a request buffer.

        Their plans have consecutive numbers. Every slot that one of these plans uses counts as last used by the last of
        them.

        Args:
            oldest, batch_number, scan_all: as for `Planner.plan`.
            num_rows: upper bound on the unique rows of the union.
            num_batches: how many different batches the request buffer holds. Further parts repeat the last one.

        Returns:
            The last of the plan numbers, and whether victims are searched among all slots.
        """
        planner = self._planner
        start, length = planner.begin_plans(num_batches, num_rows, scan_all)
        last = planner.plan_number
        group = request_buffer % self._num_plan_groups
        first_in_flight = last if oldest is None else oldest
        self._inputs[_PLANNED] = last, first_in_flight, batch_number, start, length, request_buffer, group
        return last, planner.holds_all_rows or length == planner.num_slots

    def run(self, announces: bool, plans: bool, records_address: int) -> None:
        """Announce batches, then plan other batches and carry out their moves, as was prepared.

        A graph is captured again if the next-use table or the records have moved to other memory since its capture. The
        caller calls `submitted` next.
        """
        position = self._iteration % NUM_ITERATIONS
        read = self._inputs_read[position]
        if read is not None:
            read.synchronize()  # the kernels have long read the inputs there
        _INPUTS.pack_into(self._written_inputs, position * _INPUTS.size, *self._inputs)
        kind = announces, plans
        self.is_broken = True
        if self._capture is None or kind not in self._compiled:
            # After a Ctrl-C between plan and moves, slots would not have the rows that the index says. Compiling the
            # kernels makes the time between the two long.
            with defer_sigint(), writable_state():
                self._launch(announces, plans)
            self._compiled.add(kind)
        else:
            memory = (0 if self._next_use is None else self._next_use.generation, records_address)
            captured = self._graphs.get(kind)
            if captured is None or captured[0] != memory:
                with self._capture.capture() as graph, writable_state():
                    self._launch(announces, plans)
                captured = self._graphs[kind] = (memory, graph)
            captured[1].replay()

    def _launch(self, announces: bool, plans: bool) -> None:
        self._kernel_planner.run(self._all_ids, announces, plans)
        if plans and self._kernel_planner.moves is not None:
            self._move(self._kernel_planner.moves)

    def submitted(self, event: Event) -> None:
        """An iteration was queued, and is done at this event."""
        self._inputs_read[self._iteration % NUM_ITERATIONS] = event
        self._iteration += 1
        self.is_broken = False


def _plan_arrays(buffer: PlanBuffer) -> tuple[Any, ...]:
    """The fields of a plan from `unique` on, in their order. It has no moves, because the graph carries them out."""
    rows, num, *_ = buffer.unique
    no_slots, no_rows = buffer.row_slots[:0], rows[:0]
    moves, overflow = (no_slots, no_rows, no_rows, num[:0]), (no_slots, no_rows, num[:0])
    return buffer.unique, buffer.slots, buffer.row_slots, *moves, *overflow, buffer.counts
