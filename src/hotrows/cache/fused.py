"""The planner's work in a few kernels, for batches of one shape: nothing in it is decided by the host.

It reads and writes the state of `Planner` (slots, index, policy), so that the two can take turns, and computes what
`Planner.announce` and `Planner.plan` with ALL_OR_NOTHING compute.
"""

import torch
import triton
from torch import Tensor

from hotrows.cache.id_columns import IdColumns
from hotrows.cache.indexes.direct import DirectIndex
from hotrows.cache.indexes.hashed import HashIndex
from hotrows.cache.planner import Counts, Planner
from hotrows.cache.policies import LFU, LRU, Lookahead, Policy
from hotrows.cache.policies.lookahead import NEEDED
from hotrows.cache.policies.ranking import MOST_FREQUENT
from hotrows.cache.resident import ResidentPlanner
from hotrows.ops.distinct import Distinct
from hotrows.ops.distinct.kernel import distinct_ids, empty
from hotrows.ops.plan import kernel
from hotrows.ops.rows import LOOKUPS_PER_BLOCK
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


class Place:
    """Where a batch waits from when it is announced until it is planned."""

    def __init__(self, num_lookups: int, device: torch.device) -> None:
        rows, _, *others = empty(num_lookups, device)
        self.told = torch.zeros(2, dtype=torch.int32, device=device)  # distinct rows; what is bad
        self.bad = self.told[1:]
        self.distinct = Distinct(rows, self.told[:1], *others)
        self.announced_with = torch.zeros(kernel.NUM_NUMBERS, dtype=torch.int32, device=device)
        self.planned_with = torch.zeros(kernel.NUM_NUMBERS, dtype=torch.int32, device=device)


class Seat:
    """Where the plan of a batch is from when it is made until the batch has trained."""

    def __init__(self, num_lookups: int, device: torch.device) -> None:
        rows, num, *others = empty(num_lookups, device)
        self.distinct = Distinct(rows, num, *others)
        self.slots, self.row_slots, self.move_slots = (torch.zeros_like(others[0]) for _ in range(3))
        self.move_out, self.move_in = torch.zeros_like(rows), torch.zeros_like(rows)
        self.num_moves = torch.zeros_like(num)
        self.counts = torch.zeros(len(Counts._fields), dtype=torch.int32, device=device)


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
        device = part.first_row.device
        blocks = triton.cdiv(self.num_lookups, kernel.BLOCK)
        self._grid = (min(blocks, kernel.MOST_PROGRAMS),)
        if isinstance(planner, Planner):
            # of one plan at a time
            self._found = torch.empty(self.num_lookups, dtype=torch.int32, device=device)
            self._chosen = torch.empty(min(self.num_lookups, planner.slots.num), dtype=torch.int32, device=device)
            self._misses = torch.empty(blocks, dtype=torch.int32, device=device)
            self._zeroed = torch.zeros(kernel.NUM_SUMS + NUM_COUNTS, dtype=torch.int32, device=device)

    def announce(self, ids: Tensor, place: Place) -> None:
        """Find the distinct rows of ids, and tell the policy that they will be needed."""
        place.told.zero_()
        part = self._part
        distinct_ids(
            ids, part.columns, part.first_row, part.num_rows, self._key_dtype, place.bad, tuple(place.distinct)
        )
        planner = self._planner
        if isinstance(planner, Planner) and isinstance(planner.policy, Lookahead):
            slot_of, keys, _, num_cells = _index_arrays(planner)
            up_keys, up_uses, num_up_cells = planner.policy.upcoming.arrays()
            kernel.announce[self._grid](
                place.distinct.rows, place.distinct.num, place.announced_with, slot_of, keys, num_cells, up_keys,
                up_uses, num_up_cells, planner.slots.priority,
                DIRECT=keys is None, NEEDED=NEEDED, BLOCK=kernel.BLOCK, num_warps=kernel.NUM_WARPS,
            )  # fmt: skip

    def plan(self, place: Place, seat: Seat) -> None:
        """Plan an announced batch, all or nothing."""
        sums = evictable = None
        if isinstance(self._planner, Planner):
            sums, evictable = self._zeroed[: kernel.NUM_SUMS], self._zeroed[kernel.NUM_SUMS :]
            self._place(self._planner, place, seat, sums, evictable)
        told, given = place.distinct, seat.distinct
        kernel.spread[(triton.cdiv(self.num_lookups + 1, kernel.SPREAD),)](
            told.rows, told.num, told.inverse, told.order, told.starts, told.block_rows, seat.row_slots, sums,
            evictable, seat.slots, given.rows, given.num, given.inverse, given.order, given.starts, given.block_rows,
            seat.num_moves, seat.counts, self.num_lookups,
            RESIDENT=sums is None, PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, BLOCK=kernel.SPREAD,
        )  # fmt: skip

    def _place(self, planner: Planner, place: Place, seat: Seat, sums: Tensor, evictable: Tensor) -> None:
        self._zeroed.zero_()
        slots, policy, told, numbers = planner.slots, planner.policy, place.distinct, place.planned_with
        slot_of, keys, cell_of, num_cells = _index_arrays(planner)
        direct = keys is None
        kernel.look_up[self._grid](
            told.rows, told.num, numbers, slot_of, keys, num_cells, slots.last_used, self._found, self._misses, sums,
            DIRECT=direct, BLOCK=kernel.BLOCK, num_warps=kernel.NUM_WARPS,
        )  # fmt: skip
        end = slots.num
        select_into(
            slots.priority[:end], slots.last_used[:end], slots.pinned, numbers[1:2], sums[:1], evictable, self._chosen
        )
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
            BLOCK=kernel.BLOCK, AT_ONCE=kernel.AT_ONCE, num_warps=kernel.NUM_WARPS,
        )  # fmt: skip


def _index_arrays(planner: Planner) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
    index = planner.index
    if isinstance(index, DirectIndex):
        return index.slot_of, None, None, 1
    assert isinstance(index, HashIndex)
    return index.slot_at, index.keys, index.cell_of, index.num_cells
