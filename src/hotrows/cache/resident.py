"""The planner of a group whose rows are all on the device: the slot of a row is its number, and nothing moves."""

import torch

from hotrows.cache.planner import Counts, Placing, Plan, spread
from hotrows.ops.distinct import Distinct
from hotrows.ops.rows import filled


class ResidentPlanner:
    """Plans batches where there is nothing to plan, so that such a group trains by the same code."""

    def __init__(self, num_rows: int) -> None:
        self.num_slots = num_rows
        self.batch = 0

    def announce(self, distinct: Distinct, number: int) -> None:
        pass

    def withdraw(self, distinct: Distinct, number: int) -> None:
        pass

    def counted(self, number: int, num_rows: int) -> None:
        pass

    def settle(self, plan: Plan, counts: Counts, placing: Placing) -> None:
        pass

    def plan(
        self,
        distinct: Distinct,
        placing: Placing,
        oldest: int | None = None,
        number: int | None = None,
        everywhere: bool = True,
    ) -> Plan:
        self.batch += 1
        rows = distinct.rows[: filled(distinct.rows, distinct.num)]
        none = torch.zeros_like(distinct.num)
        one = torch.ones_like(none)
        lookups = distinct.starts[-1:]
        row_slots = rows.int()
        return Plan(
            batch=self.batch,
            number=number,
            distinct=distinct,
            slots=spread(row_slots, distinct.inverse),
            row_slots=row_slots,
            move_slots=row_slots[:0],
            move_out=rows[:0],
            move_in=rows[:0],
            num_moves=none,
            overflow_slots=row_slots[:0],
            overflow_rows=rows[:0],
            num_overflow=none,
            counts=torch.cat([lookups, distinct.num, distinct.num, none, none, none, none, one, none]),
            index_generation=0,
            most_moves=0,
            looked_at_all=True,
        )
