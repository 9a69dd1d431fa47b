"""The identity planner: all rows are always on the device, slot i holds row i, and nothing moves."""

from collections.abc import Sequence

import torch

from hotrows.cache.planning.planner import lookup_slots
from hotrows.cache.planning.protocol import Counts, KernelSpec, Part, Placement, Plan
from hotrows.cache.planning.victim_scan import ScanRange
from hotrows.ops.rows import filled
from hotrows.ops.unique import UniqueRows


class IdentityPlanner:
    """Makes plans without moves, so that tables that are wholly on the device train by the same code."""

    holds_all_rows = True
    any_slot = True
    row_of_slot = None
    pinned = None
    index_generation = 0

    def __init__(self, num_rows: int) -> None:
        self.num_slots = num_rows
        self.plan_number = 0

    def device_bytes(self, num_rows: int) -> int:
        return 0

    def announce(self, unique: UniqueRows, batch_number: int) -> None:
        pass

    def withdraw(self, unique: UniqueRows, batch_number: int) -> None:
        pass

    def note_unique_count(self, batch_number: int, num_rows: int) -> None:
        pass

    def plan(
        self,
        unique: UniqueRows,
        placement: Placement,
        oldest: int | None = None,
        batch_number: int | None = None,
        scan_all: bool = True,
        parts: Sequence[Part] | None = None,
    ) -> list[Plan]:
        batches = [unique] if parts is None else [part.unique for part in parts]
        return [self._plan(each, batch_number if i == 0 else None) for i, each in enumerate(batches)]

    def _plan(self, unique: UniqueRows, batch_number: int | None) -> Plan:
        self.plan_number += 1
        rows = unique.rows[: filled(unique.rows, unique.num)]
        zero = torch.zeros_like(unique.num)
        one = torch.ones_like(zero)
        lookups = unique.starts[-1:]
        row_slots = rows.int()
        return Plan(
            plan_number=self.plan_number,
            batch_number=batch_number,
            index_generation=0,
            max_moves=0,
            scanned_all=True,
            unique=unique,
            slots=lookup_slots(row_slots, unique.inverse),
            row_slots=row_slots,
            move_slots=row_slots[:0],
            move_out=rows[:0],
            move_in=rows[:0],
            num_moves=zero,
            overflow_slots=row_slots[:0],
            overflow_rows=rows[:0],
            num_overflow=zero,
            counts=torch.cat([lookups, unique.num, unique.num, zero, zero, zero, zero, one, zero]),
        )

    unconfirmed_moves = None

    def confirm(self) -> None:
        pass

    def roll_back(self) -> None:
        pass

    def begin_plans(self, num_plans: int, num_rows: int, scan_all: bool) -> ScanRange:
        self.plan_number += num_plans
        return ScanRange(0, 0)

    def resolve(self, plan: Plan, counts: Counts, placement: Placement) -> None:
        pass

    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(cache=None)

    def reason_without_kernels(self) -> None:
        return None

    def clear(self) -> None:
        pass
