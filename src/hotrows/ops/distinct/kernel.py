"""Distinct rows in Triton: flag the first lookup of each row in a sorted batch, then scatter what the flags tell."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import NO_ROW

_LAST = tl.constexpr(torch.iinfo(torch.int64).max)  # sorts lookups without a row behind all others
_NO_ROW = tl.constexpr(NO_ROW)
_BLOCK = 1024


@triton.jit(do_not_specialize=["num_lookups"])  # batches of another length must not be compiled for
def _flag_firsts(ordered, num_lookups, firsts, num_valid, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_lookups
    row = tl.load(ordered + position, mask=inside, other=_LAST)
    before = tl.load(ordered + position - 1, mask=(position > 0) & (position <= num_lookups), other=_NO_ROW)
    tl.store(firsts + position, ((row != before) & (row != _LAST)).to(tl.int32), mask=inside)
    # one position alone, at the latest the one past the end, is the first without a row: no two lanes write this
    border = (row == _LAST) & (before != _LAST) & (position <= num_lookups)
    tl.store(num_valid + tl.zeros_like(position), position.to(tl.int32), mask=border)


@triton.jit(do_not_specialize=["num_lookups"])
def _scatter(
    ordered, sorted_order, firsts, rank, num_valid, num_lookups, rows, num, inverse, order, starts, BLOCK: tl.constexpr
):
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_lookups
    num_rows = tl.load(rank + num_lookups - 1)
    valid = tl.load(num_valid)
    lookup = tl.load(sorted_order + position, mask=inside, other=0)
    place = tl.load(rank + position, mask=inside, other=1) - 1
    first = tl.load(firsts + position, mask=inside, other=0) != 0

    tl.store(order + position, lookup.to(tl.int32), mask=inside)
    tl.store(inverse + lookup, tl.where(position < valid, place, -1), mask=inside)
    tl.store(rows + place, tl.load(ordered + position, mask=first, other=0), mask=first)
    tl.store(starts + place, position.to(tl.int32), mask=first)
    beyond = position >= num_rows
    tl.store(rows + position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond & inside)
    tl.store(starts + position, tl.zeros([BLOCK], tl.int32) + valid, mask=beyond & (position <= num_lookups))
    tl.store(num, num_rows, mask=tl.program_id(0) == 0)


def distinct(rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    num_lookups = rows.numel()
    unique = torch.empty_like(rows)
    inverse = rows.new_empty(num_lookups, dtype=torch.int32)
    order = torch.empty_like(inverse)
    if num_lookups == 0:
        return unique, inverse.new_zeros(1), inverse, order, inverse.new_zeros(1)
    num, num_valid = inverse.new_empty(1), inverse.new_empty(1)
    starts = inverse.new_empty(num_lookups + 1)
    ordered, sorted_order = torch.sort(rows.masked_fill(rows < 0, _LAST.value), stable=True)
    firsts = torch.empty_like(inverse)
    grid = (triton.cdiv(num_lookups + 1, _BLOCK),)  # `starts` has one more
    _flag_firsts[grid](ordered, num_lookups, firsts, num_valid, BLOCK=_BLOCK)
    rank = torch.cumsum(firsts, 0, dtype=torch.int32)
    _scatter[grid](
        ordered, sorted_order, firsts, rank, num_valid, num_lookups, unique, num, inverse, order, starts, BLOCK=_BLOCK
    )
    return unique, num, inverse, order, starts
