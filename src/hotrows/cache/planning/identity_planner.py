"""The planner of a group whose rows are all on the device: the slot of a row is its number, and nothing moves."""

import torch

from hotrows.cache.planning.planner import Counts, Placement, Plan, spread
from hotrows.ops.rows import filled
from hotrows.ops.unique import UniqueRows


class IdentityPlanner:
    """Plans batches where there is nothing to plan, so that such a group trains by the same code."""

    def __init__(self, num_rows: int) -> None:
        self.num_slots = num_rows
        self.batch = 0

    def announce(self, unique: UniqueRows, number: int) -> None:
        pass

    def withdraw(self, unique: UniqueRows, number: int) -> None:
        pass

    def counted(self, number: int, num_rows: int) -> None:
        pass

    def resolve(self, plan: Plan, counts: Counts, placement: Placement) -> None:
        pass

    def plan(
        self,
        unique: UniqueRows,
        placement: Placement,
        oldest: int | None = None,
        number: int | None = None,
        everywhere: bool = True,
    ) -> Plan:
        self.batch += 1
        rows = unique.rows[: filled(unique.rows, unique.num)]
        none = torch.zeros_like(unique.num)
        one = torch.ones_like(none)
        lookups = unique.starts[-1:]
        row_slots = rows.int()
        return Plan(
            batch=self.batch,
            number=number,
            unique=unique,
            slots=spread(row_slots, unique.inverse),
            row_slots=row_slots,
            move_slots=row_slots[:0],
            move_out=rows[:0],
            move_in=rows[:0],
            num_moves=none,
            overflow_slots=row_slots[:0],
            overflow_rows=rows[:0],
            num_overflow=none,
            counts=torch.cat([lookups, unique.num, unique.num, none, none, none, none, one, none]),
            index_generation=0,
            most_moves=0,
            looked_at_all=True,
        )
