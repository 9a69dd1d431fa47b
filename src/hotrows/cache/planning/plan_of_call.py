"""The share of one call in the plan of a batch that several calls look up, and the plan that leaves a row out."""

from dataclasses import replace

import torch
from torch import Tensor

from hotrows.cache.planning.planner import lookup_slots
from hotrows.cache.planning.protocol import Plan
from hotrows.ops.rows import NO_ROW, NO_SLOT, filled
from hotrows.ops.unique import UniqueRows, unique_rows


def plan_of_call(plan: Plan, start: int, stop: int, trains: bool) -> Plan:
    """The plan of the lookups from `start` to `stop` of a batch, with the slots that the batch's plan gives them.

    Its unique rows are those of these lookups alone, so the order in which their gradients are added up does not depend
    on the other calls. It has no moves: those of the batch's plan are enough.

    Args:
        trains: false if the rows are only read. Then `unique` and `row_slots` stay those of the batch.
    """
    slots = plan.slots[start:stop]
    if not trains:
        return replace(plan, slots=slots)
    position = unique_rows(plan.unique.inverse[start:stop].long())  # of the rows among the unique rows of the batch
    num_rows = filled(position.rows, position.num)
    return replace(
        plan,
        unique=position._replace(rows=_taken(plan.unique.rows, position.rows)),
        slots=slots,
        row_slots=lookup_slots(plan.row_slots, position.rows[:num_rows].int()),
    )


def plan_without(plan: Plan, row: int) -> Plan:
    """The same plan, but an update leaves this row as it is."""
    unique = plan.unique
    is_row = unique.rows == row
    rows = torch.where(is_row, NO_ROW, unique.rows)
    row_slots = torch.where(is_row[: plan.row_slots.numel()], NO_SLOT, plan.row_slots)
    return replace(plan, unique=unique._replace(rows=rows), row_slots=row_slots)


def plan_of_rows(plan: Plan, rows: Tensor, slots: Tensor) -> Plan:
    """A plan of rows that may repeat, and whose slots are known.

    Args:
        plan: of the batch that has these rows in its slots.
        rows: int64 [N], NO_ROW for none.
        slots: int32 [N].
    """
    unique: UniqueRows = unique_rows(rows)
    num_rows = filled(unique.rows, unique.num)
    # Behind the last unique row, `starts` is the number of lookups with a row, which may be that of all lookups.
    first = unique.order[unique.starts[:num_rows].clamp(max=max(0, rows.numel() - 1)).long()].long()
    row_slots = torch.where(unique.rows[:num_rows] != NO_ROW, slots[first], NO_SLOT)
    return replace(plan, unique=unique, slots=slots, row_slots=row_slots)


def _taken(rows: Tensor, position: Tensor) -> Tensor:
    """The rows at these positions, NO_ROW where a position is NO_ROW."""
    if rows.numel() == 0:
        return position
    return torch.where(position >= 0, rows[position.clamp(min=0)], NO_ROW)
