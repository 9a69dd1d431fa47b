"""The planner: what one batch needs. It is sequential over batches and the only writer of the index.

Everything here has static shapes on CUDA: the number of distinct rows, of misses and of evictions stays on the device,
and the host learns them late (`Counts`). Entries that do not count are written to a place beyond the last slot.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from hotrows.cache.indexes import Index
from hotrows.cache.planning.victim_scan import ScanRange, VictimScan
from hotrows.cache.policies import Access, Policy
from hotrows.cache.slots import Slots
from hotrows.ops.rows import NO_ROW, NO_SLOT, filled
from hotrows.ops.unique import UniqueRows


class Placement(Enum):
    """What to do with rows that are not in the cache."""

    ATOMIC = "all or nothing"  # give each a slot, or change nothing: batches planned ahead
    SPILL = "what fits"  # the rest goes to the overflow buffer: batches planned on the spot
    READ_ONLY = "nothing"  # all go to the overflow buffer, the cache stays as it is: reads


class Counts(NamedTuple):
    """What the host learns of a plan, late."""

    lookups: int  # that have a row
    unique: int
    hits: int  # distinct rows found in the cache
    misses: int
    placed: int  # misses that were given a slot
    evictions: int
    overflow: int  # misses that were given a place in the overflow buffer
    fits: int  # 0 where an all-or-nothing plan changed nothing
    erasures: int  # rows of which the policy has forgotten that they were announced, but which still take room, at most


@dataclass(slots=True)
class Plan:
    """A slot for every lookup of a batch, and the moves that make it true."""

    batch: int  # running number of the plan
    number: int | None  # the number the batch was announced under
    index_generation: int
    most_moves: int  # that the host reckoned with
    looked_at_all: bool  # slots, for victims
    unique: UniqueRows
    slots: Tensor  # int32 [N], beyond the last slot: the place in the overflow buffer; NO_SLOT without a row
    row_slots: Tensor  # int32 [U], the same for each distinct row
    move_slots: Tensor  # int32 [U] move j: slot, row that leaves it, row that comes; NO_ROW for none
    move_out: Tensor  # int64 [U]
    move_in: Tensor  # int64 [U]
    num_moves: Tensor  # int32 [1]
    overflow_slots: Tensor  # int32 [U], place j of the overflow buffer
    overflow_rows: Tensor  # int64 [U]
    num_overflow: Tensor  # int32 [1]
    counts: Tensor  # int32, the fields of Counts


class EagerPlanner:
    """Plans batches on a set of slots.

    Args:
        index: where rows are. policy: who stays.
    """

    def __init__(self, slots: Slots, index: Index, policy: Policy) -> None:
        self.slots = slots
        self.index = index
        self.policy = policy
        policy.bind(slots)
        self.num_slots = slots.num
        self.counted = policy.counted  # called when the host has learned how many rows an announced batch has
        self.batch = 0
        self._scans = VictimScan(slots.num)

    def announce(self, unique: UniqueRows, number: int) -> None:
        """Tell the policy of a batch that will be planned later."""
        if self.policy.looks_ahead:
            self.policy.announce(*self._find(unique), unique.num, number)

    def withdraw(self, unique: UniqueRows, number: int) -> None:
        """Take back what was announced."""
        if self.policy.looks_ahead:
            self.policy.withdraw(*self._find(unique), unique.num, number)

    def next_scan(self, num_rows: int, everywhere: bool) -> ScanRange:
        """Where the next batch, of at most so many distinct rows, finds its victims."""
        if everywhere or not self.policy.by_parts:
            return self._scans.of_all
        return self._scans.next_part(num_rows)

    def plan(
        self,
        unique: UniqueRows,
        placement: Placement,
        oldest: int | None = None,
        number: int | None = None,
        everywhere: bool = True,
    ) -> Plan:
        """Plan the next batch.

        Args:
            oldest: the first batch in flight, whose slots and all later ones' stay; None if there is none.
            everywhere: look at all slots for victims, not at a part of them if the policy allows that.
        """
        self.batch += 1
        slots = self.slots
        rows = unique.rows[: filled(unique.rows, unique.num)]
        scan = self.next_scan(rows.numel(), everywhere)
        position = torch.arange(rows.numel(), dtype=torch.int32, device=rows.device)
        found = self.index.find(rows, unique.num)
        hit = found >= 0
        missing = (position < unique.num) & ~hit
        miss_rows, miss_position, num_misses = _compact(missing, rows)
        wanted = position < num_misses

        if placement is Placement.READ_ONLY:
            placed = torch.zeros_like(wanted)
            chosen = torch.full_like(found, NO_SLOT)
            fits = torch.ones((), dtype=torch.bool, device=rows.device)
            move_out = torch.full_like(miss_rows, NO_ROW)
        else:
            slots.last_used.index_fill_(0, slots.or_nowhere(found), self.batch)
            self.policy.refresh(self.batch)
            self.index.maintain(rows.numel())
            chosen = self.index.place(miss_rows, num_misses, self.batch if oldest is None else oldest, scan)
            fits = ((chosen >= 0) == wanted).all()
            placed = wanted & (chosen >= 0)
            if placement is Placement.ATOMIC:
                placed = placed & fits
            else:
                fits = torch.ones_like(fits)
            chosen = torch.where(placed, chosen, NO_SLOT)
            move_out = torch.where(placed, slots.row[slots.or_nowhere(chosen)], NO_ROW)
        move_in = torch.where(placed, miss_rows, NO_ROW)

        overflowing = wanted & ~placed & fits
        overflow_rows, _, num_overflow = _compact(overflowing, miss_rows)
        overflow_place = slots.num + torch.cumsum(overflowing, 0, dtype=torch.int32) - 1
        given = torch.where(placed, chosen, torch.where(overflowing, overflow_place, NO_SLOT))
        row_slots = torch.cat([found, found.new_full((1,), NO_SLOT)])  # the last takes what must not be written
        row_slots[torch.where(wanted, miss_position, rows.numel())] = given
        row_slots = row_slots[:-1]

        if placement is not Placement.READ_ONLY:
            self._occupy(chosen, move_out, move_in, num_misses)
            occurrences = unique.starts[1 : rows.numel() + 1] - unique.starts[: rows.numel()]
            in_cache = fits & (row_slots < slots.num)
            self.policy.access(
                Access(
                    rows=rows,
                    slots=slots.or_nowhere(row_slots, in_cache),
                    fresh=missing,
                    occurrences=occurrences,
                    num=unique.num,
                    done=fits,
                    batch=self.batch,
                    number=number,
                )
            )
        num_hits = hit.sum(dtype=torch.int32)
        counts = torch.stack(
            [
                unique.starts[-1],
                unique.num[0],
                num_hits,
                num_misses[0],
                placed.sum(dtype=torch.int32),
                (move_out >= 0).sum(dtype=torch.int32),
                num_overflow[0],
                fits.int(),
                unique.num[0],
            ]
        )
        return Plan(
            batch=self.batch,
            number=number,
            unique=unique,
            slots=spread(row_slots, unique.inverse),
            row_slots=row_slots,
            move_slots=chosen,
            move_out=move_out,
            move_in=move_in,
            num_moves=num_misses,
            overflow_slots=slots.num + position,
            overflow_rows=overflow_rows,
            num_overflow=num_overflow,
            counts=counts,
            index_generation=self.index.generation,
            most_moves=rows.numel(),
            looked_at_all=scan.length == slots.num,
        )

    def resolve(self, plan: Plan, counts: Counts, placement: Placement) -> None:
        """The host has learned a plan's counts."""
        if placement is Placement.READ_ONLY:
            return
        if plan.index_generation == self.index.generation:
            self.index.replaced(counts.evictions, plan.most_moves)
        if plan.number is not None and counts.fits and self.policy.looks_ahead:
            self.policy.came(plan.number, counts.erasures)

    def _find(self, unique: UniqueRows) -> tuple[Tensor, Tensor]:
        rows = unique.rows[: filled(unique.rows, unique.num)]
        return rows, self.slots.or_nowhere(self.index.find(rows, unique.num))

    def _occupy(self, chosen: Tensor, rows_out: Tensor, rows_in: Tensor, num: Tensor) -> None:
        """Put rows into the chosen slots."""
        self.index.replace(chosen, rows_out, rows_in, num)
        target = self.slots.or_nowhere(chosen)
        self.slots.row[target] = torch.where(chosen >= 0, rows_in, NO_ROW)
        self.slots.last_used.index_fill_(0, target, self.batch)


def _compact(mask: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The values under the mask moved to the front, NO_ROW behind them; their positions; their number [1]."""
    length = mask.numel()
    target = torch.where(mask, torch.cumsum(mask, 0) - 1, length)
    moved = values.new_full((length + 1,), NO_ROW)
    moved[target] = values
    position = target.new_zeros(length + 1)
    position[target] = torch.arange(length, device=mask.device)
    return moved[:length], position[:length], mask.sum(dtype=torch.int32).reshape(1)


def spread(row_slots: Tensor, inverse: Tensor) -> Tensor:
    """Slots of distinct rows → slots of lookups, NO_SLOT where a lookup has no row."""
    if row_slots.numel() == 0:
        return torch.full_like(inverse, NO_SLOT)
    return torch.where(inverse >= 0, row_slots[inverse.clamp(min=0)], NO_SLOT)
