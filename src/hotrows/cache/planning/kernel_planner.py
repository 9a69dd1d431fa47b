"""The planner's work in a few kernels, for batches of one shape: nothing in it is decided by the host.

It reads and writes the state of `Planner` (slots, index, policy), so that the two can take turns, and computes what
`Planner.announce` and `Planner.plan` with ALL_OR_NOTHING compute.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from hotrows.cache.indexes.direct import DirectIndex
from hotrows.cache.indexes.hashed import HashIndex
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.planner import Counts, EagerPlanner
from hotrows.cache.policies import LFU, LRU, Lookahead, Policy
from hotrows.cache.policies.lookahead import EXACTLY_SEEN, STEPS_BELOW
from hotrows.cache.policies.ranking import MOST_FREQUENT
from hotrows.ops.plan import kernel
from hotrows.ops.rows import LOOKUPS_PER_BLOCK
from hotrows.ops.select_victims import MOST_SEEN, NEEDED
from hotrows.ops.select_victims.kernel import NUM_COUNTS, select_victims_into
from hotrows.ops.swap import Moves
from hotrows.ops.unique import UniqueRows
from hotrows.ops.unique.kernel import column_order, several, several_together, unique_ids
from hotrows.ops.unique.kernel_parts import CoalescedRows

KINDS: dict[type[Policy], str] = {Lookahead: "lookahead", LRU: "lru", LFU: "lfu"}


def reason_against(planner: EagerPlanner | IdentityPlanner) -> str | None:
    """Why the planner's work has no kernels, None if it has."""
    if isinstance(planner, IdentityPlanner):
        return None
    if type(planner.policy) not in KINDS:
        return f"policy {type(planner.policy).__name__} has no kernels (these have: {', '.join(KINDS.values())})"
    if not isinstance(planner.index, HashIndex | DirectIndex):
        return f"index {type(planner.index).__name__} has no kernels (hash and direct have)"
    return None


class RequestBuffers:
    """Where batches wait from when they are announced until they are planned; a row of each array for each batch.

    Batches that are announced together, a party, are the parts of one place. What is known of all parts together is in
    `together`, None where a place has one part.

    Args:
        num: places. parts: of each.
        told: int32 [num · parts, 2], on the host, where the kernels write of each batch: distinct rows, what is bad.
        told_together: int32 [num, 2], the same of the parties.
    """

    def __init__(
        self,
        num: int,
        num_lookups: int,
        device: torch.device,
        told: Tensor,
        parts: int = 1,
        told_together: Tensor | None = None,
    ) -> None:
        self._num_lookups = num_lookups
        self.parts = parts
        self.arrays = several(num * parts, num_lookups, device)
        self.noted = torch.zeros(num * parts, 2, dtype=torch.int32, device=device)  # the same as told, on the device
        self.told = told
        self.coalesced: CoalescedRows | None = None
        if parts > 1:
            assert told_together is not None
            self.coalesced = several_together(num, parts, num_lookups, device, told_together)

    def unique(self, place: int, part: int = 0) -> UniqueRows:
        """Of a batch that waits there."""
        return _distinct(self.arrays, self.noted, place * self.parts + part, self._num_lookups)

    def rows_together(self, place: int) -> tuple[Tensor, Tensor]:
        """The distinct rows of all batches that wait there, and their number [1]."""
        rows, _, noted = self.to_plan
        return rows[place, : self.parts * self._num_lookups], noted[place, :1]

    @property
    def to_plan(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is planned, for each place: rows, starts, and their number first in [num, 2]."""
        if self.coalesced is None:
            return self.arrays[0], self.arrays[3], self.noted
        return self.coalesced[:3]

    @property
    def tensors(self) -> list[Tensor]:
        coalesced = self.coalesced
        others = [] if coalesced is None else [coalesced.rows, coalesced.starts, coalesced.noted, coalesced.of_part]
        return [*self.arrays, self.noted, *others]


class PlanBuffer(NamedTuple):
    """The plan of a batch, where training reads it."""

    unique: UniqueRows
    slots: Tensor
    row_slots: Tensor
    counts: Tensor


class PlanBuffers:
    """Where plans are from when they are made until their batches have trained; a row of each array for each seat.

    Args:
        counts: int32 [num, fields of `Counts`], on the host, where a kernel writes them.
    """

    def __init__(self, num: int, num_lookups: int, device: torch.device, counts: Tensor) -> None:
        self._num_lookups = num_lookups
        self.arrays = several(num, num_lookups, device)
        self.num = torch.zeros(num, kernel.ALIGNED.value, dtype=torch.int32, device=device)
        self.slots, self.row_slots = (torch.zeros_like(self.arrays[1]) for _ in range(2))
        self.counts = counts

    def __getitem__(self, seat: int) -> PlanBuffer:
        num = self._num_lookups
        return PlanBuffer(
            unique=_distinct(self.arrays, self.num, seat, num),
            slots=self.slots[seat, :num],
            row_slots=self.row_slots[seat, :num],
            counts=self.counts[seat],
        )

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.arrays, self.num, self.slots, self.row_slots]


def _distinct(arrays: tuple[Tensor, ...], num: Tensor, which: int, num_lookups: int) -> UniqueRows:
    rows, inverse, order, starts, block_rows = (array[which] for array in arrays)
    blocks = triton.cdiv(num_lookups, LOOKUPS_PER_BLOCK)
    lookups = slice(num_lookups)
    return UniqueRows(
        rows[lookups], num[which, :1], inverse[lookups], order[lookups], starts[: num_lookups + 1], block_rows[:blocks]
    )


class KernelPlanner:
    """Announces and plans batches of `num_samples` samples, as many together as a place has parts.

    Args:
        part: which ids of a batch to look up.
        on_host: int32 [turns, NUM_NUMBERS], on the host, which writes the numbers of one turn after the other there.
    """

    def __init__(
        self,
        planner: EagerPlanner | IdentityPlanner,
        part: IdColumns,
        num_samples: int,
        num_rows: int,
        places: RequestBuffers,
        seats: PlanBuffers,
        on_host: Tensor,
    ) -> None:
        self._planner = planner
        self._part = part
        self._places, self._seats, self._on_host = places, seats, on_host
        self._lookups_each = num_samples * part.first_row.numel()
        self.num_lookups = self._lookups_each * places.parts
        self._key_dtype = torch.int32 if num_rows < torch.iinfo(torch.int32).max else torch.int64
        self._column_order = column_order(part.first_row, part.num_rows, num_samples)
        device = part.first_row.device
        blocks = triton.cdiv(self.num_lookups, kernel.BLOCK)
        self._grid = (min(blocks, kernel.MOST_PROGRAMS),)
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)
        self._numbers = torch.zeros(kernel.NUM_NUMBERS, dtype=torch.int32, device=device)
        self.moves: Moves | None = None  # of the last plan
        if isinstance(planner, EagerPlanner):
            # of one plan at a time
            self._found = torch.empty(self.num_lookups, dtype=torch.int32, device=device)
            self._chosen = torch.empty(min(self.num_lookups, planner.slots.num), dtype=torch.int32, device=device)
            self._misses = torch.empty(blocks, dtype=torch.int32, device=device)
            self._zeroed = torch.zeros(kernel.NUM_SUMS + NUM_COUNTS, dtype=torch.int32, device=device)
            self._row_slots = seats.row_slots  # of one part, these go to its seat
            if places.parts > 1:
                self._row_slots = torch.zeros(1, self.num_lookups, dtype=torch.int32, device=device)
            rows = torch.zeros(2, self.num_lookups, dtype=torch.int64, device=device)
            self.moves = Moves(torch.zeros_like(self._found), rows[0], rows[1], self._numbers.new_zeros(1))

    def turn(self, ids: Tensor | None, announces: bool, plans: bool) -> None:
        """Announce a party of these ids, and plan another one, all or nothing: where the host's numbers say.

        To announce is to find the distinct rows, and to tell the policy that they will be needed; what it is told
        counts for the plan already.
        """
        planner = self._planner
        self._begin(announces, plans and isinstance(planner, EagerPlanner))
        if announces:
            assert ids is not None
            self._find_distinct(ids)
        sums = evictable = None
        if isinstance(planner, EagerPlanner):
            sums, evictable = self._zeroed[: kernel.NUM_SUMS], self._zeroed[kernel.NUM_SUMS :]
            self._announce_and_look_up(planner, announces and isinstance(planner.policy, Lookahead), plans, sums)
            if plans:
                self._place(planner, sums, evictable)
        if plans:
            self._spread(sums, evictable)

    def _begin(self, announces: bool, places_rows: bool) -> None:
        """Fetch the numbers of the batches to be announced and planned."""
        coalesced = self._places.coalesced
        kernel.begin[(1,)](
            self._on_host, self._turn, len(self._on_host), self._numbers, self._places.noted,
            None if coalesced is None else coalesced.noted,
            self._zeroed if places_rows else None, self._zeroed.numel() if places_rows else 0,
            ANNOUNCES=announces, PARTS=self._places.parts, NUMBERS=kernel.NUM_NUMBERS,
            BLOCK=triton.next_power_of_2(kernel.NUM_SUMS + NUM_COUNTS), num_warps=1,
        )  # fmt: skip

    def _number(self, which: Any) -> Tensor:
        """What the kernels find at one of the numbers."""
        return self._numbers[which.value :]

    def _find_distinct(self, ids: Tensor) -> None:
        part, places = self._part, self._places
        unique_ids(
            ids, part.columns, part.first_row, part.num_rows, self._column_order, self._key_dtype, places.noted,
            places.told, self._number(kernel.COMING_PLACE), places.arrays, places.coalesced,
        )  # fmt: skip

    def _announce_and_look_up(self, planner: EagerPlanner, announces: bool, plans: bool, sums: Tensor) -> None:
        if not announces and not plans:
            return
        policy, slots = planner.policy, planner.slots
        rows, _, noted = self._places.to_plan
        slot_of, keys, _, num_cells = _index_arrays(planner)
        next_use = policy.next_use.arrays() if isinstance(policy, Lookahead) else (None, None, 1)
        kernel.announce_and_look_up[(*self._grid, announces + plans)](
            rows, noted, rows.stride(0), self._numbers, slot_of, keys, num_cells, *next_use,
            slots.priority, slots.last_used, self._found, self._misses, sums,
            ANNOUNCES=announces, PLANS=plans, DIRECT=keys is None, NEEDED=NEEDED, BLOCK=kernel.BLOCK,
            num_warps=kernel.NUM_WARPS,
        )  # fmt: skip

    def _spread(self, sums: Tensor | None, evictable: Tensor | None) -> None:
        places, seats = self._places, self._seats
        rows, inverse, order, starts, block_rows = places.arrays
        rows_to, inverse_to, order_to, starts_to, block_rows_to = seats.arrays
        moves = self.moves
        kernel.spread[(triton.cdiv(self._lookups_each + 1, kernel.SPREAD), places.parts)](
            rows, places.noted, inverse, order, starts, block_rows, None if moves is None else self._row_slots,
            None if places.coalesced is None else places.coalesced.of_part, sums, evictable, self._numbers,
            seats.slots, seats.row_slots, rows_to, seats.num, inverse_to, order_to, starts_to, block_rows_to,
            None if moves is None else moves.num, seats.counts, self._lookups_each, rows.stride(0),
            block_rows.stride(0), NUM_COUNTS=len(Counts._fields), PARTS=places.parts,
            PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, BLOCK=kernel.SPREAD, num_warps=kernel.SPREAD_WARPS,
        )  # fmt: skip

    def _place(self, planner: EagerPlanner, sums: Tensor, evictable: Tensor) -> None:
        slots, policy, row_slots = planner.slots, planner.policy, self._row_slots
        rows, starts, noted = self._places.to_plan
        assert self.moves is not None
        slot_of, keys, cell_of, num_cells = _index_arrays(planner)
        direct = keys is None
        end = slots.num
        in_one_pass = isinstance(policy, Lookahead) and policy.place_of is None
        select_victims_into(
            slots.priority[:end], self._number(kernel.NUMBER) if in_one_pass else None, slots.last_used[:end],
            slots.pinned, self._number(kernel.OLDEST), sums[:1], evictable, self._chosen,
            self._number(kernel.SCAN) if policy.by_parts else None,
        )  # fmt: skip
        seen = place_of = up_keys = up_uses = None
        num_up_cells = 1
        if isinstance(policy, Lookahead):
            up_keys, up_uses, num_up_cells = policy.next_use.arrays()
            seen, place_of = policy.seen, policy.place_of
        kernel.place[self._grid](
            rows, starts, noted, rows.stride(0), self._numbers, self._found, self._misses, sums, evictable,
            self._chosen, slots.row, slots.last_used, slots.priority, seen, place_of,
            slot_of, keys, cell_of, num_cells, up_keys, up_uses, num_up_cells,
            row_slots, row_slots.stride(0) if self._places.parts == 1 else 0, *self.moves[:3],
            DIRECT=direct, POLICY=KINDS[type(policy)], NEEDED=NEEDED, MOST_FREQUENT=MOST_FREQUENT,
            EXACTLY_SEEN=EXACTLY_SEEN, STEPS_BELOW=STEPS_BELOW, MOST_SEEN=MOST_SEEN,
            BLOCK=kernel.BLOCK, AT_ONCE=kernel.AT_ONCE, num_warps=kernel.NUM_WARPS,
        )  # fmt: skip


def _index_arrays(planner: EagerPlanner) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
    index = planner.index
    if isinstance(index, DirectIndex):
        return index.slot_of, None, None, 1
    assert isinstance(index, HashIndex)
    return index.slot_at, index.keys, index.cell_of, index.num_cells
