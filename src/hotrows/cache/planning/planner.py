"""The eager planner: the definition of what a plan is, in PyTorch operations.

The planner is sequential over batches and the only writer of the index. On CUDA all its operations have static shapes:
the numbers of unique rows, misses and evictions stay on the device, and the host reads them back later (`Counts`).
Masked-out writes are redirected to an extra entry behind the last slot.

A plan is a transaction. `Slots.row` says which row is in which slot, and the index can be rebuilt from it. Before a
plan changes `Slots.row`, the planner notes which rows leave. If planning fails, the planner puts these rows back and
rebuilds the index. If a caller fails after a plan is made and before its moves are queued, it can undo the plan in the
same way (`roll_back`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from hotrows.cache.indexes import Index
from hotrows.cache.planning.protocol import CacheKernelSpec, Counts, KernelSpec, Part, Placement, Plan
from hotrows.cache.planning.victim_scan import ScanRange, VictimScan
from hotrows.cache.policies import Access, Policy
from hotrows.cache.slots import Slots
from hotrows.ops.rows import NO_ROW, NO_SLOT, filled
from hotrows.ops.unique import UniqueRows


class _Undo(NamedTuple):
    """To undo a plan: its `move_slots`, the indices in `Slots.row` that it wrote, and the rows that were there.

    All are [M].
    """

    move_slots: Tensor
    target: Tensor
    rows_out: Tensor


class EagerPlanner:
    """Plans batches on a set of slots.

    Args:
        index: finds the slot of a row.
        policy: ranks the slots for eviction.
    """

    holds_all_rows = False

    def __init__(self, slots: Slots, index: Index, policy: Policy) -> None:
        self.slots = slots
        self.index = index
        self.policy = policy
        policy.bind(slots)
        self.num_slots = slots.num
        self.any_slot = index.any_slot
        self.note_unique_count = policy.note_unique_count
        self.plan_number = 0
        self._scan = VictimScan(slots.num)
        self._undo: _Undo | None = None  # of the last plan, until it is confirmed
        nothing = torch.empty(0, dtype=torch.int64, device=slots.device)
        self._undo_nothing = _Undo(nothing, nothing, nothing)

    @property
    def row_of_slot(self) -> Tensor:
        return self.slots.row[: self.slots.num]

    @property
    def pinned(self) -> Tensor:
        return self.slots.pinned

    @property
    def index_generation(self) -> int:
        return self.index.generation

    def device_bytes(self, num_rows: int) -> int:
        return self.slots.num_bytes + self.index.num_bytes(num_rows, self.slots.num)

    def announce(self, unique: UniqueRows, batch_number: int) -> None:
        if self.policy.looks_ahead:
            try:
                self.policy.announce(*self._find(unique), unique.num, batch_number)
            except BaseException:
                self.policy.forget(batch_number)
                raise

    def withdraw(self, unique: UniqueRows, batch_number: int) -> None:
        if self.policy.looks_ahead:
            self.policy.withdraw(*self._find(unique), unique.num, batch_number)

    def begin_plans(self, num_plans: int, num_rows: int, scan_all: bool) -> ScanRange:
        self._undo = self._undo_nothing  # if rebuilding the index fails, `roll_back` builds it from the slots again
        self.plan_number += num_plans
        self.index.maintain(num_rows)
        self._undo = None  # by now, a caller that may undo the last plan has confirmed it or rolled it back
        # An index that gives a row the choice of a few slots does not scan.
        if scan_all or not self.policy.scans_ranges or not self.any_slot:
            return self._scan.all_slots
        return self._scan.next_range(num_rows)

    def plan(
        self,
        unique: UniqueRows,
        placement: Placement,
        oldest: int | None = None,
        batch_number: int | None = None,
        scan_all: bool = True,
        parts: Sequence[Part] | None = None,
    ) -> list[Plan]:
        num_plans = 1 if parts is None else len(parts)
        rows = unique.rows[: filled(unique.rows, unique.num)]
        if placement is Placement.READ_ONLY:
            self.plan_number += num_plans
            plan = self._plan_reads(unique, rows)
        else:
            try:
                scan = self.begin_plans(num_plans, rows.numel(), scan_all)
                plan = self._plan_slots(unique, rows, placement, oldest, batch_number, scan)
            except BaseException:
                self.policy.note_lost_plan(rows.numel())
                self.roll_back()
                raise
        if parts is None:
            plan.slots = lookup_slots(plan.row_slots, unique.inverse)
            return [plan]
        return _split(plan, parts)

    @property
    def unconfirmed_moves(self) -> Tensor | None:
        return None if self._undo is None else self._undo.move_slots

    def confirm(self) -> None:
        self._undo = None

    def roll_back(self) -> None:
        # `last_used` and the priorities are not rolled back. They decide which slots are evicted later, and nothing
        # about the values of rows.
        if self._undo is not None:
            _, target, rows_out = self._undo
            self.slots.row[target] = torch.where(target < self.num_slots, rows_out, NO_ROW)
            self.index.rebuild()
            self._undo = None

    def _plan_reads(self, unique: UniqueRows, rows: Tensor) -> Plan:
        """Plan rows that are only read: those that are missing go to the overflow buffer."""
        found = self.index.find(rows, unique.num)
        missing = _filled_mask(rows, unique.num) & (found < 0)
        miss_rows, miss_position, num_misses = _compact(missing, rows)
        nothing = torch.full_like(found, NO_SLOT)
        fits = torch.ones((), dtype=torch.bool, device=rows.device)
        return self._make_plan(unique, found, miss_rows, miss_position, num_misses, nothing, fits, None, True)

    def _plan_slots(
        self,
        unique: UniqueRows,
        rows: Tensor,
        placement: Placement,
        oldest: int | None,
        batch_number: int | None,
        scan: ScanRange,
    ) -> Plan:
        """Plan rows that will be trained: give slots to those that are missing, and tell the policy."""
        slots = self.slots
        found = self.index.find(rows, unique.num)
        missing = _filled_mask(rows, unique.num) & (found < 0)
        miss_rows, miss_position, num_misses = _compact(missing, rows)
        wanted = _filled_mask(rows, num_misses)

        slots.last_used.index_fill_(0, slots.write_targets(found), self.plan_number)
        self.policy.refresh(self.plan_number)
        first_in_flight = self.plan_number if oldest is None else oldest
        chosen = self.index.place(miss_rows, num_misses, first_in_flight, scan)
        placed = wanted & (chosen >= 0)
        fits = torch.ones((), dtype=torch.bool, device=rows.device)
        if placement is Placement.ATOMIC:
            fits = (placed == wanted).all()
            placed = placed & fits
        chosen = torch.where(placed, chosen, NO_SLOT)
        scanned_all = scan.length == slots.num
        plan = self._make_plan(
            unique, found, miss_rows, miss_position, num_misses, chosen, fits, batch_number, scanned_all
        )
        self._occupy(plan)
        in_cache = fits & (plan.row_slots < slots.num)
        self.policy.access(
            Access(
                rows=rows,
                slots=slots.write_targets(plan.row_slots, in_cache),
                fresh=missing,
                occurrences=unique.starts[1 : rows.numel() + 1] - unique.starts[: rows.numel()],
                num=unique.num,
                fits=fits,
                plan_number=self.plan_number,
                batch_number=batch_number,
            )
        )
        return plan

    def _make_plan(
        self,
        unique: UniqueRows,
        found: Tensor,
        miss_rows: Tensor,
        miss_position: Tensor,
        num_misses: Tensor,
        chosen: Tensor,
        fits: Tensor,
        batch_number: int | None,
        scanned_all: bool,
    ) -> Plan:
        """The plan that gives each missing row its chosen slot or, without one, a position in the overflow buffer.

        Args:
            found: the slot of each row in the cache, NO_SLOT for a missing row. int32 [U].
            miss_rows, miss_position, chosen: each missing row, its position among all rows, and its slot or NO_SLOT.
            fits: false for a plan that is not carried out. bool [].
        """
        num_slots, num_rows = self.slots.num, found.numel()
        wanted = _filled_mask(miss_rows, num_misses)
        placed = chosen >= 0
        overflows = wanted & ~placed & fits
        overflow_rows, _, num_overflow = _compact(overflows, miss_rows)
        overflow_slot = num_slots + torch.cumsum(overflows, 0, dtype=torch.int32) - 1
        given = torch.where(placed, chosen, torch.where(overflows, overflow_slot, NO_SLOT))
        row_slots = torch.cat([found, found.new_full((1,), NO_SLOT)])  # masked-out writes go to the last entry
        row_slots[torch.where(wanted, miss_position, num_rows)] = given
        move_out = torch.where(placed, self.slots.row[self.slots.write_targets(chosen)], NO_ROW)
        counts = [
            unique.starts[-1],
            unique.num[0],
            unique.num[0] - num_misses[0],
            num_misses[0],
            placed.sum(dtype=torch.int32),
            (move_out >= 0).sum(dtype=torch.int32),
            num_overflow[0],
            fits.int(),
            unique.num[0],
        ]
        return Plan(
            plan_number=self.plan_number,
            batch_number=batch_number,
            index_generation=self.index.generation,
            max_moves=num_rows,
            scanned_all=scanned_all,
            unique=unique,
            slots=found[:0],  # `plan` fills it in
            row_slots=row_slots[:-1],
            move_slots=chosen,
            move_out=move_out,
            move_in=torch.where(placed, miss_rows, NO_ROW),
            num_moves=num_misses,
            overflow_slots=num_slots + torch.arange(num_rows, dtype=torch.int32, device=found.device),
            overflow_rows=overflow_rows,
            num_overflow=num_overflow,
            counts=torch.stack(counts),
        )

    def _occupy(self, plan: Plan) -> None:
        """Record in the index and in the slots which row each chosen slot holds from now on."""
        chosen = plan.move_slots
        target = self.slots.write_targets(chosen)
        self._undo = _Undo(chosen, target, plan.move_out)
        self.index.replace(chosen, plan.move_out, plan.move_in, plan.num_moves)
        self.slots.row[target] = plan.move_in  # where no slot is chosen, NO_ROW goes to the extra entry
        self.slots.last_used.index_fill_(0, target, self.plan_number)

    def resolve(self, plan: Plan, counts: Counts, placement: Placement) -> None:
        if placement is Placement.READ_ONLY:
            return
        if plan.index_generation == self.index.generation:
            self.index.note_evictions(counts.evictions, plan.max_moves)
        if plan.batch_number is not None and counts.fits and self.policy.looks_ahead:
            self.policy.batch_planned(plan.batch_number, counts.erasures)

    def kernel_spec(self) -> KernelSpec | None:
        index, policy = self.index.kernel_spec(), self.policy.kernel_spec()
        if index is None or policy is None:
            return None
        return KernelSpec(CacheKernelSpec(self.slots, index, policy))

    def reason_without_kernels(self) -> str | None:
        if self.policy.kernel_spec() is None:
            return f"policy {type(self.policy).__name__} has no kernels"
        if self.index.kernel_spec() is None:
            return f"index {type(self.index).__name__} has no kernels"
        return None

    def clear(self) -> None:
        self._undo = None
        self.slots.clear()
        self.index.rebuild()

    def _find(self, unique: UniqueRows) -> tuple[Tensor, Tensor]:
        rows = unique.rows[: filled(unique.rows, unique.num)]
        return rows, self.slots.write_targets(self.index.find(rows, unique.num))


def _filled_mask(array: Tensor, num: Tensor) -> Tensor:
    """A bool mask as long as `array`, True for the first `num` entries."""
    return torch.arange(array.numel(), dtype=torch.int32, device=array.device) < num


def _compact(mask: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The values under the mask moved to the front, NO_ROW behind them; their positions; their number [1]."""
    length = mask.numel()
    target = torch.where(mask, torch.cumsum(mask, 0) - 1, length)
    moved = values.new_full((length + 1,), NO_ROW)
    moved[target] = values
    position = target.new_zeros(length + 1)
    position[target] = torch.arange(length, device=mask.device)
    return moved[:length], position[:length], mask.sum(dtype=torch.int32).reshape(1)


def lookup_slots(row_slots: Tensor, inverse: Tensor) -> Tensor:
    """The slot of each lookup from the slots of the unique rows, NO_SLOT where a lookup has no row."""
    if row_slots.numel() == 0:
        return torch.full_like(inverse, NO_SLOT)
    return torch.where(inverse >= 0, row_slots[inverse.clamp(min=0)], NO_SLOT)


def _split(plan: Plan, parts: Sequence[Part]) -> list[Plan]:
    """The plans of coalesced batches from the plan of their union. The first one carries the moves of all."""
    zero = torch.zeros_like(plan.num_moves)
    _, _, _, misses, placed, evictions, overflow, fits, erasures = torch.split(plan.counts, 1)
    plans = []
    for i, part in enumerate(parts):
        unique = part.unique
        num_rows = filled(unique.rows, unique.num)
        in_union = torch.where(_filled_mask(unique.rows[:num_rows], unique.num), part.in_union[:num_rows], -1)
        row_slots = lookup_slots(plan.row_slots, in_union)
        each = replace(
            plan,
            plan_number=plan.plan_number + 1 - len(parts) + i,
            unique=unique,
            slots=lookup_slots(row_slots, unique.inverse),
            row_slots=row_slots,
        )
        of_moves = [misses, placed, evictions, overflow, fits, erasures]
        if i > 0:
            each.batch_number, each.max_moves = None, 0
            each.move_slots, each.move_out, each.move_in = plan.move_slots[:0], plan.move_out[:0], plan.move_in[:0]
            each.overflow_slots, each.overflow_rows = plan.overflow_slots[:0], plan.overflow_rows[:0]
            each.num_moves = each.num_overflow = zero
            of_moves = [zero, zero, zero, zero, fits, zero]
        each.counts = torch.cat([unique.starts[-1:], unique.num, unique.num - of_moves[0], *of_moves])
        plans.append(each)
    return plans
