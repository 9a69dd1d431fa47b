"""Distinct rows of columns that have tables of their own: each column of a small batch is sorted by one program.

Of several batches each is sorted by itself. Where a row of one stands among the rows of all is found by searching the
others' columns for it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import LOOKUPS_PER_BLOCK, NO_ROW
from hotrows.ops.unique.kernel_in_order import sums
from hotrows.ops.unique.kernel_parts import CoalescedRows

_NO_ROW = tl.constexpr(NO_ROW)
PER_THREAD, MOST_WARPS = 4, 16  # ids of a thread, more where there are too few warps
_LANES_PER_WARP = 128
_AT_ONCE = 128  # counts that are added up at a time


@triton.jit(do_not_specialize=["num_samples"])
def sort_columns(
    ids, columns, first_row, num_rows, column_order, bad, place, num_samples, num_features, stride,
    ordered, sorted_order, firsts,
    LAST: tl.constexpr, PARTS: tl.constexpr, BITS: tl.constexpr, PER_THREAD: tl.constexpr,
):  # fmt: skip
    """Sort each column of each part, as numbers made of an id and, in the last BITS, its sample.

    Args:
        num_samples: of a part.
        ordered, sorted_order: [columns, PARTS, num_samples], rows in order (LAST where there is none), and their
            lookups. firsts: [PARTS, columns], how many of these are the first of their row.
    """
    BLOCK: tl.constexpr = 1 << BITS
    NO_ID: tl.constexpr = (1 << (63 - BITS)) - 1
    rank, part = tl.program_id(0), tl.program_id(1)
    bad += (tl.load(place) * PARTS + part) * 2
    feature = tl.load(column_order + rank)
    source = feature.to(tl.int64)
    if columns is not None:
        source = tl.load(columns + feature)
    sample = tl.arange(0, BLOCK)
    inside = sample < num_samples
    ids += part.to(tl.int64) * num_samples * stride
    found = tl.load(ids + sample.to(tl.int64) * stride + source, mask=inside, other=-1).to(tl.int64)
    good = (found >= 0) & (found < tl.load(num_rows + feature))
    # the first bad position is the largest of these
    left = (num_samples - sample) * num_features - feature
    tl.atomic_max(bad + tl.zeros_like(sample), left, mask=inside & ~good, sem="relaxed")
    pair = (tl.where(good, found, NO_ID) << BITS) | sample  # beyond the last sample, larger than all before
    # ids of one thread, loaded far apart, become neighbours: most are then compared without shared memory
    turned = tl.trans(tl.reshape(pair, [PER_THREAD, BLOCK // PER_THREAD]))
    pair = tl.sort(tl.reshape(turned, [BLOCK]))

    found = pair >> BITS
    before = tl.gather(found, tl.maximum(sample - 1, 0), 0)
    first = ((found != before) | (sample == 0)) & (found != NO_ID)
    tl.store(firsts + part * tl.num_programs(0) + rank, tl.sum(first.to(tl.int32), 0))
    row = tl.where(found == NO_ID, LAST, found + tl.load(first_row + feature))
    lookup = (pair & (BLOCK - 1)).to(tl.int32) * num_features + feature
    position = (rank * PARTS + part).to(tl.int64) * num_samples + sample
    tl.store(ordered + position, row.to(ordered.dtype.element_ty), mask=inside)
    tl.store(sorted_order + position, lookup, mask=inside)


@triton.jit
def _rows_of_part(column, part, position, num_samples, LAST: tl.constexpr):
    """Rows of a part in order, and which are the first of theirs."""
    inside = position < num_samples
    rows = column + part * num_samples
    row = tl.load(rows + position, mask=inside, other=LAST)
    before = tl.load(rows + position - 1, mask=inside & (position > 0), other=_NO_ROW)
    return row, (row != LAST) & (row != before)


@triton.jit(do_not_specialize=["num_samples"])
def compare_parts(
    ordered, num_samples, below, new_to, num_new,
    LAST: tl.constexpr, PARTS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Where rows of one part stand among those of the others, and which of them are *new*: in no part before.

    Args:
        below: [columns, PARTS, PARTS, num_samples]: for each row of a part that is the first of its own, how many
            lookups of each part are below it.
        new_to: [columns, PARTS, num_samples], how many rows of the part are new up to each. num_new: [columns, PARTS].
    """
    BLOCK: tl.constexpr = 1 << BITS
    at = (tl.program_id(0) * PARTS + tl.program_id(1)).to(tl.int64)
    part = tl.program_id(1)
    column = ordered + tl.program_id(0).to(tl.int64) * PARTS * num_samples
    position = tl.arange(0, BLOCK)
    inside = position < num_samples
    row, first = _rows_of_part(column, part, position, num_samples, LAST)
    new = first
    for other in tl.static_range(PARTS):
        found = position
        if other != part:
            rows = column + other * num_samples
            found = tl.zeros([BLOCK], tl.int32)
            for step in tl.static_range(BITS + 1):
                size = 1 << (BITS - step)
                looked_at = found + size - 1
                is_below = tl.load(rows + looked_at, mask=first & (looked_at < num_samples), other=LAST) < row
                found = tl.where(is_below, found + size, found)
            if other < part:
                new = new & (tl.load(rows + found, mask=first & (found < num_samples), other=LAST) != row)
        tl.store(below + (at * PARTS + other) * num_samples + position, found, mask=first)
    tl.store(new_to + at * num_samples + position, tl.cumsum(new.to(tl.int32), 0), mask=inside)
    tl.store(num_new + at, tl.sum(new.to(tl.int32), 0))


@triton.jit(do_not_specialize=["num_samples", "num_columns"])
def scatter_columns(
    ordered, sorted_order, firsts, below, new_to, num_new, bad, told, place, num_samples, num_columns,
    rows, num, inverse, order, starts, block_rows, stride, block_stride,
    all_rows, all_starts, all_noted, all_told, in_all, all_stride,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, PER_BLOCK_ROW: tl.constexpr,
):  # fmt: skip
    """The answer to each part as if it were alone, and to all together; a program for each column of each part."""
    at = tl.load(place).to(tl.int64)
    rank, part = tl.program_id(0), tl.program_id(1)
    offset = tl.arange(0, BLOCK)
    inside = offset < num_samples
    all_rows += at * all_stride
    all_starts += at * all_stride
    in_column = (rank * PARTS + part).to(tl.int64)
    column = ordered + rank.to(tl.int64) * PARTS * num_samples
    row, first = _rows_of_part(column, part, offset, num_samples, LAST)
    row = row.to(tl.int64)

    before_this, num_rows = sums(num_new, num_columns * PARTS, rank * PARTS, AT_ONCE)
    unique = tl.zeros([BLOCK], tl.int32) + before_this
    start = (tl.zeros([BLOCK], tl.int32) + rank) * PARTS * num_samples
    for other in tl.static_range(PARTS):
        lower = tl.load(below + (in_column * PARTS + other) * num_samples + offset, mask=first, other=0)
        new_lower = new_to + (rank * PARTS + other).to(tl.int64) * num_samples + lower - 1
        unique += tl.load(new_lower, mask=first & (lower > 0), other=0)
        start += lower
    mine = new_to + in_column * num_samples + offset
    new_up_to = tl.load(mine, mask=inside, other=0)
    is_new = first & (new_up_to > tl.load(mine - 1, mask=inside & (offset > 0), other=0))
    tl.store(all_rows + unique, row, mask=is_new)
    tl.store(all_starts + unique, start, mask=is_new)
    num_lookups = num_columns * PARTS * num_samples
    position = (in_column * num_samples + offset).to(tl.int32)
    beyond = inside & (position >= num_rows)
    tl.store(all_rows + position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(all_starts + position, tl.zeros([BLOCK], tl.int32) + num_lookups, mask=beyond)
    leads = (rank == 0) & (part == 0)
    tl.store(all_starts + num_lookups, num_lookups, mask=leads)
    tl.store(all_noted + at * 2, num_rows, mask=leads)
    tl.store(all_told + at * 2, num_rows, mask=leads)

    per_part = num_columns * num_samples
    at_part = at * PARTS + part
    own = at_part * stride
    rows_before, num_own = sums(firsts + part * num_columns, num_columns, rank, AT_ONCE)
    what_is_bad = tl.load(bad + at_part * 2)
    used = (what_is_bad == 0).to(tl.int32)  # nothing of a bad batch is
    num_own *= used
    own_unique = rows_before + tl.cumsum(first.to(tl.int32), 0) - 1
    own_position = rank * num_samples + offset
    lookup = tl.load(sorted_order + position, mask=inside, other=0)
    tl.store(order + own + own_position, lookup, mask=inside)
    tl.store(inverse + own + lookup, tl.where(used > 0, own_unique, -1), mask=inside)
    first = first & (used > 0)
    tl.store(rows + own + own_unique, row, mask=first)
    tl.store(starts + own + own_unique, own_position, mask=first)
    tl.store(in_all + own + own_unique, unique, mask=first)
    beyond = inside & (own_position >= num_own)
    tl.store(rows + own + own_position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(starts + own + own_position, tl.zeros([BLOCK], tl.int32) + per_part * used, mask=beyond)
    begins = inside & (own_position % PER_BLOCK_ROW == 0)
    block_row = at_part * block_stride + own_position // PER_BLOCK_ROW
    tl.store(block_rows + block_row, tl.maximum(own_unique, 0), mask=begins)
    tl.store(starts + own + per_part, per_part * used, mask=rank == 0)
    tl.store(num + at_part * 2, num_own, mask=rank == 0)
    tl.store(told + at_part * 2, num_own, mask=rank == 0)
    tl.store(told + at_part * 2 + 1, what_is_bad, mask=rank == 0)


def bits_of(num_samples: int) -> int:
    """Of the number of a sample."""
    return max((num_samples - 1).bit_length(), 5)


def sort(
    ids: Tensor, columns: Tensor | None, first_row: Tensor, num_rows: Tensor, column_order: Tensor, bad: Tensor,
    place: Tensor, keys: Tensor, parts: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sort columns; rows go into `keys`.

    Returns:
        Lookups in order, and of each part and column how many are the first of their row.
    """
    num_samples, num_features = len(ids) // parts, first_row.numel()
    bits = bits_of(num_samples)
    num_warps = min(max((1 << bits) // (32 * PER_THREAD), 1), MOST_WARPS)
    order, firsts = (bad.new_empty(length) for length in (keys.numel(), parts * num_features))
    sort_columns[(num_features, parts)](
        ids, columns, first_row, num_rows, column_order, bad, place, num_samples, num_features, ids.shape[1], keys,
        order, firsts, LAST=_last(keys), PARTS=parts, BITS=bits, PER_THREAD=max((1 << bits) // (32 * num_warps), 1),
        num_warps=num_warps,
    )  # fmt: skip
    return order, firsts


def scatter(
    keys: Tensor, lookups: Tensor, firsts: Tensor, bad: Tensor, told: Tensor, place: Tensor, out: tuple[Tensor, ...],
    coalesced: CoalescedRows,
) -> None:  # fmt: skip
    """The answers to several parts whose columns are sorted."""
    rows, num, inverse, order, starts, block_rows = out
    all_rows, all_starts, all_noted, all_told, in_all = coalesced
    parts = coalesced.num_parts
    num_columns = firsts.numel() // parts
    num_samples = keys.numel() // firsts.numel()
    bits = bits_of(num_samples)
    width = 1 << bits
    below, new_to, num_new = (
        firsts.new_empty(length) for length in (parts * keys.numel(), keys.numel(), firsts.numel())
    )
    grid, num_warps = (num_columns, parts), max(width // _LANES_PER_WARP, 1)
    compare_parts[grid](
        keys, num_samples, below, new_to, num_new, LAST=_last(keys), PARTS=parts, BITS=bits, num_warps=num_warps
    )
    scatter_columns[grid](
        keys, lookups, firsts, below, new_to, num_new, bad, told, place, num_samples, num_columns, rows, num, inverse,
        order, starts, block_rows, rows.stride(0), block_rows.stride(0), all_rows, all_starts, all_noted, all_told,
        in_all, all_rows.stride(0), LAST=_last(keys), PARTS=parts, BLOCK=width,
        AT_ONCE=2 * _AT_ONCE if width == _AT_ONCE else _AT_ONCE,  # with one layout for both, there are many barriers
        PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, num_warps=num_warps,
    )  # fmt: skip


def _last(keys: Tensor) -> int:
    """Sorts lookups without a row behind all others."""
    return torch.iinfo(keys.dtype).max
