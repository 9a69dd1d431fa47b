"""Distinct rows in Triton: count the first lookups of rows in each block of a sorted batch, then scatter by them.

Several batches can be sorted as one. As a stable sort leaves the lookups of a row in their order, those of the first
batch are before those of the second, and the answer to each batch comes out of the same walk as that to all together.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import LOOKUPS_PER_BLOCK, NO_ROW
from hotrows.ops.unique import kernel_columns
from hotrows.ops.unique.kernel_in_order import count_parts, lookups_at, neighbours, sums
from hotrows.ops.unique.kernel_parts import MOST_PARTS, CoalescedRows, scatter_parts

_NO_ROW = tl.constexpr(NO_ROW)
_BLOCK, _NUM_WARPS = 1024, 4
_ALIGNED = 16  # numbers
MOST_SAMPLES = 2048  # of columns that are sorted one by one


@triton.jit(do_not_specialize=["num_lookups"])  # batches of another length must not be compiled for
def _make_keys(
    ids, columns, first_row, num_rows, keys, bad, place, num_lookups, num_features, stride,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The row of every id of a batch [B, F], or LAST and a note in `bad` where there is none."""
    bad += tl.load(place) * (2 * PARTS)
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_lookups
    feature = position % num_features
    source = position
    if columns is not None:
        source = position // num_features * stride + tl.load(columns + feature, mask=inside, other=0)
    found = tl.load(ids + source, mask=inside, other=0).to(tl.int64)
    good = (found >= 0) & (found < tl.load(num_rows + feature, mask=inside, other=1))
    row = found + tl.load(first_row + feature, mask=inside, other=0)
    tl.store(keys + position, tl.where(good, row, LAST).to(keys.dtype.element_ty), mask=inside)
    per_part = num_lookups // PARTS
    for part in tl.static_range(PARTS):
        # the first bad position is the largest of these
        left = (part + 1) * per_part - position
        worst = tl.max(tl.where(inside & ~good & (left > 0) & (left <= per_part), left, 0), 0)
        if worst > 0:
            tl.atomic_max(bad + 2 * part, worst.to(tl.int32), sem="relaxed")


@triton.jit(do_not_specialize=["num_lookups"])
def _count_firsts(
    ordered, sorted_order, num_lookups, firsts, num_valid, in_parts,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, before = neighbours(ordered, position, num_lookups, LAST)
    first = (row != before) & (row != LAST)
    tl.store(firsts + tl.program_id(0), tl.sum(first.to(tl.int32), 0))
    if PARTS > 1:
        _, part, part_before = lookups_at(sorted_order, position, num_lookups, num_lookups // PARTS)
        first_in_part = first | ((part != part_before) & (row != LAST))
        count_parts(in_parts + tl.program_id(0), tl.num_programs(0), part, position < num_lookups, first_in_part, PARTS)
    # one position alone, at the latest the one past the end, is the first without a row: no two lanes write this
    border = (row == LAST) & (before != LAST) & (position <= num_lookups)
    tl.store(num_valid + tl.zeros_like(position), position.to(tl.int32), mask=border)


@triton.jit(do_not_specialize=["num_lookups", "num_blocks", "per_block"])
def _scatter(
    ordered,
    sorted_order,
    firsts,
    num_valid,
    bad,
    told,
    place,
    num_lookups,
    num_blocks,
    per_block,
    rows,
    num,
    inverse,
    order,
    starts,
    block_rows,
    stride,
    block_stride,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PER_BLOCK_ROW: tl.constexpr,
):
    if place is not None:
        at = tl.load(place).to(tl.int64)
        bad += at * 2
        told += at * 2
        num += at * 2
        rows += at * stride
        inverse += at * stride
        order += at * stride
        starts += at * stride
        block_rows += at * block_stride
    block = tl.program_id(0)
    offset = tl.arange(0, BLOCK)
    position = block.to(tl.int64) * per_block + offset
    inside = (offset < per_block) & (position < num_lookups)
    before_this, num_rows = sums(firsts, num_blocks, block, AT_ONCE)
    valid = num_lookups if num_valid is None else tl.load(num_valid)
    row, before = neighbours(ordered, position, num_lookups, LAST)
    first = inside & (row != before) & (row != LAST)
    place = before_this + tl.cumsum(first.to(tl.int32), 0) - 1
    if bad is not None:
        used = (tl.load(bad) == 0).to(tl.int32)  # nothing of a bad batch is
        num_rows *= used
        valid *= used
        first = first & (used > 0)

    lookup = tl.load(sorted_order + position, mask=inside, other=0)
    tl.store(order + position, lookup.to(tl.int32), mask=inside)
    tl.store(inverse + lookup, tl.where(position < valid, place, -1), mask=inside)
    tl.store(rows + place, row.to(tl.int64), mask=first)
    tl.store(starts + place, position.to(tl.int32), mask=first)
    beyond = inside & (position >= num_rows)
    tl.store(rows + position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(starts + position, tl.zeros([BLOCK], tl.int32) + valid, mask=beyond)
    tl.store(starts + num_lookups, valid, mask=block == 0)
    begins = inside & (position % PER_BLOCK_ROW == 0)
    tl.store(block_rows + position // PER_BLOCK_ROW, tl.maximum(place, 0), mask=begins)
    tl.store(num, num_rows, mask=block == 0)
    if told is not None:
        tl.store(told, num_rows, mask=block == 0)
        tl.store(told + 1, tl.load(bad), mask=block == 0)


def unique_rows(rows: Tensor) -> tuple[Tensor, ...]:
    out = empty(rows.numel(), rows.device)
    if rows.numel() == 0:
        out[1].zero_()
        out[4].zero_()
        return out
    last = torch.iinfo(rows.dtype).max  # sorts lookups without a row behind all others
    _of_keys(rows.masked_fill(rows < 0, last), None, None, None, out)
    return out


def column_order(first_row: Tensor, num_rows: Tensor, num_samples: int) -> Tensor | None:
    """For `distinct_ids`: the columns by where their tables begin, None where they cannot be sorted one by one.

    Args:
        num_samples: of a batch, or of each of several.
    """
    first, length = first_row.tolist(), num_rows.tolist()
    order = sorted(range(len(first)), key=first.__getitem__)
    if any(first[one] + length[one] > first[other] for one, other in pairwise(order)):
        return None  # a table is looked up by two columns
    if num_samples > MOST_SAMPLES or max(length) >= 1 << (63 - kernel_columns.bits_of(num_samples)):
        return None
    return torch.tensor(order, dtype=torch.int32, device=first_row.device)


def unique_ids(
    ids: Tensor,
    columns: Tensor | None,
    first_row: Tensor,
    num_rows: Tensor,
    column_order: Tensor | None,
    key_dtype: torch.dtype,
    noted: Tensor,
    told: Tensor,
    place: Tensor,
    out: tuple[Tensor, ...],
    coalesced: CoalescedRows | None = None,
) -> None:
    """The distinct rows of ids [B, F], into one of several rows of arrays.

    With `together`, these are the ids of several batches one below the other; each gives what it would alone, and
    arrays have so many times P rows, the parts of a place one after the other.

    Args:
        columns: int64 [f], which columns of ids to take; None for all.
        first_row, num_rows: int64 [f], where each feature's table begins, and its length.
        column_order: int32 [f], of the function of that name, to sort columns one by one; None to sort all together.
        key_dtype: int32 where all rows fit it.
        noted: int32 [P, 2], zero; becomes the number of distinct rows, and the number of lookups less the position of
            the first id without a row.
        told: int32 [P, 2], where the host reads the same.
        place: int32 [1], which of the P.
        out: as from `distinct`, without the number of rows: [P, ...] each, made by `several`.
    """
    num_samples, stride = ids.shape
    num_features = first_row.numel()
    num_lookups = num_samples * num_features
    keys = torch.empty(num_lookups, dtype=key_dtype, device=ids.device)
    last = torch.iinfo(key_dtype).max
    rows, *others = out
    bad, out = noted.view(-1)[1:], (rows, noted, *others)
    parts = 1 if coalesced is None else coalesced.num_parts
    if column_order is None:
        _make_keys[(triton.cdiv(num_lookups, _BLOCK),)](
            ids, columns, first_row, num_rows, keys, bad, place, num_lookups, num_features, stride,
            LAST=last, PARTS=parts, BLOCK=_BLOCK, num_warps=_NUM_WARPS,
        )  # fmt: skip
        _of_keys(keys, bad, told, place, out, coalesced)
        return
    order, firsts = kernel_columns.sort(
        ids, columns, first_row, num_rows, column_order, bad, place, keys, parts
    )  # fmt: skip
    if coalesced is not None:
        kernel_columns.scatter(keys, order, firsts, bad, told, place, out, coalesced)
        return
    width = 1 << kernel_columns.bits_of(num_samples)
    _scatter_blocks(_Blocks(keys, order, firsts, None, None, num_samples, width), bad, told, place, out, None)


def empty(num_lookups: int, device: torch.device) -> tuple[Tensor, ...]:
    """Arrays for the answer to a batch of so many lookups."""
    lengths = (1, num_lookups, num_lookups, num_lookups + 1, triton.cdiv(num_lookups, LOOKUPS_PER_BLOCK))
    rows = torch.empty(num_lookups, dtype=torch.int64, device=device)
    return rows, *(torch.empty(length, dtype=torch.int32, device=device) for length in lengths)


def several(num: int, num_lookups: int, device: torch.device) -> tuple[Tensor, ...]:
    """Arrays for the answers to so many batches, [num, ...] each: rows, inverse, order, starts and block_rows.

    Each answer is aligned as memory of its own is.
    """

    each = num_lookups + 1  # of `starts`; one stride for all
    blocks = triton.cdiv(num_lookups, LOOKUPS_PER_BLOCK)
    dtypes = (torch.int64, torch.int32, torch.int32, torch.int32)
    return *(_aligned(num, each, dtype, device) for dtype in dtypes), _aligned(num, blocks, torch.int32, device)


def several_together(num: int, parts: int, num_lookups: int, device: torch.device, told: Tensor) -> CoalescedRows:
    """Arrays for so many places of so many parts of `num_lookups` lookups each; the parts' own are from `several`."""
    rows, starts = (_aligned(num, parts * num_lookups + 1, dtype, device) for dtype in (torch.int64, torch.int32))
    noted = torch.zeros(num, 2, dtype=torch.int32, device=device)
    return CoalescedRows(rows, starts, noted, told, _aligned(num * parts, num_lookups + 1, torch.int32, device))


def _aligned(num: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(num, triton.cdiv(length, _ALIGNED) * _ALIGNED, dtype=dtype, device=device)


class _Blocks(NamedTuple):
    """A sorted batch in blocks."""

    rows: Tensor  # in order
    lookups: Tensor  # in the same order
    firsts: Tensor  # of each block, how many lookups are the first of their row
    num_valid: Tensor | None  # lookups that have a row; None for all
    in_parts: Tensor | None  # see `count_parts`
    per_block: int
    width: int  # a power of two


def _of_keys(
    keys: Tensor,
    bad: Tensor | None,
    told: Tensor | None,
    place: Tensor | None,
    out: tuple[Tensor, ...],
    coalesced: CoalescedRows | None = None,
) -> None:
    num_lookups = keys.numel()
    ordered, order = torch.sort(keys, stable=True)
    num_blocks = triton.cdiv(num_lookups + 1, _BLOCK)  # the place of `num_valid` may be one past the end
    parts = 1 if coalesced is None else coalesced.num_parts
    firsts, num_valid = (out[1].new_empty(length) for length in (num_blocks, 1))
    in_parts = None if coalesced is None else out[1].new_empty(2 * parts * num_blocks)
    _count_firsts[(num_blocks,)](
        ordered, order, num_lookups, firsts, num_valid, in_parts,
        LAST=torch.iinfo(keys.dtype).max, PARTS=parts, BLOCK=_BLOCK, num_warps=_NUM_WARPS,
    )  # fmt: skip
    _scatter_blocks(
        _Blocks(ordered, order, firsts, num_valid, in_parts, _BLOCK, _BLOCK), bad, told, place, out, coalesced
    )


def _scatter_blocks(
    blocks: _Blocks,
    bad: Tensor | None,
    told: Tensor | None,
    place: Tensor | None,
    out: tuple[Tensor, ...],
    coalesced: CoalescedRows | None,
) -> None:
    rows, num, inverse, order, starts, block_rows = out
    num_blocks, width = blocks.firsts.numel(), blocks.width
    at_once = 2 * width  # were it one block, the two would have one layout, which costs 24 barriers
    last = torch.iinfo(blocks.rows.dtype).max
    num_warps = max(_NUM_WARPS * width // _BLOCK, 1)
    if coalesced is not None:
        assert coalesced.num_parts <= MOST_PARTS
        all_rows, all_starts, all_noted, all_told, in_all = coalesced
        scatter_parts[(num_blocks,)](
            blocks.rows, blocks.lookups, blocks.firsts, blocks.in_parts, bad, told, place, blocks.rows.numel(),
            num_blocks, blocks.per_block, rows, num, inverse, order, starts, block_rows, rows.stride(0),
            block_rows.stride(0), all_rows, all_starts, all_noted, all_told, in_all, all_rows.stride(0),
            LAST=last, PARTS=coalesced.num_parts, BLOCK=width, AT_ONCE=at_once, PER_BLOCK_ROW=LOOKUPS_PER_BLOCK,
            num_warps=num_warps,
        )  # fmt: skip
        return
    _scatter[(num_blocks,)](
        blocks.rows, blocks.lookups, blocks.firsts, blocks.num_valid, bad, told, place, blocks.rows.numel(), num_blocks,
        blocks.per_block, rows, num, inverse, order, starts, block_rows, rows.stride(0), block_rows.stride(0),
        LAST=last, BLOCK=width, AT_ONCE=at_once, PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, num_warps=num_warps,
    )  # fmt: skip
