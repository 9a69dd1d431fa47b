"""Unique rows in plain PyTorch."""

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
    unique = torch.cumsum(first, 0, dtype=torch.int32) - 1  # the position of each lookup's row among the unique rows
    position = torch.arange(num_lookups, dtype=torch.int32, device=device)

    # The arrays have an extra entry, which takes writes that must not happen.
    target = torch.where(first, unique, num_lookups).long()
    found = torch.full((num_lookups + 1,), NO_ROW, dtype=torch.int64, device=device)
    found.scatter_(0, target, ordered)
    starts = valid.sum(dtype=torch.int32).repeat(num_lookups + 2)
    starts.scatter_(0, torch.where(first, unique, num_lookups + 1).long(), position)
    inverse = torch.empty(num_lookups, dtype=torch.int32, device=device)
    inverse[order] = torch.where(valid, unique, -1)
    num = first.sum(dtype=torch.int32).reshape(1)
    block_rows = unique[::LOOKUPS_PER_BLOCK].clamp(min=0)
    return found[:num_lookups], num, inverse, order.int(), starts[: num_lookups + 1], block_rows
