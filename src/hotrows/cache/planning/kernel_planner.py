"""The kernel planner: what the eager planner computes, in a few kernels for batches of one shape.

The host takes no decision while they run. The kernels read and write the same slots, index and policy as the eager
planner, so plans of both kinds may follow each other in any order. They compute what `Planner.announce`, and
`Planner.plan` with ATOMIC placement, compute.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from hotrows.cache.planning.buffers import PlanBuffers, RequestBuffers
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.protocol import CacheKernelSpec, Counts, KernelSpec
from hotrows.cache.policies.lookahead import EXACTLY_SEEN, STEPS_BELOW
from hotrows.cache.policies.ranking import MAX_FREQUENCY
from hotrows.ops.plan import kernel
from hotrows.ops.plan.kernel_sets import CHOOSE_WARPS, WAYS, choose_ways
from hotrows.ops.rows import LOOKUPS_PER_BLOCK
from hotrows.ops.select_victims import MAX_SEEN, NEEDED
from hotrows.ops.select_victims.kernel import NUM_COUNTS, select_victims_into
from hotrows.ops.swap import Moves
from hotrows.ops.unique.kernel import column_order, unique_ids


class KernelPlanner:
    """Announces and plans batches of `num_samples` samples, as many at a time as a request buffer has parts.

    Args:
        spec: what the kernels need of the planner.
        columns: which ids of a batch to look up.
        num_rows: rows of all tables together.
        host_inputs: int32 [iterations, NUM_INPUTS] in host memory, a ring buffer into which the host writes the inputs
            of each iteration.

    Attributes:
        moves: the moves of the last plan; None if all rows are on the device (slot i holds row i).
    """

    def __init__(
        self,
        spec: KernelSpec,
        columns: IdColumns,
        num_samples: int,
        num_rows: int,
        request_buffers: RequestBuffers,
        plan_buffers: PlanBuffers,
        host_inputs: Tensor,
    ) -> None:
        self._cache = spec.cache
        self._columns = columns
        self._request_buffers, self._plan_buffers, self._host_inputs = request_buffers, plan_buffers, host_inputs
        self._lookups_of_batch = num_samples * columns.first_row.numel()
        self.num_lookups = self._lookups_of_batch * request_buffers.parts
        self._key_dtype = torch.int32 if num_rows < torch.iinfo(torch.int32).max else torch.int64
        self._column_order = column_order(columns.first_row, columns.num_rows, num_samples)
        device = columns.first_row.device
        num_blocks = triton.cdiv(self.num_lookups, kernel.BLOCK)
        self._grid = (min(num_blocks, kernel.MAX_PROGRAMS),)
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)
        self._inputs = torch.zeros(kernel.NUM_INPUTS, dtype=torch.int32, device=device)
        self.moves: Moves | None = None
        if self._cache is not None:
            self._allocate(self._cache, num_blocks, device)

    def _allocate(self, cache: CacheKernelSpec, num_blocks: int, device: torch.device) -> None:
        """Allocate what placing rows in slots needs. It is shared by all plans, one after the other."""
        num, num_slots = self.num_lookups, cache.slots.num
        self._found = torch.empty(num, dtype=torch.int32, device=device)
        self._misses = torch.empty(num_blocks, dtype=torch.int32, device=device)
        self._zeroed = torch.zeros(kernel.NUM_SUMS + NUM_COUNTS, dtype=torch.int32, device=device)
        self._set_counts: Tensor | None = None
        self._set_members: Tensor | None = None
        num_chosen = min(num, num_slots)
        if cache.index.kind == "set-associative":
            num_sets, num_chosen = cache.index.num_cells, num
            self._set_counts = torch.zeros(num_sets, dtype=torch.int64, device=device)
            self._set_members = torch.empty(num_sets, WAYS.value, dtype=torch.int32, device=device)
        self._chosen = torch.empty(num_chosen, dtype=torch.int32, device=device)
        self._row_slots = self._plan_buffers.row_slots  # a plan of one batch is made in its plan buffer
        if self._request_buffers.parts > 1:
            self._row_slots = torch.zeros(1, num, dtype=torch.int32, device=device)
        rows = torch.zeros(2, num, dtype=torch.int64, device=device)
        self.moves = Moves(torch.zeros_like(self._found), rows[0], rows[1], self._inputs.new_zeros(1))

    def run(self, ids: Tensor | None, announces: bool, plans: bool) -> None:
        """Announce the batches with these ids, and plan other batches, in the buffers that the host's inputs name.

        To announce batches is to find their unique rows and to tell the policy that they will be needed. The plan takes
        an announcement of the same run into account.
        """
        cache = self._cache
        self._begin(announces, places_rows=plans and cache is not None)
        if announces:
            assert ids is not None
            self._find_unique(ids)
        sums = evictable = None
        if cache is not None:
            sums, evictable = self._zeroed[: kernel.NUM_SUMS], self._zeroed[kernel.NUM_SUMS :]
            self._announce_and_look_up(cache, announces and cache.policy.next_use is not None, plans, sums)
            if plans:
                self._choose_victims(cache, sums, evictable)
                self._place(cache, sums, evictable)
        if plans:
            self._spread(sums, evictable)

    def _begin(self, announces: bool, places_rows: bool) -> None:
        """Fetch the inputs of this iteration."""
        requests = self._request_buffers
        kernel.begin[(1,)](
            self._host_inputs, self._iteration, len(self._host_inputs), self._inputs, requests.counts_on_device,
            None if requests.union is None else requests.union.counts_on_device,
            self._zeroed if places_rows else None, self._zeroed.numel() if places_rows else 0,
            ANNOUNCES=announces, PARTS=requests.parts, NUM_INPUTS=kernel.NUM_INPUTS,
            BLOCK=triton.next_power_of_2(kernel.NUM_SUMS + NUM_COUNTS), num_warps=1,
        )  # fmt: skip

    def _input(self, which: Any) -> Tensor:
        """The array of inputs, from this input on."""
        return self._inputs[which.value :]

    def _find_unique(self, ids: Tensor) -> None:
        columns, requests = self._columns, self._request_buffers
        unique_ids(
            ids, columns.columns, columns.first_row, columns.num_rows, self._column_order, self._key_dtype,
            requests.counts_on_device, requests.counts_on_host, self._input(kernel.ANNOUNCED_BUFFER), requests.arrays,
            requests.union,
        )  # fmt: skip

    def _announce_and_look_up(self, cache: CacheKernelSpec, announces: bool, plans: bool, sums: Tensor) -> None:
        if not announces and not plans:
            return
        slots, index = cache.slots, cache.index
        rows, _, counts_on_device = self._request_buffers.planned_arrays
        kernel.announce_and_look_up[(*self._grid, announces + plans)](
            rows, counts_on_device, rows.stride(0), self._inputs, index.slot_of, index.keys, slots.row, index.num_cells,
            self._set_counts, self._set_members, *_next_use_arrays(cache),
            slots.priority, slots.last_used, self._found, self._misses, sums,
            ANNOUNCES=announces, PLANS=plans, INDEX=index.kind, NEEDED=NEEDED, BLOCK=kernel.BLOCK,
            num_warps=kernel.NUM_WARPS,
        )  # fmt: skip

    def _choose_victims(self, cache: CacheKernelSpec, sums: Tensor, evictable: Tensor) -> None:
        slots, index, policy = cache.slots, cache.index, cache.policy
        if index.kind == "set-associative":
            rows, _, counts_on_device = self._request_buffers.planned_arrays
            choose_ways[self._grid](
                rows, counts_on_device, rows.stride(0), self._input(kernel.REQUEST_BUFFER),
                self._input(kernel.PLAN_NUMBER), self._input(kernel.OLDEST), self._found, self._set_counts,
                self._set_members, index.num_cells, slots.priority, slots.last_used, slots.pinned.view(torch.uint8),
                self._chosen, sums[kernel.UNPLACED.value :], BLOCK=kernel.BLOCK, num_warps=CHOOSE_WARPS,
            )  # fmt: skip
            return
        end = slots.num
        select_victims_into(
            slots.priority[:end], self._input(kernel.BATCH_NUMBER) if policy.one_byte else None, slots.last_used[:end],
            slots.pinned, self._input(kernel.OLDEST), sums[kernel.MISSES.value :], evictable, self._chosen,
            self._input(kernel.SCAN) if policy.scans_ranges else None,
        )  # fmt: skip

    def _place(self, cache: CacheKernelSpec, sums: Tensor, evictable: Tensor) -> None:
        slots, index, policy, row_slots = cache.slots, cache.index, cache.policy, self._row_slots
        rows, starts, counts_on_device = self._request_buffers.planned_arrays
        assert self.moves is not None
        kernel.place[self._grid](
            rows, starts, counts_on_device, rows.stride(0), self._inputs, self._found, self._misses, sums, evictable,
            self._chosen, slots.row, slots.last_used, slots.priority, policy.seen, policy.rank_of_row,
            index.slot_of, index.keys, index.cell_of, index.num_cells, *_next_use_arrays(cache),
            row_slots, row_slots.stride(0) if self._request_buffers.parts == 1 else 0, *self.moves[:3],
            INDEX=index.kind, POLICY=policy.kind, NEEDED=NEEDED, MAX_FREQUENCY=MAX_FREQUENCY,
            EXACTLY_SEEN=EXACTLY_SEEN, STEPS_BELOW=STEPS_BELOW, MAX_SEEN=MAX_SEEN,
            BLOCK=kernel.BLOCK, CHUNK=kernel.CHUNK, num_warps=kernel.NUM_WARPS,
        )  # fmt: skip

    def _spread(self, sums: Tensor | None, evictable: Tensor | None) -> None:
        requests, plans, moves, cache = self._request_buffers, self._plan_buffers, self.moves, self._cache
        rows, inverse, order, starts, block_rows = requests.arrays
        rows_to, inverse_to, order_to, starts_to, block_rows_to = plans.arrays
        kernel.spread[(triton.cdiv(self._lookups_of_batch + 1, kernel.SPREAD), requests.parts)](
            rows, requests.counts_on_device, inverse, order, starts, block_rows,
            None if moves is None else self._row_slots, None if requests.union is None else requests.union.in_union,
            sums, evictable, self._inputs,
            plans.slots, plans.row_slots, rows_to, plans.num, inverse_to, order_to, starts_to, block_rows_to,
            None if moves is None else moves.num, plans.counts, self._lookups_of_batch, rows.stride(0),
            block_rows.stride(0), INDEX="direct" if cache is None else cache.index.kind,
            NUM_COUNTS=len(Counts._fields), PARTS=requests.parts, PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, BLOCK=kernel.SPREAD,
            num_warps=kernel.SPREAD_WARPS,
        )  # fmt: skip


def _next_use_arrays(cache: CacheKernelSpec) -> tuple[Tensor | None, Tensor | None, int]:
    next_use = cache.policy.next_use
    return (None, None, 1) if next_use is None else next_use.arrays()
