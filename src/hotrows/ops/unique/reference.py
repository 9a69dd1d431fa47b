"""Distinct rows in plain PyTorch."""

import torch
from torch import Tensor

from hotrows.ops.rows import LOOKUPS_PER_BLOCK, NO_ROW


def unique_rows(rows: Tensor) -> tuple[Tensor, ...]:
    num_lookups = rows.numel()
    device = rows.device
    last = torch.iinfo(torch.int64).max
    ordered, order = torch.sort(torch.where(rows < 0, last, rows), stable=True)
    valid = ordered != last
    first = valid.clone()
    first[1:] &= ordered[1:] != ordered[:-1]
    place = torch.cumsum(first, 0, dtype=torch.int32) - 1
    position = torch.arange(num_lookups, dtype=torch.int32, device=device)

    # one place more than needed takes what must not be written
    target = torch.where(first, place, num_lookups).long()
    unique = torch.full((num_lookups + 1,), NO_ROW, dtype=torch.int64, device=device)
    unique.scatter_(0, target, ordered)
    starts = valid.sum(dtype=torch.int32).repeat(num_lookups + 2)
    starts.scatter_(0, torch.where(first, place, num_lookups + 1).long(), position)
    inverse = torch.empty(num_lookups, dtype=torch.int32, device=device)
    inverse[order] = torch.where(valid, place, -1)
    num = first.sum(dtype=torch.int32).reshape(1)
    block_rows = place[::LOOKUPS_PER_BLOCK].clamp(min=0)
    return unique[:num_lookups], num, inverse, order.int(), starts[: num_lookups + 1], block_rows
