"""The planner's work in a few kernels, for batches of one shape: nothing in it is decided by the host.

It reads and writes the state of `Planner` (slots, index, policy), so that the two can take turns, and computes what
`Planner.announce` and `Planner.plan` with ALL_OR_NOTHING compute.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from hotrows.cache.id_columns import IdColumns
from hotrows.cache.indexes.direct import DirectIndex
from hotrows.cache.indexes.hashed import HashIndex
from hotrows.cache.planner import Planner
from hotrows.cache.policies import LFU, LRU, Lookahead, Policy
from hotrows.cache.policies.lookahead import EXACTLY_SEEN, STEPS_BELOW
from hotrows.cache.policies.ranking import MOST_FREQUENT
from hotrows.cache.resident import ResidentPlanner
from hotrows.ops.distinct import Distinct
from hotrows.ops.distinct.kernel import column_order, distinct_ids, empty
from hotrows.ops.plan import kernel
from hotrows.ops.rows import LOOKUPS_PER_BLOCK
from hotrows.ops.select import MOST_SEEN, NEEDED
from hotrows.ops.select.kernel import NUM_COUNTS, select_into

KINDS: dict[type[Policy], str] = {Lookahead: "lookahead", LRU: "lru", LFU: "lfu"}


def reason_against(planner: Planner | ResidentPlanner) -> str | None:
    """Why the planner's work has no kernels, None if it has."""
    if isinstance(planner, ResidentPlanner):
        return None
    if type(planner.policy) not in KINDS:
        return f"policy {type(planner.policy).__name__} has no kernels (these have: {', '.join(KINDS.values())})"
    if not isinstance(planner.index, HashIndex | DirectIndex):
        return f"index {type(planner.index).__name__} has no kernels (hash and direct have)"
    return None


class OnHost(NamedTuple):
    """What the host writes for a batch and reads of it."""

    announced_with: Tensor
    planned_with: Tensor
    told: Tensor


class Place:
    """Where a batch waits from when it is announced until it is planned.

    Args:
        announced_with, planned_with: numbers of the batch, written by the host. told: its answer, read by the host:
            distinct rows, and what is bad. All int32 and on the host, where the kernels read and write them.
    """

    def __init__(
        self, num_lookups: int, device: torch.device, announced_with: Tensor, planned_with: Tensor, told: Tensor
    ) -> None:
        rows, _, *others = empty(num_lookups, device)
        self.told = torch.zeros(2, dtype=torch.int32, device=device)  # distinct rows; what is bad
        self.bad = self.told[1:]
        self.distinct = Distinct(rows, self.told[:1], *others)
        self.announced_with = torch.zeros(kernel.NUM_NUMBERS, dtype=torch.int32, device=device)
        self.planned_with = torch.zeros(kernel.NUM_NUMBERS, dtype=torch.int32, device=device)
        self.on_host = OnHost(announced_with, planned_with, told)


class Seat:
    """Where the plan of a batch is from when it is made until the batch has trained.

    Args:
        counts: int32, the fields of `Counts`, on the host, where a kernel writes them.
    """

    def __init__(self, num_lookups: int, device: torch.device, counts: Tensor) -> None:
        rows, num, *others = empty(num_lookups, device)
        self.distinct = Distinct(rows, num, *others)
        self.slots, self.row_slots, self.move_slots = (torch.zeros_like(others[0]) for _ in range(3))
        self.move_out, self.move_in = torch.zeros_like(rows), torch.zeros_like(rows)
        self.num_moves = torch.zeros_like(num)
        self.counts = counts


class FusedPlanner:
    """Announces and plans batches of `num_samples` samples.

    Args:
        part: which ids of a batch to look up.
    """

    def __init__(self, planner: Planner | ResidentPlanner, part: IdColumns, num_samples: int, num_rows: int) -> None:
        self._planner = planner
        self._part = part
        self.num_lookups = num_samples * part.first_row.numel()
        self._key_dtype = torch.int32 if num_rows < torch.iinfo(torch.int32).max else torch.int64
        self._column_order = column_order(part.first_row, part.num_rows, num_samples)
        device = part.first_row.device
        blocks = triton.cdiv(self.num_lookups, kernel.BLOCK)
        self._grid = (min(blocks, kernel.MOST_PROGRAMS),)
        if isinstance(planner, Planner):
            # of one plan at a time
            self._found = torch.empty(self.num_lookups, dtype=torch.int32, device=device)
            self._chosen = torch.empty(min(self.num_lookups, planner.slots.num), dtype=torch.int32, device=device)
            self._misses = torch.empty(blocks, dtype=torch.int32, device=device)
            self._zeroed = torch.zeros(kernel.NUM_SUMS + NUM_COUNTS, dtype=torch.int32, device=device)

    def turn(self, ids: Tensor | None, announced: Place | None, planned: Place | None, seat: Seat | None) -> None:
        """Announce a batch of these ids in one place, and plan that of another, all or nothing, in a seat.

        Either may be missing. To announce is to find the distinct rows, and to tell the policy that they will be
        needed; what it is told counts for the plan already.
        """
        self._begin(announced, planned)
        if announced is not None:
            assert ids is not None
            self._find_distinct(ids, announced)
        planner = self._planner
        sums = evictable = None
        if isinstance(planner, Planner):
            sums, evictable = self._zeroed[: kernel.NUM_SUMS], self._zeroed[kernel.NUM_SUMS :]
            self._announce_and_look_up(planner, announced, planned, sums)
        if planned is not None:
            assert seat is not None
            if isinstance(planner, Planner) and sums is not None and evictable is not None:
                self._place(planner, planned, seat, sums, evictable)
            self._spread(planned, seat, sums, evictable)

    def _begin(self, announced: Place | None, planned: Place | None) -> None:
        """Fetch the numbers of the batches to be announced and planned."""
        placing = planned is not None and isinstance(self._planner, Planner)
        kernel.begin[(1,)](
            None if announced is None else announced.on_host.announced_with,
            None if announced is None else announced.announced_with,
            None if announced is None else announced.told,
            None if planned is None else planned.on_host.planned_with,
            None if planned is None else planned.planned_with,
            self._zeroed if placing else None,
            self._zeroed.numel() if placing else 0,
            NUMBERS=kernel.NUM_NUMBERS, BLOCK=triton.next_power_of_2(kernel.NUM_SUMS + NUM_COUNTS),
        )  # fmt: skip

    def _find_distinct(self, ids: Tensor, place: Place) -> None:
        part = self._part
        distinct_ids(
            ids, part.columns, part.first_row, part.num_rows, self._column_order, self._key_dtype, place.bad,
            place.on_host.told, tuple(place.distinct),
        )  # fmt: skip

    def _announce_and_look_up(
        self, planner: Planner, announced: Place | None, planned: Place | None, sums: Tensor
    ) -> None:
        policy, slots = planner.policy, planner.slots
        slot_of, keys, _, num_cells = _index_arrays(planner)
        coming: tuple[Tensor | int | None, ...] = (None,) * 5 + (1, None)
        if announced is not None and isinstance(policy, Lookahead):
            told = announced.distinct
            coming = (told.rows, told.num, announced.announced_with, *policy.upcoming.arrays(), slots.priority)
        going: tuple[Tensor | None, ...] = (None,) * 7
        if planned is not None:
            told, numbers = planned.distinct, planned.planned_with
            going = (told.rows, told.num, numbers, slots.last_used, self._found, self._misses, sums)
        roles = (coming[0] is not None) + (going[0] is not None)
        if roles:
            kernel.announce_and_look_up[(*self._grid, roles)](
                slot_of, keys, num_cells, *coming, *going,
                DIRECT=keys is None, NEEDED=NEEDED, BLOCK=kernel.BLOCK, num_warps=kernel.NUM_WARPS,
            )  # fmt: skip

    def _spread(self, place: Place, seat: Seat, sums: Tensor | None, evictable: Tensor | None) -> None:
        told, given = place.distinct, seat.distinct
        kernel.spread[(triton.cdiv(self.num_lookups + 1, kernel.SPREAD),)](
            told.rows, told.num, told.inverse, told.order, told.starts, told.block_rows, seat.row_slots, sums,
            evictable, seat.slots, given.rows, given.num, given.inverse, given.order, given.starts, given.block_rows,
            seat.num_moves, seat.counts, self.num_lookups,
            RESIDENT=sums is None, PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, BLOCK=kernel.SPREAD,
            num_warps=kernel.SPREAD_WARPS,
        )  # fmt: skip

    def _place(self, planner: Planner, place: Place, seat: Seat, sums: Tensor, evictable: Tensor) -> None:
        slots, policy, told, numbers = planner.slots, planner.policy, place.distinct, place.planned_with
        slot_of, keys, cell_of, num_cells = _index_arrays(planner)
        direct = keys is None
        end = slots.num
        in_one_pass = isinstance(policy, Lookahead) and policy.place_of is None
        select_into(
            slots.priority[:end], numbers[kernel.NUMBER.value :][:1] if in_one_pass else None, slots.last_used[:end],
            slots.pinned, numbers[kernel.OLDEST.value :][:1], sums[:1], evictable, self._chosen,
            numbers[kernel.SCAN.value :][:2] if policy.by_parts else None,
        )  # fmt: skip
        seen = place_of = up_keys = up_uses = None
        num_up_cells = 1
        if isinstance(policy, Lookahead):
            up_keys, up_uses, num_up_cells = policy.upcoming.arrays()
            seen, place_of = policy.seen, policy.place_of
        kernel.place[self._grid](
            told.rows, told.starts, told.num, numbers, self._found, self._misses, sums, evictable, self._chosen,
            slots.row, slots.last_used, slots.priority, seen, place_of,
            slot_of, keys, cell_of, num_cells, up_keys, up_uses, num_up_cells,
            seat.row_slots, seat.move_slots, seat.move_out, seat.move_in,
            DIRECT=direct, POLICY=KINDS[type(policy)], NEEDED=NEEDED, MOST_FREQUENT=MOST_FREQUENT,
            EXACTLY_SEEN=EXACTLY_SEEN, STEPS_BELOW=STEPS_BELOW, MOST_SEEN=MOST_SEEN,
            BLOCK=kernel.BLOCK, AT_ONCE=kernel.AT_ONCE, num_warps=kernel.NUM_WARPS,
        )  # fmt: skip


def _index_arrays(planner: Planner) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
    index = planner.index
    if isinstance(index, DirectIndex):
        return index.slot_of, None, None, 1
    assert isinstance(index, HashIndex)
    return index.slot_at, index.keys, index.cell_of, index.num_cells
